"""Opening the loader of a trainer: data, statistics, then the transforms in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from stream.storage.errors import ArgumentError

if TYPE_CHECKING:
    from stream.format.names import VectorName
    from stream.loader.loader import Loader
    from stream.loader.mixed import MixedData
    from stream.loader.normalize import Normalize

Converted = TypeVar("Converted")

FIXED = (
    "action",
    "action_from",
    "bounds",
    "cameras",
    "decode",
    "frames",
    "horizon",
    "metadata",
    "state_from",
    "state_horizon",
)
"""Arguments of ``make_loader`` that define a trainer's batches; the adapter chooses them, not the caller."""


def open_loader(
    root: str | Path,
    mixture: Any,
    *,
    convert: Callable[[MixedData, Sequence[Normalize]], Any],
    normalize: bool | Normalize,
    own: Mapping[str, Any],
    free: Sequence[str] = (),
    settings: Sequence[Mapping[str, Any]] = (),
    keep: Callable[[MixedData], Mapping[str, Any]] | None = None,
    transforms: Sequence[Any] = (),
    columns: Sequence[str] = (),
    needs: Sequence[VectorName] = ("action",),
    arguments: Mapping[str, Any],
) -> Loader:
    """Return a loader whose transforms are the normalisation, those of the caller, and the conversion.

    Args:
        root: As for ``make_loader``.
        mixture: As for ``make_loader``.
        convert: Maker of the conversion, from the open data and the normalisation.
        normalize: True takes the statistics of the data, False none; or a normalisation, such as one from a file.
        own: Arguments of ``make_loader`` that the trainer sets.
        free: Names of ``FIXED`` that the caller may give.
        settings: Arguments of each ``Normalize`` of the trainer.
        keep: Maker of the ``keep_ranges`` that the trainer needs.
        transforms: Transforms of the caller.
        columns: Columns that the conversion needs.
        needs: Vectors that every dataset must have.
        arguments: Arguments of ``make_loader`` from the caller.

    Raises:
        ArgumentError: As for ``make_loader`` and ``Normalize``; the trainer sets an argument itself; or a dataset lacks
            a vector, which would be trained as zeros.
    """
    # Workers import the modules of the conversions, and need no Grain.
    from stream.loader.loader import make_loader
    from stream.loader.normalize import Normalize

    if not isinstance(normalize, Normalize) and not _is_bool(normalize):
        raise ArgumentError(
            f"normalize={normalize!r:.100}; expected True for the statistics of the data, False for raw values, or a "
            "stream.Normalize"
        )
    for name in FIXED:
        if name in arguments and name not in free:
            raise ArgumentError(
                f"{name}={arguments[name]!r:.100}: the adapter sets {name}, as the batches of its trainer need it; "
                "leave it out, or open the data with stream.make_loader"
            )
    for name, value in (("columns", arguments.get("columns", ())), ("transforms", transforms)):
        if not isinstance(value, list | tuple):
            raise ArgumentError(f"{name}={value!r:.100}; expected a list")
    given = {**own, **arguments}
    given["columns"] = tuple(dict.fromkeys((*given.get("columns", ()), *columns)))
    data = make_loader(root, mixture, **given).data
    for key in needs:
        sizes = {name: vector.size for name, vector in zip(data.names, data.spec.vectors(key), strict=True)}
        if lacking := [name for name, size in sizes.items() if not size]:
            raise ArgumentError(
                f"{key}: {', '.join(lacking)} have none, and this trainer would learn zeros; declare the parts in a "
                "file for `python -m convert.reindex --config`, or leave these datasets out"
            )
    if keep is not None and (ranges := keep(data)):
        if given.get("keep_ranges"):
            raise ArgumentError(
                f"keep_ranges: this trainer leaves out steps of {', '.join(ranges)} by keep_ranges of its own; give "
                "yours to the members of the mixture, {'dataset': {'keep_ranges': ...}}"
            )
        given["keep_ranges"] = ranges
    steps = [normalize] if isinstance(normalize, Normalize) else []
    if not steps and normalize:
        kept = [{**each, "keys": [key for key in data.spec.vector_names if key in each["keys"]]} for each in settings]
        steps = [Normalize(data, **each) for each in kept if each["keys"]]
    return make_loader(root, mixture, **given, transforms=[*steps, *transforms, convert(data, steps)])


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


def _is_bool(value: Any) -> bool:
    """Return whether a value is True or False, or the number 1 or 0."""
    return isinstance(value, bool | int | np.bool_) and value in (0, 1)
