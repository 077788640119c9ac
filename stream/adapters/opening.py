"""Opening the loader of a trainer: data, statistics, then the transforms in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from stream.adapters.images import BlackCameras
from stream.base.arguments import check_names
from stream.base.errors import ArgumentError
from stream.order.frames import check_size
from stream.storage.remote import cached_root

if TYPE_CHECKING:
    from stream.format.fields import Fields
    from stream.format.names import VectorName
    from stream.loader.loader import Loader
    from stream.loader.open_mixture import OpenMixture
    from stream.statistics.normalize import Normalize

Converted = TypeVar("Converted")

SIZE = ("image_filter", "image_fit", "image_size")
"""Arguments of ``make_loader`` that resize; free where a trainer takes pictures of any size."""
FIXED = (
    *("action", "action_from", "bounds", "cameras", "decode", "frames", "horizon", *SIZE, "metadata", "min_actions"),
    *("normalize", "state_from", "state_horizon"),
)
"""Arguments of ``make_loader`` that define a trainer's batches; the adapter chooses them, not the caller."""


def open_loader(
    root: str | Path,
    mixture: Any,
    *,
    adapter: Callable[..., Loader],
    convert: Callable[[OpenMixture], Any],
    normalize: bool | str | Path | Normalize = False,
    preset: Mapping[str, Any],
    free: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    optional: Collection[str] = (),
    needs: Sequence[VectorName] = ("action",),
    arguments: Mapping[str, Any],
) -> Loader:
    """Return a loader whose transforms are the caller's, the normalisation, and the conversion.

    Args:
        root: As for ``make_loader``.
        mixture: As for ``make_loader``.
        adapter: Function of the adapter, whose arguments messages may name.
        convert: Maker of the conversion, from the open mixture.
        normalize: True takes the statistics of the data, False none; or a file of the trainer, or a normalisation.
        preset: Arguments of ``make_loader`` that the trainer sets.
        free: Names of ``FIXED`` that the caller may give.
        settings: Arguments of the trainer's ``Normalize``; None if the trainer normalises by itself.
        optional: Cameras that are black where no dataset of the mixture stores them.
        needs: Vectors that every dataset must have.
        arguments: Arguments of ``make_loader`` from the caller.

    Raises:
        ArgumentError: As for ``make_loader`` and ``Normalize``; the trainer sets an argument itself; or a dataset lacks
            a vector, which would be trained as zeros.
    """
    # Workers import the modules of the conversions, and need no Grain.
    from stream.loader.loader import Loader
    from stream.loader.members import read_mixture_fields
    from stream.loader.opening import make_loader

    _check_normalize(normalize)
    settable = {*signature(make_loader).parameters} - (set(FIXED) - set(free))
    accepted = settable | {*signature(adapter).parameters} - {"arguments"}
    _check_caller_arguments(arguments, accepted=accepted, free=free, normalizes=settings is not None)
    shared_root = cached_root(root, arguments.get("cache"))
    fields = read_mixture_fields(shared_root, mixture, split=arguments.get("split", "train"))
    cameras, black = _select_cameras(preset, optional, fields)
    loader_arguments = {**preset, "cameras": cameras, **arguments}
    columns = (*arguments.get("columns", ()), *preset.get("columns", ()))
    loader_arguments["columns"] = tuple(dict.fromkeys(columns))
    if isinstance(image_size := preset.get("image_size"), Mapping):
        loader_arguments["image_size"] = {name: size for name, size in image_size.items() if name in cameras}
    if "bounds" not in arguments and any(dataset.layout == "pairs" for dataset in fields):
        loader_arguments["bounds"] = "inside"  # a pair is complete
    opened = make_loader(root, mixture, **loader_arguments)
    _check_data(opened.data, needs)
    transforms = [*arguments.get("transforms", ()), *_normalisation(normalize, opened.data, settings)]
    if black:
        transforms.append(BlackCameras(black))
    transforms.append(convert(opened.data))
    return Loader(opened.data, replace(opened.run_config, transforms=transforms), knows_ranks=opened.knows_ranks)


def _check_normalize(normalize: Any) -> None:
    from stream.statistics.normalize import Normalize

    is_file = isinstance(normalize, str | Path) and Path(normalize).is_file()
    is_bool = isinstance(normalize, bool | int | np.bool_) and normalize in (0, 1)
    if not isinstance(normalize, Normalize) and not is_bool and not is_file:
        raise ArgumentError(
            f"normalize={normalize!r:.100}; expected True for the statistics of the data, False for raw values, a file "
            "of the trainer, or a stream.Normalize"
        )


