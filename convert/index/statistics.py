"""Exact statistics of the derived columns of a split's index; comparisons of such."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert.index.derived import part_names
from convert.registry.dataset import Vector
from stream.base.errors import FormatError
from stream.format.manifest import Statistics
from stream.format.names import VECTORS, DerivedName, table_file
from stream.format.statistics import NUMBERS, describe_values
from stream.format.table import Table, open_table

_BLOCK = 4 << 20
_SPREAD_FLOOR = 0.01
"""Least unit of a robust z-score, relative to q99 - q01: with a MAD of zero, every episode would be an outlier."""
_FIGURES = ("nonfinite", *NUMBERS)
_TOLERANCE = 1e-6
"""Relative to a value and to the standard deviation: the order of sums, and so their last bits, depend on the CPU."""


def split_statistics(folder: Path, vectors: Mapping[DerivedName, Vector]) -> dict[DerivedName, Statistics]:
    """Return the statistics of the derived columns of a split.

    One dimension is in memory at a time, at most 10 bytes a step.

    Args:
        folder: Folder of the split, with ``steps.arrow``.
        vectors: What each derived column is made of.

    Raises:
        FormatError: The table is missing, is not one, or has other derived columns.
    """
    table = open_table(folder / table_file("steps"), "steps")
    return {name: _vector_statistics(table, name, vector) for name, vector in vectors.items()}


def _vector_statistics(table: Table, name: str, vector: Vector) -> Statistics:
    names = part_names(vector)
    column = table.columns.get(name)
    if column is None or column.dtype != "<f4" or (column.width or 1) != len(names):
        raise FormatError(f"{table.path}: no column {name!r} of {len(names)} float32 numbers, which the registry has")
    columns = [describe_values(_read_dimension(table, name, dim)) for dim in range(len(names))]
    # Derived columns may have NaN by design, such as a motion at the last step.
    wrong = [dim for dim, found in enumerate(columns) if found["nonfinite"] and name in VECTORS]
    return Statistics(
        names=names,
        count=table.rows,
        nonfinite_episodes=_count_episodes(table, name, wrong) if wrong else 0,
        **{key: tuple(column[key] for column in columns) for key in columns[0]},
    )


def _count_episodes(table: Table, name: str, dims: Sequence[int]) -> int:
    """Return the count of the episodes with a value that is not finite in some dimensions."""
    wrong = np.zeros(table.rows, bool)
    for dim in dims:
        wrong |= ~np.isfinite(_read_dimension(table, name, dim))
    return len(np.unique(table.array("episode")[wrong]))


def only_instruction(folder: Path) -> str | None:
    """Return the only instruction of the steps of a split, empty where no step has one; None where there are several.

    Raises:
        FormatError: ``steps.arrow`` is missing, or is none.
    """
    table = open_table(folder / table_file("steps"), "steps")
    stored = table.columns["language"].texts
    # One text, and the empty one of steps that have none.
    if stored is None or not 1 <= stored.count <= 2:
        return None
    texts = sorted({table.text("language", number).strip() for number in range(stored.count)})
    return texts[-1] if texts[0] == "" or len(texts) == 1 else None


def _read_dimension(table: Table, name: str, dim: int) -> np.ndarray:
    """Return one dimension of a column."""
    column = table.columns[name]
    width = column.width or 1
    out = np.empty(table.rows, np.float32)
    rows = max(1, _BLOCK // (4 * width))
    # Read, not mapped: mapped memory would count as this process's.
    with open(table.path, "rb", buffering=0) as file:
        for start in range(0, table.rows, rows):
            count = min(rows, table.rows - start)
            file.seek(column.data + 4 * width * start)
            out[start : start + count] = np.fromfile(file, np.float32, count * width).reshape(count, width)[:, dim]
    return out


def differing_statistics(
    stored: Mapping[Any, Statistics], computed: Mapping[Any, Statistics]
) -> Iterator[tuple[str, str]]:
    """Yield each vector or dimension with other statistics in the manifest than the computed ones, with a sentence."""
    for vector, expected in computed.items():
        found = stored.get(vector)
        if found is None or found.names != expected.names:
            names = ", ".join(found.names) if found else "nothing"
            yield vector, f"has statistics of {names}, expected of {', '.join(expected.names)}"
            continue
        for key in ("count", "nonfinite_episodes"):
            stored_count, count = getattr(found, key), getattr(expected, key)
            if stored_count != count:
                yield vector, f"{key} is {stored_count:,}, the steps give {count:,}"
        for dim, name in enumerate(expected.names):
            figures = {key: (getattr(found, key)[dim], getattr(expected, key)[dim]) for key in _FIGURES}
            slack = _TOLERANCE * (expected.std[dim] or 0.0)
            if differing := [key for key, (one, other) in figures.items() if not _is_close(one, other, slack)]:
                key, *others = differing
                told = f"{key} of {name} is {figures[key][0]}, the steps give {figures[key][1]}"
                yield vector, told + (f"; {', '.join(others)} differ too" if others else "")
    for vector in sorted(set(stored) - set(computed)):
        yield vector, "has statistics, the registry entry has no such vector"


def _is_close(found: float | None, expected: float | None, slack: float) -> bool:
    if found is None or expected is None:
        return found is expected
    return bool(np.isclose(found, expected, rtol=_TOLERANCE, atol=slack))


def robust_scores(values: np.ndarray) -> np.ndarray:
    """Return the distance of each value from the median, in units of the scaled median absolute deviation.

    NaN has 0. The unit is at least ``_SPREAD_FLOOR`` of q99 - q01; if both are zero, all values have 0.

    >>> robust_scores(np.array([1.0, 2.0, 3.0, 4.0, 5.0])).round(2).tolist()
    [1.35, 0.67, 0.0, 0.67, 1.35]
    """
    finite = np.isfinite(values)
    if not finite.any():
        return np.zeros(len(values))
    low, middle, high = np.quantile(values[finite], (0.01, 0.5, 0.99))
    apart = np.where(finite, np.abs(values - middle), 0)
    unit = max(1.4826 * float(np.median(apart[finite])), _SPREAD_FLOOR * float(high - low))
    return apart / unit if unit > 0 else np.zeros(len(values))
