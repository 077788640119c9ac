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
from stream.batch.resize import check_size
from stream.storage.remote import cached_root

if TYPE_CHECKING:
    from stream.format.names import VectorName
    from stream.loader.loader import Loader
    from stream.loader.open_mixture import OpenMixture
    from stream.statistics.normalize import Normalize

Converted = TypeVar("Converted")

SIZE = ("image_filter", "image_fit", "image_size")
"""Arguments of ``make_loader`` that resize; free where a trainer takes pictures of any size."""
FIXED = (
    "action",
    "action_from",
    "bounds",
    "cameras",
    "decode",
    "frames",
    "horizon",
    *SIZE,
    "metadata",
    "min_actions",
    "normalize",
    "state_from",
    "state_horizon",
)
"""Arguments of ``make_loader`` that define a trainer's batches; the adapter chooses them, not the caller."""


def open_loader(
    root: str | Path,
    mixture: Any,
    *,
    adapter: Callable[..., Loader],
    convert: Callable[[OpenMixture], Any],
    normalize: bool | str | Path | Normalize = False,
    own: Mapping[str, Any],
    free: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    optional: Collection[str] = (),
    needs: Sequence[VectorName] = ("action",),
    arguments: Mapping[str, Any],
) -> Loader:
    """Return a loader whose transforms are those of the caller, the normalisation, and the conversion.

    Args:
        root: As for ``make_loader``.
        mixture: As for ``make_loader``.
        adapter: Function of the adapter, whose arguments messages may name.
        convert: Maker of the conversion, from the open data.
        normalize: True takes the statistics of the data, False none; or a file of the trainer, or a normalisation.
        own: Arguments of ``make_loader`` that the trainer sets.
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
    from stream.loader.loader import Loader, make_loader
    from stream.loader.open_mixture import read_mixture_fields
    from stream.statistics.normalize import Normalize, load_normalize

    is_file = isinstance(normalize, str | Path) and Path(normalize).is_file()
    is_bool = isinstance(normalize, bool | int | np.bool_) and normalize in (0, 1)
    if not isinstance(normalize, Normalize) and not is_bool and not is_file:
        raise ArgumentError(
            f"normalize={normalize!r:.100}; expected True for the statistics of the data, False for raw values, a file "
            "of the trainer, or a stream.Normalize"
        )
    for name in FIXED:
        if name in arguments and name not in free:
            raise ArgumentError(
                f"{name}={arguments[name]!r:.100}: the adapter sets {name}, as the batches of its trainer need it; "
                "leave it out, or open the data with stream.make_loader"
            )
    open_ones = {*signature(make_loader).parameters} - (set(FIXED) - set(free))
    check_names(arguments, {*open_ones, *signature(adapter).parameters} - {"arguments"})
    columns, transforms = (arguments.get(name, ()) for name in ("columns", "transforms"))
    for name, value in (("columns", columns), ("transforms", transforms)):
        if not isinstance(value, list | tuple):
            raise ArgumentError(f"{name}={value!r:.100}; expected a list")
    if settings is None and (own_ones := [each for each in transforms if isinstance(each, Normalize)]):
        raise ArgumentError(f"transforms: {own_ones[0]!r}, and the trainer normalises by itself; leave it out")
    place = cached_root(root, arguments.get("cache"))
    fields = read_mixture_fields(place, mixture, split=arguments.get("split", "train"))
    stored = {name for each in fields for camera in each.stored_cameras for name in camera.keys}
    cameras = own["cameras"]
    views = cameras if isinstance(cameras, Mapping) else dict(zip(cameras, cameras, strict=True))
    black = [name for name, camera in views.items() if name in optional and camera not in stored]
    seen = {name: camera for name, camera in views.items() if name not in black} or views
    given = {**own, "cameras": seen if isinstance(cameras, Mapping) else list(seen), **arguments}
    pixels: Any = own.get("image_size")
    if isinstance(pixels, Mapping):
        given["image_size"] = {name: size for name, size in pixels.items() if name in seen}
    elif "image_size" in own:
        pixels = dict.fromkeys(views, check_size("image_size", pixels))
    if "bounds" not in arguments and any(each.layout == "pairs" for each in fields):
        given["bounds"] = "inside"  # a pair is complete
    given["columns"] = tuple(dict.fromkeys((*columns, *own.get("columns", ()))))
    opened = make_loader(root, mixture, **given)
    data = opened.data
    if depth := [camera.frames for camera in data.cameras if camera.is_depth]:
        raise ArgumentError(f"cameras: {', '.join(depth)}: this trainer takes pictures of colour; leave depth out")
    for key in needs:
        sizes = {name: vector.size for name, vector in zip(data.names, data.spec.vectors(key), strict=True)}
        if lacking := [name for name, size in sizes.items() if not size]:
            raise ArgumentError(
                f"{key}: {', '.join(lacking)} have none, and this trainer would learn zeros; declare the parts in a "
                "file for `pairstream reindex --config`, or leave these datasets out"
            )
    steps = [normalize] if isinstance(normalize, Normalize) else []
    if isinstance(normalize, str | Path):
        steps = [load_normalize(normalize, data, format=(settings or {})["method"])]
    elif not steps and normalize:
        steps = [Normalize(data, **(settings or {}))]
    missing = [BlackCameras({name: pixels[name] for name in black})] if black else []
    made = [*transforms, *steps, *missing, convert(data)]
    return Loader(data, replace(opened.running, transforms=made), knows_ranks=opened.knows_ranks)


def conversion(loader: Loader, kind: type[Converted]) -> Converted:
    """Return the conversion of a loader.

    Args:
        loader: Loader of an adapter.
        kind: Conversion of this adapter.

    Raises:
        ArgumentError: Another adapter made the loader, or none.
    """
    for transform in loader.running.transforms[-1:]:
        if isinstance(transform, kind):
            return transform
    raise ArgumentError(
        f"the loader is not one of {kind.__module__}.loader: its transforms are {loader.running.transforms!r:.200}; "
        f"give one that {kind.__module__}.loader made"
    )


def check_mapping(name: str, value: Any, *, example: str) -> dict[str, Any]:
    """Return a mapping as dict; raise ArgumentError if it is none, or empty."""
    if not isinstance(value, Mapping) or not value:
        raise ArgumentError(f"{name}={value!r:.100}; expected a mapping such as {example}")
    return dict(value)
