"""Statistics of the action and state of a split, exact, from the derived columns of its index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from convert.index.derived import part_names
from convert.registry.dataset import Part
from stream.format.manifest import Statistics
from stream.format.names import table_file
from stream.format.table import Table, open_table
from stream.storage.errors import FormatError

_DIGITS = 9
_BLOCK = 4 << 20
_CHUNK = 1 << 16
"""Numbers that are added up at once. Each sum is of the same numbers everywhere."""
_QUANTILES = {"q01": 0.01, "q99": 0.99}


def split_statistics(
    folder: Path, *, action: Sequence[Part], state: Sequence[Part]
) -> dict[Literal["action", "state"], Statistics]:
    """Return the statistics of the derived vectors of a split, of those that the registry has parts of.

    Args:
        folder: Folder of the split, with ``steps.arrow``.
        action, state: Parts that the derived columns were made of.

    Raises:
        FormatError: The table is missing, is not one, or has other derived columns.
    """
    return table_statistics(folder / table_file("steps"), action=action, state=state)


def table_statistics(
    path: Path, *, action: Sequence[Part], state: Sequence[Part]
) -> dict[Literal["action", "state"], Statistics]:
    """Return the same as ``split_statistics`` for a ``steps`` table at any path.

    One dimension is in memory at a time, at most 10 bytes a step.
    """
    table = open_table(path, "steps")
    vectors: dict[Literal["action", "state"], Sequence[Part]] = {"action": action, "state": state}
    return {name: _vector_statistics(table, name, parts) for name, parts in vectors.items() if parts}


def _vector_statistics(table: Table, name: str, parts: Sequence[Part]) -> Statistics:
    names = part_names(parts)
    column = table.columns.get(name)
    if column is None or column.dtype != "<f4" or column.width != len(names):
        raise FormatError(f"{table.path}: no column {name!r} of {len(names)} float32 numbers, which the registry has")
    columns = [describe_values(_read_dimension(table, name, dim)) for dim in range(len(names))]
    return Statistics(
        names=names,
        count=table.rows,
        **{key: tuple(column[key] for column in columns) for key in columns[0]},
    )


def _read_dimension(table: Table, name: str, dim: int) -> np.ndarray:
    """Return one dimension of a column. It is read, not mapped: the memory would count as this process's."""
    column = table.columns[name]
    width = column.width or 1
    out = np.empty(table.rows, np.float32)
    rows = max(1, _BLOCK // (4 * width))
    with open(table.path, "rb", buffering=0) as file:
        for start in range(0, table.rows, rows):
            count = min(rows, table.rows - start)
            file.seek(column.data + 4 * width * start)
            out[start : start + count] = np.fromfile(file, np.float32, count * width).reshape(count, width)[:, dim]
    return out


def describe_values(values: np.ndarray) -> dict[str, float | int | None]:
    """Return the statistics of one dimension, float32 [n]; ``values`` may be reordered.

    Numbers are rounded to nine digits, more than a float32 has: sums depend in their last bits on how a processor
    orders them.
    """
    counted = np.isfinite(values)
    finite = values if counted.all() else values[counted]
    nonfinite = len(values) - len(finite)
    if not len(finite):
        return {"nonfinite": nonfinite, **dict.fromkeys(("mean", "std", "min", "max", *_QUANTILES))}
    mean = _sum(finite, 0.0, power=1) / len(finite)
    numbers = {
        "mean": mean,
        "std": math.sqrt(_sum(finite, mean, power=2) / len(finite)),
        "min": float(finite.min()),
        "max": float(finite.max()),
        **_quantiles(finite),
    }
    return {"nonfinite": nonfinite, **{key: float(f"{number:.{_DIGITS}g}") for key, number in numbers.items()}}


def _sum(values: np.ndarray, less: float, *, power: int) -> float:
    chunks = (values[start : start + _CHUNK].astype(np.float64) - less for start in range(0, len(values), _CHUNK))
    return math.fsum(float((chunk**power).sum()) for chunk in chunks)


def _quantiles(values: np.ndarray) -> dict[str, float]:
    """Return the quantiles as numpy interpolates them in float64; orders the values for that."""
    places = {key: share * (len(values) - 1) for key, share in _QUANTILES.items()}
    below = {key: int(place) for key, place in places.items()}
    last = len(values) - 1
    values.partition(sorted({min(place + more, last) for place in below.values() for more in (0, 1)}))
    found = {}
    for key, place in places.items():
        low, high = float(values[below[key]]), float(values[min(below[key] + 1, last)])
        found[key] = low + (high - low) * (place - below[key])
    return found
