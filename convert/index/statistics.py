"""Exact statistics of the derived columns of a split's index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from convert.index.derived import Vector, part_names
from convert.registry.dataset import Part
from convert.registry.space import MappedVector
from stream.format.manifest import Statistics
from stream.format.names import DerivedName, table_file
from stream.format.statistics import describe_values
from stream.format.table import Table, open_table
from stream.storage.errors import FormatError

_BLOCK = 4 << 20


def split_statistics(
    folder: Path,
    *,
    action: Sequence[Part],
    state: Sequence[Part],
    mapped: Mapping[DerivedName, MappedVector] | None = None,
) -> dict[DerivedName, Statistics]:
    """Return the statistics of the derived vectors of a split, except of a vector without parts.

    One dimension is in memory at a time, at most 10 bytes a step.

    Args:
        folder: Folder of the split, with ``steps.arrow``.
        action: Parts of the derived column ``action``.
        state: Parts of the derived column ``state``.
        mapped: Derived columns in canonical spaces.

    Raises:
        FormatError: The table is missing, is not one, or has other derived columns.
    """
    table = open_table(folder / table_file("steps"), "steps")
    vectors: dict[DerivedName, Vector] = {"action": action, "state": state, **(mapped or {})}
    return {name: _vector_statistics(table, name, vector) for name, vector in vectors.items() if vector}


def _vector_statistics(table: Table, name: str, vector: Vector) -> Statistics:
    names = part_names(vector)
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
