"""Exact statistics of the derived columns of a split's index; comparisons of such."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

_SPREAD_FLOOR = 0.01
"""Least unit of a robust z-score, relative to q99 - q01: with a MAD of zero, every episode would be an outlier."""
_FIGURES = ("nonfinite", *NUMBERS)
_TOLERANCE = 1e-6
"""Relative to a value and to the standard deviation: the order of sums, and so their last bits, depend on the CPU."""


def split_statistics(folder: Path, vectors: Mapping[DerivedName, Vector]) -> dict[DerivedName, Statistics]:
    """Return the statistics of the derived columns of a split; one dimension is in memory, at most 10 bytes a step.

    Raises:
        FormatError: ``steps.arrow`` in the folder is missing, damaged, or has other derived columns.
    """
    table = open_table(folder / table_file("steps"), "steps")
    return {column: _vector_statistics(table, column, vector) for column, vector in vectors.items()}


def _vector_statistics(table: Table, column_name: str, vector: Vector) -> Statistics:
    dimension_names = part_names(vector)
    column = table.columns.get(column_name)
    num_dimensions = len(dimension_names)
    if column is None or column.dtype != "<f4" or (column.width or 1) != num_dimensions:
        expected = f"{column_name!r} of {num_dimensions} float32 numbers"
        raise FormatError(f"{table.path}: no column {expected}, which the registry has")
    dimension_figures = []
    is_nonfinite = np.zeros(table.rows, bool)
    for dimension in range(num_dimensions):
        values = table.array(column_name).reshape(table.rows, num_dimensions)[:, dimension].copy()
        # Other derived columns have NaN by design, such as a motion at the last step.
        if column_name in VECTORS:
            is_nonfinite |= ~np.isfinite(values)
        dimension_figures.append(describe_values(values))
    return Statistics(
        names=dimension_names,
        count=table.rows,
        nonfinite_episodes=len(np.unique(table.array("episode")[is_nonfinite])),
        **{name: tuple(figures[name] for figures in dimension_figures) for name in dimension_figures[0]},
    )


def only_instruction(folder: Path) -> str | None:
    """Return the only instruction of the steps of a split, empty if no step has one; None if there are several."""
    table = open_table(folder / table_file("steps"), "steps")
    stored_texts = table.columns["language"].texts
    # One text, and the empty one of steps that have none.
    if stored_texts is None or not 1 <= stored_texts.count <= 2:
        return None
    instructions = sorted({table.text("language", number).strip() for number in range(stored_texts.count)})
    return instructions[-1] if instructions[0] == "" or len(instructions) == 1 else None


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
            tolerance = _TOLERANCE * (expected.std[dimension] or 0.0)
            sentences = {}
            for name in _FIGURES:
                recorded_value, computed_value = getattr(recorded, name)[dimension], getattr(expected, name)[dimension]
                if not _is_close(recorded_value, computed_value, tolerance):
                    sentences[name] = f"{name} of {dimension_name} is {recorded_value}, the steps give {computed_value}"
            if sentences:
                first_name, *further_names = sentences
                further = f"; {', '.join(further_names)} differ too" if further_names else ""
                yield vector, sentences[first_name] + further
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
    low, median, high = np.quantile(values[is_finite], (0.01, 0.5, 0.99))
    distances = np.where(is_finite, np.abs(values - median), 0)
    score_unit = max(1.4826 * float(np.median(distances[is_finite])), _SPREAD_FLOOR * float(high - low))
    return distances / score_unit if score_unit > 0 else np.zeros(len(values))
