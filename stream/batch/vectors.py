"""Action and state: their dimensions, the columns that a caller chose for them, and how a window becomes an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stream.format.names import DERIVED
from stream.format.table import Table
from stream.storage.errors import ArgumentError, FormatError, closest, first_fault

if TYPE_CHECKING:
    from stream.format.catalog import Dataset
    from stream.format.fields import Part

Reduction = Literal["window", "sum", "mean", "first"]
REDUCTIONS: tuple[Reduction, ...] = ("window", "sum", "mean", "first")


@dataclass(frozen=True)
class Vector:
    """A vector of a dataset.

    Attributes:
        names: Name of each dimension.
        modes: Mode of each dimension: ``delta``, ``velocity``, ``absolute`` or ``flag``.
        chosen: Columns of ``steps`` that a caller chose, with the indices of values; None for the derived column.
    """

    names: tuple[str, ...]
    modes: tuple[str, ...]
    chosen: tuple[tuple[str, tuple[int, ...]], ...] | None = None

    @property
    def size(self) -> int:
        """Number of dimensions."""
        return len(self.names)

    def take(self, steps: Table, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the chosen columns of some rows of ``steps``, float32 [n, size], and which values there are, bool
        alike; 0 where a row has none."""
        assert self.chosen is not None, "the derived column is looked up by its location"
        found = np.empty((len(rows), self.size), np.float32)
        there = np.ones(found.shape, bool)
        start = 0
        for column, indices in self.chosen:
            values, valid = steps.take(column, rows), steps.valid(column, rows)
            stop = start + len(indices)
            with np.errstate(over="ignore", invalid="ignore"):
                found[:, start:stop] = (values[:, None] if values.ndim == 1 else values)[:, indices]
            if valid is not None:
                found[~valid, start:stop], there[~valid, start:stop] = 0, False
            start = stop
        return found, there


def _make_vector(parts: Sequence[Part], *, chosen: bool = False) -> Vector:
    from stream.format.schema import feature_column  # here, for workers import this module

    names = [name for part in parts for name in part.names or [f"{part.path}[{i}]" for i in part.indices]]
    modes = [part.mode for part in parts for _ in part.indices]
    columns = tuple((feature_column("steps", part.path), tuple(part.indices)) for part in parts)
    return Vector(tuple(names), tuple(modes), columns if chosen else None)


def dataset_vector(
    dataset: Dataset, which: Literal["action", "state"], columns: Sequence[Any] | None, *, steps: Table
) -> Vector:
    """Return the vector of a dataset: the registry's, or the columns that the caller chose.

    Args:
        dataset: Open dataset.
        which: ``action`` or ``state``.
        columns: None, or names of columns, or ``(column, [indices])``, or mappings like the registry's parts.
        steps: Table of one of its splits.

    Raises:
        ArgumentError: A column is not among the converted ones, is not of numbers, or an index is out of range.
        FormatError: The derived column does not fit the registry's entry in the manifest.
    """
    if columns is None:
        vector = _make_vector(dataset.fields.action if which == "action" else dataset.fields.state)
        found = steps.columns.get(which)
        if vector.size and (found is None or (found.dtype, found.width) != ("<f4", vector.size)):
            raise FormatError(
                f"{steps.path}: column {which!r} is not the {vector.size} numbers of the manifest's spec; run "
                "`python -m convert.reindex` on this root"
            )
        return vector
    place = f"dataset {dataset.name}: {which}"
    if not isinstance(columns, Sequence) or isinstance(columns, str):
        raise ArgumentError(f"{place}: columns are {columns!r:.100}; expected a list of them")
    parts = [_chosen_part(column, steps, place) for column in columns]
    return _make_vector(parts, chosen=True)


def _chosen_part(column: Any, steps: Table, place: str) -> Part:
    from pydantic import ValidationError

    from stream.format.fields import Part
    from stream.format.schema import feature_column

    if isinstance(column, str):
        column = {"path": column}
    elif isinstance(column, Sequence) and len(column) == 2:
        column = {"path": column[0], "select": column[1]}
    elif not isinstance(column, Mapping):
        raise ArgumentError(f"{place}: {column!r:.100}; expected a column, (column, [indices]) or a mapping")
    name = column.get("path")
    found = steps.columns.get(feature_column("steps", str(name)))
    if found is None:
        known = [column for column in steps.columns if column not in DERIVED]
        raise ArgumentError(f"{place}: no column {name!r}; {closest(str(name), known, noun='columns')}")
    if found.dtype is None or found.texts is not None:
        raise ArgumentError(f"{place}: column {name!r} is not of numbers, one or a fixed number a step")
    size = found.width or 1
    try:
        part = Part.model_validate({**column, "dims": size})
    except ValidationError as error:
        raise ArgumentError(f"{place}: {name!r} has {size} values, {first_fault(error)}") from None
    if max(part.indices) >= size:
        raise ArgumentError(f"{place}: {name!r} has {size} values, select is {list(part.indices)!r:.100}")
    return part


def reduce_window(window: np.ndarray, steps: np.ndarray, how: Reduction, modes: np.ndarray) -> np.ndarray:
    """Reduce windows of actions to one action each.

    Args:
        window: float32 [b, W, A], zero beyond ``steps``.
        steps: int [b], how many rows of each window are real, >= 0.
        how: ``first`` takes the action at t. ``mean`` is the mean of the real rows. ``sum`` adds what may be added,
            that is ``delta`` and ``velocity``. In ``sum`` and ``mean``, flags, and in ``sum`` absolute values, are
            those of the last real row: where the pair ends.
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


def sum_scale(vector: Vector, control_frequency: float | None, *, dataset: str) -> np.ndarray:
    """Return what summed actions are multiplied by, float32 [size]: the time of a step for velocities, else 1.

    Args:
        vector: Action of the dataset.
        control_frequency: Steps a second, None if the dataset has no fixed rate.
        dataset: Name of the dataset, for messages.

    Raises:
        ArgumentError: The action has velocities, and the rate is not known.
    """
    velocities = np.array([mode == "velocity" for mode in vector.modes], bool)
    if velocities.any() and control_frequency is None:
        first = vector.names[int(np.flatnonzero(velocities)[0])]
        raise ArgumentError(
            f"dataset {dataset}: action='sum' would add up velocities ({first}), and the dataset has no fixed rate to "
            "make distances of them; take 'window', 'mean' or 'first'"
        )
    return np.where(velocities, np.float32(1 / (control_frequency or 1)), np.float32(1)).astype(np.float32)
