"""Exact statistics of actions and states: of a dataset as converted, or of what a loader draws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from stream.base.errors import ArgumentError
from stream.batch.spec import BatchSpec
from stream.batch.vectors import Vector
from stream.format.index import open_index
from stream.format.names import VectorName, table_file
from stream.format.statistics import NUMBERS, describe_values, describe_weighted
from stream.format.table import Table

if TYPE_CHECKING:
    from stream.format.catalog import Dataset
    from stream.order.sample_index import SampleIndex

Per = Literal["dataset", "robot", "mixture"]
Over = Literal["dataset", "samples"]
_CHUNK = 1 << 18
"""Steps that are read at once."""


class Mixture(Protocol):
    """An open mixture, as a loader has it in ``data``."""

    names: tuple[str, ...]
    datasets: tuple[Dataset, ...]
    views: SampleIndex
    phase_weights: list[list[float]]

    @property
    def spec(self) -> BatchSpec:
        """Content of a batch."""
        ...


@dataclass(frozen=True, eq=False)
class VectorStatistics:
    """Statistics of one vector, one number a dimension; NaN where a dimension has no value.

    Attributes:
        names: Names of the dimensions.
        count: Count of the steps.
        mean, std, min, max, q01, q99: float64 [dims]. Those of our own data are numbers that a float32 has, so that a
            constant value minus its mean is 0.
        mask: Dimensions that are normalised, bool [dims].
        source: JSON of ``used_data``, what the numbers depend on; of another trainer's file the dimensions alone.
    """

    names: tuple[str, ...]
    count: int
    mean: np.ndarray
    std: np.ndarray
    min: np.ndarray
    max: np.ndarray
    q01: np.ndarray
    q99: np.ndarray
    mask: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    source: Mapping[str, Any] = field(default_factory=dict)


Statistics = Mapping[Any, Mapping[str, VectorStatistics]]
"""Statistics by vector and dataset."""


@dataclass(frozen=True, eq=False)
class _Part:
    """Some steps of a split.

    Attributes:
        table: Table ``steps``.
        rows: Rows of the table, n of them.
        vector: Vector, of columns of the table.
        weight: Weight of every step, or of each of them, float64 [n].
    """

    table: Table
    rows: range | np.ndarray
    vector: Vector
    weight: float | np.ndarray

    def values(self, dim: int) -> Iterator[np.ndarray]:
        """Yield the values of one dimension, float32, some steps at a time; NaN for missing ones."""
        for start in range(0, len(self.rows), _CHUNK):
            values, mask = self.vector.only(dim).take(self.table, np.asarray(self.rows[start : start + _CHUNK]))
            yield np.where(mask, values, np.nan)[:, 0]


def measure(data: Mixture, key: VectorName, *, per: Per, over: Over, split: str) -> dict[str, VectorStatistics]:
    """Return the statistics of each dataset that has the vector, by name.

    Args:
        data: Mixture.
        key: Vector.
        per: Datasets that are taken together; those of a mixture count by the weights of its last phase.
        over: ``dataset`` counts all steps of a split; ``samples`` counts the step t of each sample of the first epoch,
            by its weight if samples have weights.
        split: TFDS split, for ``over="dataset"``.

    Raises:
        ArgumentError: A dataset has no such split, or datasets that are taken together have other dimensions.
    """
    vectors = data.spec.vectors(key)
    groups: dict[Any, list[int]] = {}
    for member, vector in enumerate(vectors):
        if vector.size:
            # A dataset whose episodes name several robots is a group of its own.
            robot = data.datasets[member].manifest.spec.get("robot") or member
            group: dict[Per, Any] = {"dataset": member, "robot": robot, "mixture": ""}
            groups.setdefault(group[per], []).append(member)
    found: dict[str, VectorStatistics] = {}
    for members in groups.values():
        first = members[0]
        for member in members[1:]:
            if vectors[member].names != vectors[first].names:
                raise ArgumentError(
                    f"per={per!r}: {key} of {data.names[member]} is {', '.join(vectors[member].names)}, that of "
                    f"{data.names[first]} is {', '.join(vectors[first].names)}; take one {key}_space for all, or "
                    "per='dataset'"
                )
        if over == "dataset" and len(members) == 1 and vectors[first].chosen is None:
            together = _from_manifest(data, key, first, split)
        else:
            together = _combine(_parts(data, key, members, over=over, split=split, weighted=per == "mixture"))
        found |= {data.names[member]: together for member in members}
    return found


def mixture_statistics(data: Mixture, *, split: str) -> dict[VectorName, dict[str, np.ndarray]]:
    """Return the statistics of all members together, float32 [dims] by name and vector.

    Raises:
        ArgumentError: As for ``measure``.
    """
    found = {}
    for key in data.spec.vector_names:
        one = next(iter(measure(data, key, per="mixture", over="dataset", split=split).values()))
        found[key] = {name: getattr(one, name).astype(np.float32) for name in NUMBERS}
    return found


def used_data(data: Mixture, key: VectorName, member: int, splits: Iterable[str]) -> dict[str, Any]:
    """Return what the statistics of a vector depend on, as JSON: its dimensions, its columns, and their content."""
    dataset, vector = data.datasets[member], _columns(data, key, member)
    columns = [[column, list(indices)] for column, indices in vector.chosen or ()]
    content = {
        split: dataset.fingerprint((split, "steps", column) for column, _ in vector.chosen or ())
        for split in splits
        if split in dataset.manifest.splits
    }
    return {"names": list(vector.names), "columns": columns, "content": content}


def used_splits(data: Mixture, member: int, *, over: Over, split: str) -> list[str]:
    """Return the names of the splits that the statistics of a member are of."""
    return [split] if over == "dataset" else sorted({index.split for index in data.views.splits_of(member)})


def _columns(data: Mixture, key: VectorName, member: int) -> Vector:
    """Return the vector of a member with its columns, also where no caller chose them."""
    vector = data.spec.vectors(key)[member]
    return vector if vector.chosen else replace(vector, chosen=((data.spec.derived[key], tuple(range(vector.size))),))


def _from_manifest(data: Mixture, key: VectorName, member: int, split: str) -> VectorStatistics:
    found: Any = data.datasets[member].manifest.statistics.get(split, {}).get(data.spec.derived[key])
    if found is None:
        raise _no_split(data, member, key, split)
    return _statistics(data.spec.vectors(key)[member].names, found.count, vars(found))


def _statistics(names: Sequence[str], count: int, found: Mapping[str, Any]) -> VectorStatistics:
    numbers: Any = {name: np.array(found[name], np.float32).astype(np.float64) for name in NUMBERS}
    return VectorStatistics(names=tuple(names), count=count, **numbers)


def _combine(parts: Sequence[_Part]) -> VectorStatistics:
    counts = [len(part.rows) for part in parts]
    is_even = all(isinstance(part.weight, float) and part.weight == parts[0].weight for part in parts)
    weights = [] if is_even else [np.broadcast_to(part.weight, len(part.rows)) for part in parts]
    values = np.empty(sum(counts), np.float32)
    found = []
    for dim in range(parts[0].vector.size):
        start = 0
        for chunk in (chunk for part in parts for chunk in part.values(dim)):
            values[start : start + len(chunk)] = chunk
            start += len(chunk)
        found.append(describe_values(values) if is_even else describe_weighted(values, np.concatenate(weights)))
    return _statistics(parts[0].vector.names, len(values), {name: [each[name] for each in found] for name in NUMBERS})


def _parts(
    data: Mixture, key: VectorName, members: Sequence[int], *, over: Over, split: str, weighted: bool
) -> list[_Part]:
    """Return the steps that count; two members of one dataset count its steps once, or with both weights."""
    parts: dict[Any, _Part] = {}
    for member in members:
        vector = _columns(data, key, member)
        tables = _drawn(data, member) if over == "samples" else _steps(data, member, key, split)
        steps = sum(len(rows) for _, rows, _ in tables)
        weight = data.phase_weights[-1][member] / max(steps, 1) if weighted else 1.0
        for table, rows, counts in tables:
            own = member if weighted or over == "samples" else None
            parts[own, table.path, vector.chosen] = _Part(table, rows, vector, weight * counts)
    return list(parts.values())


def _steps(data: Mixture, member: int, key: VectorName, split: str) -> list[tuple[Table, Any, Any]]:
    """Return the table ``steps`` of a split, all its rows, and how often they count."""
    dataset = data.datasets[member]
    if split not in dataset.manifest.splits:
        raise _no_split(data, member, key, split)
    if not (dataset.folder / split / table_file("steps")).exists():
        raise ArgumentError(f"dataset {dataset.name}: split {split!r} was not fetched, so it has no statistics here")
    table = open_index(dataset, split, member=member).steps
    return [(table, range(table.rows), 1.0)]


def _drawn(data: Mixture, member: int) -> list[tuple[Table, Any, Any]]:
    """Return each table ``steps``, the rows of the samples of the first epoch, and how often they count."""
    views, size = data.views, int(data.views.sizes[member])
    counts: list[Any] = []
    if member in views.weights.members:
        drawn = list(views.samples(member))
        counts = np.split(size * views.weights.shares(member), np.cumsum([len(rows) for _, rows in drawn])[:-1])
    else:
        position = np.arange(size)
        same = np.zeros_like(position)
        splits, rows = views.locate(same + member, same, position, seed=data.spec.seed, shuffle=True)
        drawn = [(number, rows[splits == number]) for number in np.unique(splits).tolist()]
        counts = [1.0] * len(drawn)
    found = []
    for (number, rows), count in zip(drawn, counts, strict=True):
        index = views.splits[number]
        own = index.records.take("steps_row", rows) if data.spec.layouts[member] == "pairs" else rows
        found.append((index.steps, own, count))
    return found


def _no_split(data: Mixture, member: int, key: VectorName, split: str) -> ArgumentError:
    dataset = data.datasets[member]
    return ArgumentError(
        f"dataset {dataset.name}: no statistics of {key} in split {split!r}; splits with statistics: "
        f"{', '.join(dataset.manifest.statistics)}"
    )