def _check_caller_arguments(
    arguments: Mapping[str, Any], *, accepted: set[str], free: Sequence[str], normalizes: bool
) -> None:
    """Raise ArgumentError for an argument that the adapter sets, an unknown name, or a second normalisation."""
    from stream.statistics.normalize import Normalize

    fixed = [name for name in FIXED if name not in free]
    for name in fixed:
        if name in arguments:
            raise ArgumentError(
                f"{name}={arguments[name]!r:.100}: the adapter sets {name}, as the batches of its trainer need it; "
                "leave it out, or open the data with stream.make_loader"
            )
    check_names(arguments, accepted)
    for name in ("columns", "transforms"):
        if not isinstance(value := arguments.get(name, ()), list | tuple):
            raise ArgumentError(f"{name}={value!r:.100}; expected a list")
    for transform in arguments.get("transforms", ()):
        if isinstance(transform, Normalize) and not normalizes:
            raise ArgumentError(f"transforms: {transform!r}, and the trainer normalises by itself; leave it out")


def _select_cameras(
    preset: Mapping[str, Any], optional: Collection[str], fields: Sequence[Fields]
) -> tuple[dict[str, Any] | list[str], dict[str, tuple[int, int]]]:
    """Return the ``cameras`` of ``make_loader``, and the sizes of the optional cameras that no dataset stores."""
    stored: set[str] = set()
    for dataset in fields:
        stored.update(*(camera.keys for camera in dataset.stored_cameras))
    cameras = preset["cameras"]
    sources = cameras if isinstance(cameras, Mapping) else dict(zip(cameras, cameras, strict=True))
    absent = [name for name, camera in sources.items() if name in optional and camera not in stored]
    # A mixture without any of the cameras is an error of make_loader.
    present = {name: camera for name, camera in sources.items() if name not in absent} or sources
    sizes: Any = preset.get("image_size")
    if "image_size" in preset and not isinstance(sizes, Mapping):
        sizes = dict.fromkeys(sources, check_size("image_size", sizes))
    return dict(present) if isinstance(cameras, Mapping) else list(present), {name: sizes[name] for name in absent}


def _check_data(mixture: OpenMixture, needs: Sequence[VectorName]) -> None:
    """Raise ArgumentError for a depth camera, or a dataset without a vector that the trainer needs."""
    if depth := [camera.frames for camera in mixture.cameras if camera.is_depth]:
        raise ArgumentError(f"cameras: {', '.join(depth)}: this trainer takes pictures of colour; leave depth out")
    for vector_name in needs:
        vectors = zip(mixture.names, mixture.spec.vectors(vector_name), strict=True)
        if lacking := [name for name, vector in vectors if not vector.size]:
            raise ArgumentError(
                f"{vector_name}: {', '.join(lacking)} have none, and this trainer would learn zeros; declare the parts "
                "in a file for `pairstream reindex --config`, or leave these datasets out"
            )


def _normalisation(normalize: Any, mixture: OpenMixture, settings: Mapping[str, Any] | None) -> list[Normalize]:
    """Return the normalisation, if the trainer has one."""
    from stream.statistics.normalize import Normalize, load_normalize

    settings = settings or {}
    if isinstance(normalize, Normalize):
        return [normalize]
    if isinstance(normalize, str | Path):
        return [load_normalize(normalize, mixture, format=settings["method"])]
    return [Normalize(mixture, **settings)] if normalize else []


def conversion(loader: Loader, kind: type[Converted]) -> Converted:
    """Return the conversion of a loader.

    Args:
        loader: Loader of an adapter.
        kind: Conversion of this adapter.

    Raises:
        ArgumentError: Another adapter, or ``make_loader``, made the loader.
    """
    for transform in loader.run_config.transforms[-1:]:
        if isinstance(transform, kind):
            return transform
    raise ArgumentError(
        f"the loader is not one of {kind.__module__}.loader: its transforms are {loader.run_config.transforms!r:.200}; "
        f"give one that {kind.__module__}.loader made"
    )


def check_mapping(name: str, value: Any, *, example: str) -> dict[str, Any]:
    """Return a mapping as dict; raise ArgumentError if it is not a mapping, or empty."""
    if not isinstance(value, Mapping) or not value:
        raise ArgumentError(f"{name}={value!r:.100}; expected a mapping such as {example}")
    return dict(value)
