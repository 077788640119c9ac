"""Action and state: which columns of the ``steps`` sidecars make the vectors, and how a window becomes an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from stream.errors import ArgumentError, closest
from stream.format import FormatError
from stream.shards import OpenShard, is_numeric

if TYPE_CHECKING:
    from stream.catalog import Dataset

Reduction = Literal["window", "sum", "mean", "first"]
_MODES = ("delta", "velocity", "absolute", "flag")
REDUCTIONS: tuple[Reduction, ...] = ("window", "sum", "mean", "first")


@dataclass(frozen=True)
class Span:
    """Values of one column that stand next to each other in the vector.

    select: which values of the column, None for all; a slice where they are neighbours. start, stop: their place in
    the vector.
    """

    column: str
    select: slice | tuple[int, ...] | None
    start: int
    stop: int

    def fits(self, size: int) -> bool:
        """Whether a column of ``size`` values in a row has those that are taken."""
        if self.select is None:
            return size == self.stop - self.start
        return (self.select.stop if isinstance(self.select, slice) else max(self.select) + 1) <= size

    def filled(self, values: np.ndarray) -> Filled:
        """The same of some rows of the column, [rows] or [rows, values]."""
        if values.ndim == 1:
            values = values[:, None]
        dims = slice(self.start, self.stop)
        if self.select is None or isinstance(self.select, slice):
            return (values if self.select is None else values[:, self.select]), dims, None
        return values, dims, np.array(self.select)


@dataclass(frozen=True)
class Vector:
    """A vector of a dataset: its columns, and of each dimension its name and mode (``delta``, ``velocity``,
    ``absolute``, ``flag``)."""

    spans: tuple[Span, ...]
    names: tuple[str, ...]
    modes: tuple[str, ...]

    @property
    def size(self) -> int:
        """Dimensions."""
        return len(self.names)


def make_vector(parts: Sequence[Mapping[str, Any]]) -> Vector:
    """Make a vector of the parts of a registry entry (``path``, ``dims``, ``select``, ``names``, ``mode``)."""
    columns: list[tuple[str, list[int] | None, int]] = []
    names: list[str] = []
    modes: list[str] = []
    for part in parts:
        select = list(part["select"]) if part.get("select") is not None else None
        dims = len(select) if select is not None else int(part["dims"])
        names += part.get("names") or [f"{part['path']}[{i}]" for i in (select or range(dims))]
        modes += [str(part.get("mode", "absolute"))] * dims
        last = columns[-1] if columns else None
        if last and select is not None and last[0] == part["path"] and last[1] is not None:
            columns[-1] = (last[0], last[1] + select, last[2] + dims)
        else:
            columns.append((str(part["path"]), select, dims))
    spans, start = [], 0
    for column, select, dims in columns:
        spans.append(Span(column, _as_slice(select), start, start + dims))
        start += dims
    return Vector(tuple(spans), tuple(names), tuple(modes))


def dataset_vector(
    dataset: Dataset,
    which: Literal["action", "state"],
    columns: Sequence[Any] | None,
    *,
    schema: pa.Schema | None = None,
) -> Vector:
    """Return the vector of a dataset: the registry's, or the columns that the caller chose.

    Args:
        dataset: an open dataset.
        which: ``action`` or ``state``.
        columns: None, or names of columns, or ``(column, [indices])``, or mappings like the registry's parts.
        schema: of the ``steps`` of one of its shards; all are alike. Without ``columns`` it is not needed.

    Raises:
        ArgumentError: a column is not among the converted ones, is not of numbers, or an index is out of range.
    """
    if columns is None:
        return make_vector(dataset.manifest.spec.get(which) or ())
    place = f"dataset {dataset.name}: {which}"
    if not isinstance(columns, Sequence) or isinstance(columns, str):
        raise ArgumentError(f"{place}: columns are {columns!r:.100}; expected a list of them")
    known = dataset.manifest.parameters.get("columns", [])
    parts = []
    for column in columns:
        if isinstance(column, str):
            part: dict[str, Any] = {"path": column, "select": None}
        elif isinstance(column, Mapping):
            part = dict(column)
        elif isinstance(column, Sequence) and len(column) == 2:
            part = {"path": column[0], "select": column[1]}
        else:
            raise ArgumentError(f"{place}: {column!r:.100}; expected a column, (column, [indices]) or a mapping")
        name = part.get("path")
        if schema is None or name not in schema.names:
            hint = closest(str(name), known, noun="columns")
            raise ArgumentError(f"{place}: no column {name!r}; {hint}")
        kind = schema.field(name).type
        size = kind.list_size if isinstance(kind, pa.FixedSizeListType) else 1
        if not is_numeric(kind):
            raise ArgumentError(f"{place}: column {name!r} is {kind}, expected numbers")
        chosen = part.get("select")
        if chosen is not None and not _are_indices(chosen, size):
            raise ArgumentError(f"{place}: {name!r} has {size} values, select is {chosen!r:.100}")
        part["dims"] = size if chosen is None else len(chosen)
        names, mode = part.get("names"), part.get("mode", "absolute")
        if names and len(names) != part["dims"]:
            raise ArgumentError(f"{place}: {name!r} gives {part['dims']} values, names are {names!r:.100}")
        if mode not in _MODES:
            raise ArgumentError(f"{place}: {name!r} has mode {mode!r:.60}; expected one of {', '.join(_MODES)}")
        parts.append(part)
    return make_vector(parts)


Filled = tuple[np.ndarray, slice, np.ndarray | None]
"""A column, [steps, values] in its own type; which dimensions of a vector it fills; and with which of its values, None
for all."""


def vector_columns(shard: OpenShard, vector: Vector) -> list[Filled]:
    """Return the columns of a vector.

    Raises:
        FormatError: the sidecar does not have a column, or not of so many numbers.
    """
    found: list[Filled] = []
    for span in vector.spans:
        values = shard.step_column(span.column)
        width = values.shape[1] if values.ndim == 2 else 1
        if not span.fits(width):
            raise FormatError(
                f"{shard.info.path('steps')}: column {span.column!r} has {width} values, the action or state "
                f"takes {span.stop - span.start} numbers of it"
            )
        found.append(span.filled(values))
    return found


def gather(columns: Sequence[Filled], first: int, stop: int, out: np.ndarray) -> None:
    """Write rows [first, stop) of a vector into ``out``, float32 [>= stop - first, >= dimensions]."""
    for values, dims, chosen in columns:
        rows = values[first:stop]
        out[: stop - first, dims] = rows if chosen is None else rows[:, chosen]


def gather_row(columns: Sequence[Filled], row: int, out: np.ndarray) -> None:
    """Write one row of a vector into ``out``, float32 [>= dimensions]."""
    for values, dims, chosen in columns:
        out[dims] = values[row] if chosen is None else values[row, chosen]


def reduce_window(window: np.ndarray, steps: np.ndarray, how: Reduction, modes: np.ndarray) -> np.ndarray:
    """Reduce windows of actions to one action each.

    Args:
        window: float32 [b, W, A], zero beyond ``steps``.
        steps: int [b], how many rows of each window are real, >= 0.
        how: ``first`` takes the action at t. ``mean`` is the mean of the real rows. ``sum`` adds what may be added,
        that is
            ``delta`` and ``velocity``. In ``sum`` and ``mean``, flags, and in ``sum`` absolute values, are those of the
            last real row: where the pair ends.
        modes: int8 [b, A], the mode of each dimension: 0 delta or velocity, 1 absolute, 2 flag.

    Returns:
        float32 [b, A].
    """
    if how == "first":
        return window[:, 0]
    last = np.take_along_axis(window, np.maximum(steps - 1, 0)[:, None, None].astype(np.int64), axis=1)[:, 0]
    total = window.sum(axis=1, dtype=np.float32)
    if how == "mean":
        return np.where(modes == 2, last, total / np.maximum(steps, 1)[:, None].astype(np.float32))
    return np.where(modes == 0, total, last)


def mode_codes(vector: Vector, size: int) -> np.ndarray:
    """Return the mode of each dimension as ``reduce_window`` takes it, int8 [size], padded with 0."""
    codes = np.zeros(size, np.int8)
    codes[: vector.size] = [{"absolute": 1, "flag": 2}.get(mode, 0) for mode in vector.modes]
    return codes


def _are_indices(select: Any, size: int) -> bool:
    return (
        isinstance(select, Sequence)
        and len(select) > 0
        and all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < size for i in select)
    )


def _as_slice(select: list[int] | None) -> slice | tuple[int, ...] | None:
    if select is None:
        return None
    if select == list(range(select[0], select[0] + len(select))):
        return slice(select[0], select[0] + len(select))
    return tuple(select)
