"""Exact statistics of actions and states over all steps of a split, of one dataset or of several together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stream.batch.vectors import Vector
from stream.format.index import open_index
from stream.format.names import VectorName, table_file
from stream.format.statistics import NUMBERS, describe_values
from stream.format.table import Table
from stream.storage.errors import ArgumentError

if TYPE_CHECKING:
    from stream.loader.mixed import MixedData

Key = VectorName
_CHUNK = 1 << 18
"""Steps that are read at once."""


@dataclass(frozen=True, eq=False)
class VectorStatistics:
    """Statistics of one vector, one number a dimension; NaN where a dimension has no value.

    Attributes:
        names: Names of the dimensions.
        count: Count of the steps.
        nonfinite: Count of the values left out because they were NaN, infinite or missing, int64 [dims].
        mean, std, min, max, q01, q99: float64 [dims].
    """

    names: tuple[str, ...]
    count: int
    nonfinite: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    min: np.ndarray
    max: np.ndarray
    q01: np.ndarray
    q99: np.ndarray


def vector_statistics(data: MixedData, key: Key, members: Sequence[int], *, split: str) -> VectorStatistics:
    """Return the statistics of a vector over all steps of a split of some members together.

    Args:
        data: Mixture.
        key: ``action`` or ``state``.
        members: Numbers of the members; their vectors have the same dimensions.
        split: TFDS split, such as ``train``.

    Raises:
        ArgumentError: A dataset has no such split.
    """
    vectors = [data.spec.vectors(key)[member] for member in members]
    column = data.spec.derived[key]
    if len(members) == 1 and vectors[0].chosen is None:
        return _from_manifest(data, key, members[0], vectors[0], split)
    tables = [_steps(data, member, key, split) for member in members]
    count = sum(table.rows for table in tables)
    found = []
    values = np.empty(count, np.float32)
    for dim in range(vectors[0].size):
        start = 0
        for table, vector in zip(tables, vectors, strict=True):
            for part in _dimension(table, vector, column, dim):
                values[start : start + len(part)] = part
                start += len(part)
        found.append(describe_values(values))
    numbers: dict[str, Any] = {name: np.array([each[name] for each in found], np.float64) for name in NUMBERS}
    nonfinite = np.array([each["nonfinite"] for each in found], np.int64)
    return VectorStatistics(names=vectors[0].names, count=count, nonfinite=nonfinite, **numbers)


def _from_manifest(data: MixedData, key: Key, member: int, vector: Vector, split: str) -> VectorStatistics:
    dataset = data.datasets[member]
    found: Any = dataset.manifest.statistics.get(split, {}).get(data.spec.derived[key])
    if found is None:
        raise _no_split(data, member, key, split)
    numbers = {name: np.array(getattr(found, name), np.float64) for name in NUMBERS}
    return VectorStatistics(
        names=vector.names, count=found.count, nonfinite=np.array(found.nonfinite, np.int64), **numbers
    )


def _no_split(data: MixedData, member: int, key: Key, split: str) -> ArgumentError:
    dataset = data.datasets[member]
    return ArgumentError(
        f"dataset {dataset.name}: no statistics of {key} in split {split!r}; splits with statistics: "
        f"{', '.join(dataset.manifest.statistics)}"
    )


def _steps(data: MixedData, member: int, key: Key, split: str) -> Table:
    dataset = data.datasets[member]
    if split not in dataset.manifest.splits:
        raise _no_split(data, member, key, split)
    if not (dataset.folder / split / table_file("steps")).exists():
        raise ArgumentError(f"dataset {dataset.name}: split {split!r} was not fetched, so it has no statistics here")
    return open_index(dataset, split, member=member).steps


def _dimension(table: Table, vector: Vector, column: str, dim: int) -> Iterator[np.ndarray]:
    """Yield the values of one dimension, float32, some steps at a time; NaN for missing ones."""
    for start in range(0, table.rows, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, table.rows))
        if vector.chosen is None:
            yield table.array(column).reshape(table.rows, vector.size)[start : rows[-1] + 1, dim]
        else:
            values, mask = vector.only(dim).take(table, rows)
            yield np.where(mask, values, np.nan)[:, 0]
