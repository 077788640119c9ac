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
    return {column: _vector_statistics(table, column, vector) for column, vector in vectors.items()}


def _vector_statistics(table: Table, column_name: str, vector: Vector) -> Statistics:
    dimension_names = part_names(vector)
    column = table.columns.get(column_name)
    if column is None or column.dtype != "<f4" or (column.width or 1) != len(dimension_names):
        raise FormatError(
            f"{table.path}: no column {column_name!r} of {len(dimension_names)} float32 numbers, which the registry has"
        )
    dimension_figures = [
        describe_values(_read_dimension(table, column_name, dimension)) for dimension in range(len(dimension_names))
    ]
    # Derived columns may have NaN by design, such as a motion at the last step.
    nonfinite_dimensions = [
        dimension
        for dimension, figures in enumerate(dimension_figures)
        if figures["nonfinite"] and column_name in VECTORS
    ]
    return Statistics(
        names=dimension_names,
        count=table.rows,
        nonfinite_episodes=_count_episodes(table, column_name, nonfinite_dimensions) if nonfinite_dimensions else 0,
        **{name: tuple(column[name] for column in dimension_figures) for name in dimension_figures[0]},
    )


def _count_episodes(table: Table, column: str, dimensions: Sequence[int]) -> int:
    """Return the count of the episodes with a value that is not finite in some dimensions."""
    is_nonfinite = np.zeros(table.rows, bool)
    for dimension in dimensions:
        is_nonfinite |= ~np.isfinite(_read_dimension(table, column, dimension))
    return len(np.unique(table.array("episode")[is_nonfinite]))


def only_instruction(folder: Path) -> str | None:
    """Return the only instruction of the steps of a split, empty where no step has one; None where there are several.

    Raises:
        FormatError: ``steps.arrow`` is missing, or is none.
    """
    table = open_table(folder / table_file("steps"), "steps")
    stored_texts = table.columns["language"].texts
    # One text, and the empty one of steps that have none.
    if stored_texts is None or not 1 <= stored_texts.count <= 2:
        return None
    instructions = sorted({table.text("language", number).strip() for number in range(stored_texts.count)})
    return instructions[-1] if instructions[0] == "" or len(instructions) == 1 else None


def _read_dimension(table: Table, column_name: str, dimension: int) -> np.ndarray:
    """Return one dimension of a column."""
    column = table.columns[column_name]
    values_per_row = column.width or 1
    dimension_values = np.empty(table.rows, np.float32)
    rows_per_block = max(1, _BLOCK // (4 * values_per_row))
    # Read, not mapped: mapped memory would count as this process's.
    with open(table.path, "rb", buffering=0) as table_file:
        for first_row in range(0, table.rows, rows_per_block):
            num_rows = min(rows_per_block, table.rows - first_row)
            table_file.seek(column.data + 4 * values_per_row * first_row)
            dimension_values[first_row : first_row + num_rows] = np.fromfile(
                table_file, np.float32, num_rows * values_per_row
            ).reshape(num_rows, values_per_row)[:, dimension]
    return dimension_values


def differing_statistics(
    stored: Mapping[Any, Statistics], computed: Mapping[Any, Statistics]
) -> Iterator[tuple[str, str]]:
    """Yield each vector or dimension with other statistics in the manifest than the computed ones, with a sentence."""
    for vector, expected in computed.items():
        recorded = stored.get(vector)
        if recorded is None or recorded.names != expected.names:
            recorded_names = ", ".join(recorded.names) if recorded else "nothing"
            yield vector, f"has statistics of {recorded_names}, expected of {', '.join(expected.names)}"
            continue
        for figure_name in ("count", "nonfinite_episodes"):
            stored_count, computed_count = getattr(recorded, figure_name), getattr(expected, figure_name)
            if stored_count != computed_count:
                yield vector, f"{figure_name} is {stored_count:,}, the steps give {computed_count:,}"
        for dimension, dimension_name in enumerate(expected.names):
            figures = {
                figure_name: (getattr(recorded, figure_name)[dimension], getattr(expected, figure_name)[dimension])
                for figure_name in _FIGURES
            }
            tolerance = _TOLERANCE * (expected.std[dimension] or 0.0)
            if differing := [
                figure_name
                for figure_name, (recorded_value, computed_value) in figures.items()
                if not _is_close(recorded_value, computed_value, tolerance)
            ]:
                figure_name, *further_names = differing
                recorded_value, computed_value = figures[figure_name]
                sentence = f"{figure_name} of {dimension_name} is {recorded_value}, the steps give {computed_value}"
                yield vector, sentence + (f"; {', '.join(further_names)} differ too" if further_names else "")
    for vector in sorted(set(stored) - set(computed)):
        yield vector, "has statistics, the registry entry has no such vector"


def _is_close(recorded: float | None, expected: float | None, tolerance: float) -> bool:
    if recorded is None or expected is None:
        return recorded is expected
    return bool(np.isclose(recorded, expected, rtol=_TOLERANCE, atol=tolerance))


def robust_scores(values: np.ndarray) -> np.ndarray:
    """Return the distance of each value from the median, in units of the scaled median absolute deviation.

    NaN has 0. The unit is at least ``_SPREAD_FLOOR`` of q99 - q01; if both are zero, all values have 0.

    >>> robust_scores(np.array([1.0, 2.0, 3.0, 4.0, 5.0])).round(2).tolist()
    [1.35, 0.67, 0.0, 0.67, 1.35]
    """
    is_finite = np.isfinite(values)
    if not is_finite.any():
        return np.zeros(len(values))
    low_quantile, median, high_quantile = np.quantile(values[is_finite], (0.01, 0.5, 0.99))
    distances = np.where(is_finite, np.abs(values - median), 0)
    score_unit = max(
        1.4826 * float(np.median(distances[is_finite])), _SPREAD_FLOOR * float(high_quantile - low_quantile)
    )
    return distances / score_unit if score_unit > 0 else np.zeros(len(values))
