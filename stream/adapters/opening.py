"""Opening the loader of a trainer: data, statistics, then the transforms in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from stream.storage.errors import ArgumentError

if TYPE_CHECKING:
    from stream.loader.loader import Loader
    from stream.loader.mixed import MixedData
    from stream.statistics.normalize import Normalize

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
    convert: Callable[[MixedData], Any],
    normalize: bool | str | Path | Normalize = False,
    own: Mapping[str, Any],
    free: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    keep: Callable[[MixedData], Mapping[str, Any]] | None = None,
    transforms: Sequence[Any] = (),
    columns: Sequence[str] = (),
    arguments: Mapping[str, Any],
) -> Loader:
    """Return a loader whose transforms are those of the caller, the normalisation, and the conversion.

    Args:
        root: As for ``make_loader``.
        mixture: As for ``make_loader``.
        convert: Maker of the conversion, from the open data.
        normalize: True takes the statistics of the data, False none; or a file of the trainer, or a normalisation.
        own: Arguments of ``make_loader`` that the trainer sets.
        free: Names of ``FIXED`` that the caller may give.
        settings: Arguments of the trainer's ``Normalize``; None if the trainer normalises by itself.
        keep: Maker of the ``keep_ranges`` that the trainer needs.
        transforms: Transforms of the caller.
        columns: Columns that the conversion needs.
        arguments: Arguments of ``make_loader`` from the caller.

    Raises:
        ArgumentError: As for ``make_loader`` and ``Normalize``; or the trainer sets an argument itself.
    """
    # Workers import the modules of the conversions, and need no Grain.
    from stream.loader.loader import make_loader
    from stream.statistics.normalize import Normalize, load_normalize

    is_file = isinstance(normalize, str | Path) and Path(normalize).is_file()
    if not isinstance(normalize, Normalize) and not _is_bool(normalize) and not is_file:
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
    for name, value in (("columns", arguments.get("columns", ())), ("transforms", transforms)):
        if not isinstance(value, list | tuple):
            raise ArgumentError(f"{name}={value!r:.100}; expected a list")
    if settings is None and (own_ones := [each for each in transforms if isinstance(each, Normalize)]):
        raise ArgumentError(f"transforms: {own_ones[0]!r}, and the trainer normalises by itself; leave it out")
    given = {**own, **arguments}
    given["columns"] = tuple(dict.fromkeys((*given.get("columns", ()), *columns)))
    data = make_loader(root, mixture, **given).data
    if keep is not None and (ranges := keep(data)):
        if given.get("keep_ranges"):
            raise ArgumentError(
                f"keep_ranges: this trainer leaves out steps of {', '.join(ranges)} by keep_ranges of its own; give "
                "yours to the members of the mixture, {'dataset': {'keep_ranges': ...}}"
            )
        given["keep_ranges"] = ranges
    steps = [normalize] if isinstance(normalize, Normalize) else []
    if isinstance(normalize, str | Path):
        steps = [load_normalize(normalize, data, format=(settings or {})["method"])]
    elif not steps and normalize:
        steps = [Normalize(data, **(settings or {}))]
    return make_loader(root, mixture, **given, transforms=[*transforms, *steps, convert(data)])


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
