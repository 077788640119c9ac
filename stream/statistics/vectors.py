"""Exact statistics of actions and states: of a converted dataset, or of the samples that a loader draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from stream.base.errors import ArgumentError
from stream.batch.vectors import DatasetVector
from stream.format.index import open_index
from stream.format.names import VectorName, table_file
from stream.format.statistics import NUMBERS, describe_values, describe_weighted
from stream.format.table import Table
from stream.sample.relative import RelativeVector
from stream.statistics.chunks import Chunks, ChunkSource, ChunkSteps, Tails, describe_chunks, read_sources
from stream.statistics.groups import Per, SharedColumns, group_members
from stream.statistics.mixture import Mixture
from stream.statistics.transformed import TransformedVectors

Over = Literal["dataset", "samples"]
_CHUNK = 1 << 18
"""Steps that are read at once."""


@dataclass(frozen=True, eq=False)
class VectorStatistics:
    """Statistics of one vector, one number a dimension; NaN where a dimension has no value.

    Attributes:
        names: Names of the dimensions.
        count: Count of the steps.
        mean, std, min, max, q01, q99: float64 [dims]. Statistics of converted data are exact in float32, so that a
            constant value minus its mean is 0.
        mask: Dimensions that are normalised, bool [dims].
        source: Data that the numbers depend on, as JSON of ``used_data``; of a trainer's file the dimensions only.
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
        vector: DatasetVector, of columns of the table.
        weight: Weight of every step, or of each of them, float64 [n].
        dims: Dimension of the vector in each column of the statistics, -1 for none.
    """

    table: Table
    rows: range | np.ndarray
    vector: DatasetVector
    weight: float | np.ndarray
    dims: tuple[int, ...]

    def values(self, dim: int) -> Iterator[np.ndarray]:
        """Yield the values of one dimension, float32, some steps at a time; NaN for missing ones."""
        for first_row in range(0, len(self.rows), _CHUNK):
            values, mask = self.vector.only(dim).take(self.table, np.asarray(self.rows[first_row : first_row + _CHUNK]))
            yield np.where(mask, values, np.nan)[:, 0]


def measure(
    mixture: Mixture,
    vector_key: VectorName,
    *,
    per: Per,
    over: Over,
    split: str,
    tails: Tails = "real",
    transformed: TransformedVectors | None = None,
) -> dict[str, VectorStatistics]:
    """Return the statistics of each dataset that has the vector, by name.

    Args:
        mixture: Mixture.
        vector_key: Vector.
        per: Datasets that are taken together. Datasets of a mixture count by the weights of its last phase.
        over: ``dataset`` counts all steps of a split; ``samples`` counts the step t of each sample of the first epoch,
            by its weight if samples have weights.
        split: TFDS split, for ``over="dataset"``.
        tails: Chunks that count at the end of an episode; see ``counts_chunks``.
        transformed: Vectors after transforms, whose statistics are taken instead.

    Raises:
        ArgumentError: A dataset has no such split, or datasets that are taken together have other dimensions.
    """
    vectors = mixture.spec.vectors(vector_key)
    by_dataset: dict[str, VectorStatistics] = {}
    for members in group_members(mixture, vector_key, per=per):
        columns = SharedColumns(mixture, vector_key, members, per=per)
        if transformed is not None:
            statistics = _of_transformed(mixture, vector_key, columns, transformed, per=per)
        elif counts_chunks(mixture, vector_key, tails):
            statistics = _of_chunks(mixture, vector_key, columns, over=over, split=split, tails=tails, per=per)
        elif over == "dataset" and len(members) == 1 and vectors[members[0]].chosen is None:
            statistics = _from_manifest(mixture, vector_key, members[0], split)
        else:
            statistics = _combine(
                _parts(mixture, vector_key, columns, over=over, split=split, weighted=per == "mixture")
            )
        for member in members:
            names = vectors[member].names
            numbers: Any = {name: columns.pick(getattr(statistics, name), member, size=len(names)) for name in NUMBERS}
            by_dataset[mixture.names[member]] = replace(statistics, names=names, **numbers)
    return by_dataset


def mixture_statistics(
    mixture: Mixture, *, split: str, tails: Tails = "real"
) -> dict[VectorName, dict[str, np.ndarray]]:
    """Return the statistics of all members together, float32 [dims] or [W, dims] by name and vector.

    Raises:
        ArgumentError: As for ``measure``.
    """
    numbers_by_vector = {}
    for vector_key in mixture.spec.vector_names:
        by_dataset = measure(mixture, vector_key, per="mixture", over="dataset", split=split, tails=tails)
        statistics = next(iter(by_dataset.values()))
        numbers_by_vector[vector_key] = {name: getattr(statistics, name).astype(np.float32) for name in NUMBERS}
    return numbers_by_vector


def counts_chunks(mixture: Mixture, vector_key: VectorName, tails: Tails) -> bool:
    """Return whether the statistics of a vector count the steps of chunks, not each step of the data once.

    They do for a vector that is relative or has another form, and for windows of all others where tails or each step of
    the chunk make a difference.
    """
    spec, span = mixture.spec, mixture.spec.span_of(vector_key)
    if vector_key in spec.relative:
        return True
    is_reduced = vector_key == "action" and (spec.reduction is not None or spec.has_intervals)
    has_window = any(first or length > 1 for first, length in zip(span.firsts, span.lengths, strict=True))
    return has_window and not is_reduced and (tails != "real" or vector_key in spec.per_step)


def used_data(
    mixture: Mixture, vector_key: VectorName, member: int, splits: Iterable[str], *, has_steps: bool = False
) -> dict[str, Any]:
    """Return the data that the statistics of a vector depend on, as JSON: its dimensions, columns and their content.

    Args:
        mixture: Mixture.
        vector_key: Vector.
        member: Number of the dataset.
        splits: Splits of the statistics.
        has_steps: Whether they depend on the steps of the chunk; those of relative vectors always do.
    """
    dataset, vector = mixture.datasets[member], _columns(mixture, vector_key, member)
    conversions = mixture.spec.relative.get(vector_key)
    columns = list(vector.chosen or ())
    if conversions and conversions[member].needs_state:
        columns += _columns(mixture, "reference", member).chosen or ()
    chosen_columns = [[column_name, list(indices)] for column_name, indices in columns]
    content = {
        split: dataset.fingerprint((split, "steps", column_name) for column_name, _ in columns)
        for split in splits
        if split in dataset.manifest.splits
    }
    names = list(mixture.spec.vectors(vector_key)[member].names)
    used: dict[str, Any] = {"names": names, "columns": chosen_columns, "content": content}
    if conversions:
        used["conversion"] = conversions[member].to_json()
    if conversions or has_steps:
        steps = _chunk_steps(mixture, vector_key, member, "real")
        used["steps"] = [steps.start, steps.length]
        if steps.stride != 1 or steps.repeats_edges:
            used["steps"] += [steps.stride, "repeat" if steps.repeats_edges else "mask"]
    return used


def used_splits(mixture: Mixture, member: int, *, over: Over, split: str) -> list[str]:
    """Return the names of the splits whose statistics are taken."""
    return [split] if over == "dataset" else sorted({index.split for index in mixture.sample_index.splits_of(member)})


def _of_chunks(
    mixture: Mixture,
    vector_key: VectorName,
    columns: SharedColumns,
    *,
    over: Over,
    split: str,
    tails: Tails,
    per: Per,
) -> VectorStatistics:
    """Return the statistics of chunks of members together."""
    spec = mixture.spec
    parts: dict[Any, tuple[float, Callable[[], Chunks]]] = {}
    for member in columns.dims:
        conversion = spec.relative[vector_key][member] if vector_key in spec.relative else None
        vector = _columns(mixture, vector_key, member)
        state = _columns(mixture, "reference", member) if conversion and conversion.needs_state else None
        tables = _drawn(mixture, member) if over == "samples" else _steps(mixture, member, vector_key, split)
        num_steps = sum(len(rows) for _, rows, _ in tables)
        weight = mixture.phase_weights[-1][member] / max(num_steps, 1) if per == "mixture" else 1.0
        for table, rows, counts in tables:
            if not isinstance(counts, float):
                raise ArgumentError(
                    "over='samples' with sample_weights: statistics of relative vectors count each sample once; take "
                    "over='dataset'"
                )
            chosen = np.sort(np.asarray(rows)) if over == "samples" else None
            part_member = member if per == "mixture" or over == "samples" else None
            read = partial(read_sources, table, vector, state, chosen)
            steps = _chunk_steps(mixture, vector_key, member, tails)
            pools = conversion is None and vector_key not in spec.per_step
            make_chunks = partial(_counted, read, steps) if pools else partial(_chunks, read, conversion, steps)
            key = part_member, table.path, vector.chosen
            parts[key] = weight, partial(_spread, columns, member, make_chunks)
    statistics = _describe(mixture, vector_key, columns, list(parts.values()))
    if tails == "complete" and columns.count and not statistics.count:
        members = list(columns.dims)
        raise ArgumentError(
            f"{vector_key} of {', '.join(mixture.names[member] for member in members)}: no complete chunk of "
            f"{spec.span_of(vector_key).lengths[members[0]]} steps has values; take fewer steps, or tails='real'"
        )
    if vector_key in spec.relative:
        return statistics
    return _statistics(statistics.count, vars(statistics))


def _of_transformed(
    mixture: Mixture, vector_key: VectorName, columns: SharedColumns, transformed: TransformedVectors, *, per: Per
) -> VectorStatistics:
    """Return the statistics of a vector of members together after transforms."""
    parts = []
    for member in columns.dims:
        num_samples = int(mixture.sample_index.sizes[member])
        weight = mixture.phase_weights[-1][member] / max(num_samples, 1) if per == "mixture" else 1.0
        parts.append((weight, partial(_spread, columns, member, transformed.chunks(vector_key, member))))
    return _describe(mixture, vector_key, columns, parts)


def _describe(
    mixture: Mixture,
    vector_key: VectorName,
    columns: SharedColumns,
    parts: Sequence[tuple[float, Callable[[], Chunks]]],
) -> VectorStatistics:
    numbers: Any = describe_chunks(parts, columns.count, per_step=vector_key in mixture.spec.per_step)
    return VectorStatistics(names=(), count=int(numbers.pop("count").max(initial=0)), **numbers)


def _spread(columns: SharedColumns, member: int, make_chunks: Callable[[], Chunks]) -> Chunks:
    yield from columns.spread(make_chunks(), member)


def _chunk_steps(mixture: Mixture, vector_key: VectorName, member: int, tails: Tails) -> ChunkSteps:
    span = mixture.spec.span_of(vector_key)
    return ChunkSteps(
        start=span.firsts[member],
        length=span.lengths[member],
        stride=span.strides[member],
        repeats_edges=vector_key in mixture.spec.repeated_edges,
        tails=tails,
    )


def _chunks(read: Callable[[], Iterator[ChunkSource]], conversion: RelativeVector | None, steps: ChunkSteps) -> Chunks:
    for source in read():
        yield from source.chunks(conversion, steps)


def _counted(read: Callable[[], Iterator[ChunkSource]], steps: ChunkSteps) -> Chunks:
    for source in read():
        yield from source.counted(steps)


def _columns(mixture: Mixture, vector_key: str, member: int) -> DatasetVector:
    """Return the stored vector of a member with its columns, also where no caller chose them."""
    vector = mixture.spec.read_vectors[vector_key][member]
    derived = mixture.spec.derived[vector_key], tuple(range(vector.size))
    return vector if vector.chosen else replace(vector, chosen=(derived,))


def _from_manifest(mixture: Mixture, vector_key: VectorName, member: int, split: str) -> VectorStatistics:
    statistics: Any = mixture.datasets[member].manifest.statistics.get(split, {}).get(mixture.spec.derived[vector_key])
    if statistics is None:
        raise _no_split(mixture, member, vector_key, split)
    return _statistics(statistics.count, vars(statistics))


def _statistics(count: int, numbers_by_name: Mapping[str, Any]) -> VectorStatistics:
    arrays: Any = {name: np.array(numbers_by_name[name], np.float32).astype(np.float64) for name in NUMBERS}
    return VectorStatistics(names=(), count=count, **arrays)


def _combine(parts: Sequence[_Part]) -> VectorStatistics:
    memory = np.empty(sum(len(part.rows) for part in parts), np.float32)
    numbers_by_column = []
    for column in range(len(parts[0].dims)):
        column_parts = [part for part in parts if part.dims[column] >= 0]
        num_values = 0
        for chunk in (chunk for part in column_parts for chunk in part.values(part.dims[column])):
            memory[num_values : num_values + len(chunk)] = chunk
            num_values += len(chunk)
        values, first_weight = memory[:num_values], column_parts[0].weight
        if all(isinstance(part.weight, float) and part.weight == first_weight for part in column_parts):
            numbers_by_column.append(describe_values(values))
        else:
            weights = [np.broadcast_to(part.weight, len(part.rows)) for part in column_parts]
            numbers_by_column.append(describe_weighted(values, np.concatenate(weights)))
    numbers_by_name = {name: [numbers[name] for numbers in numbers_by_column] for name in NUMBERS}
    return _statistics(len(memory), numbers_by_name)


def _parts(
    mixture: Mixture, vector_key: VectorName, columns: SharedColumns, *, over: Over, split: str, weighted: bool
) -> list[_Part]:
    """Return the steps that count; two members of one dataset count its steps once, or with both weights."""
    parts: dict[Any, _Part] = {}
    for member, dims in columns.dims.items():
        vector = _columns(mixture, vector_key, member)
        tables = _drawn(mixture, member) if over == "samples" else _steps(mixture, member, vector_key, split)
        steps = sum(len(rows) for _, rows, _ in tables)
        weight = mixture.phase_weights[-1][member] / max(steps, 1) if weighted else 1.0
        for table, rows, counts in tables:
            part_member = member if weighted or over == "samples" else None
            parts[part_member, table.path, vector.chosen] = _Part(table, rows, vector, weight * counts, dims)
    return list(parts.values())


def _steps(mixture: Mixture, member: int, vector_key: VectorName, split: str) -> list[tuple[Table, Any, Any]]:
    """Return the table ``steps`` of a split, all its rows, and how often they count."""
    dataset = mixture.datasets[member]
    if split not in dataset.manifest.splits:
        raise _no_split(mixture, member, vector_key, split)
    if not (dataset.folder / split / table_file("steps")).exists():
        raise ArgumentError(f"dataset {dataset.name}: split {split!r} was not fetched, so it has no statistics here")
    table = open_index(dataset, split, member=member).steps
    return [(table, range(table.rows), 1.0)]


def _drawn(mixture: Mixture, member: int) -> list[tuple[Table, Any, Any]]:
    """Return each table ``steps``, the rows of the samples of the first epoch, and how often they count."""
    sample_index, num_samples = mixture.sample_index, int(mixture.sample_index.sizes[member])
    split_counts: list[Any] = []
    if member in sample_index.weights.members:
        rows_by_split = list(sample_index.samples(member))
        split_stops = np.cumsum([len(rows) for _, rows in rows_by_split])
        split_counts = np.split(num_samples * sample_index.weights.shares(member), split_stops[:-1])
    else:
        position, epoch = np.arange(num_samples), np.zeros(num_samples, np.int64)
        splits, rows = sample_index.locate(epoch + member, epoch, position, seed=mixture.spec.seed, shuffle=True)
        rows_by_split = [(split_number, rows[splits == split_number]) for split_number in np.unique(splits).tolist()]
        split_counts = [1.0] * len(rows_by_split)
    tables = []
    for (split_number, rows), split_count in zip(rows_by_split, split_counts, strict=True):
        split_index = sample_index.splits[split_number]
        table_rows = split_index.records.take("steps_row", rows) if mixture.spec.layouts[member] == "pairs" else rows
        tables.append((split_index.steps, table_rows, split_count))
    return tables


def _no_split(mixture: Mixture, member: int, vector_key: VectorName, split: str) -> ArgumentError:
    dataset = mixture.datasets[member]
    return ArgumentError(
        f"dataset {dataset.name}: no statistics of {vector_key} in split {split!r}; splits with statistics: "
        f"{', '.join(dataset.manifest.statistics)}"
    )
