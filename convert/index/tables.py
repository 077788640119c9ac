"""The index of a split: merged from the parts of its shards, and cut into parts again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa

from convert.errors import ConvertError, ShardError
from convert.index.derived import derive_vector, find_fault, vector_field, vector_inputs
from convert.index.shards import Shard
from convert.registry.dataset import Vector
from stream.format.manifest import TableEntry
from stream.format.names import DERIVED, TABLE_KINDS, DerivedName, TableKind, table_file
from stream.format.schema import FIRST_FIELDS, STEP_FIELDS
from stream.format.table import open_table, write_table
from stream.storage.table_writer import one_batch

_MOST_EPISODES = (1 << 31) - 1
_AGAIN = "remove the parts of this shard and run the same command again"
_BLOCK = 16 << 20
"""Bytes of rows that are in memory at once, but for an episode that is longer."""


@dataclass(frozen=True)
class _Start:
    """First rows of a shard in the tables of its split."""

    shard: int
    episodes: int
    steps: int
    records: int

    def added(self, kind: TableKind) -> dict[str, int]:
        """Return, by column, the number to add to the numbers of a part to get those of the index."""
        numbers = {"episode": self.episodes}
        if kind != "steps":
            first_row = "first_steps_row" if kind == "episodes" else "steps_row"
            numbers |= {"shard": self.shard, first_row: self.steps}
        return numbers | ({"first_record": self.records} if kind == "episodes" else {})


def merge_index(
    folder: Path, shard_parts: Sequence[Mapping[TableKind, Path]], vectors: Mapping[DerivedName, Vector]
) -> dict[TableKind, TableEntry]:
    """Merge the parts of all shards of a split, in the manifest's order, into its index; return the tables' entries.

    Memory holds a block of episodes at a time. The files are in an existing folder, which no reader sees before this
    returns, on the disk, and a function of only rows and arguments.

    Raises:
        ShardError: A part cannot be read, or has other columns or rows than the other parts say.
    """
    if not shard_parts:
        raise ConvertError(f"{folder}: no shards, so no index")
    starts = _starts([shard["episodes"] for shard in shard_parts])

    def batches(kind: TableKind) -> Iterator[pa.RecordBatch]:
        for shard_tables, part_batch in zip(shard_parts, _renumbered_parts(shard_parts, starts, kind), strict=True):
            if kind == "steps":
                _check_parts(part_batch.schema, vectors, table_path=shard_tables[kind])
            for episode_block in _blocks(part_batch):
                yield _with_derived(episode_block, vectors) if kind == "steps" else episode_block

    return {kind: write_table(folder / table_file(kind), kind, batches(kind)) for kind in TABLE_KINDS}


def join_parts(folder: Path, pieces: Sequence[Mapping[TableKind, Path]], record_offsets: np.ndarray) -> None:
    """Join the parts of the pieces of a shard, in order, to files in an existing folder, named by their kind.

    ``record_offsets`` are byte offsets of the records in the file of the shard. Raises ShardError as ``merge_index``.
    """
    starts = [replace(start, shard=0) for start in _starts([piece_tables["episodes"] for piece_tables in pieces])]

    def batches(kind: TableKind) -> Iterator[pa.RecordBatch]:
        for start, batch in zip(starts, _renumbered_parts(pieces, starts, kind), strict=False):
            offsets = record_offsets[start.records : start.records + batch.num_rows]
            yield _with_column(batch, "position", offsets) if kind == "records" else batch

    for kind in TABLE_KINDS:
        write_table(folder / kind, kind, batches(kind))


def extract_part(shard: Shard, target: Mapping[TableKind, Path]) -> None:
    """Write the parts of one shard, cut out of the index of its split: merged again, they give the same index."""
    shard_start = _Start(shard.number, **shard.first)
    for kind in TABLE_KINDS:
        shard_table = open_table(shard.folder / table_file(kind), kind).arrow()[shard.rows(kind)]
        if kind == "steps":
            shard_table = _without_derived(shard_table)
        removed_offsets = {column: -number for column, number in shard_start.added(kind).items()}
        write_table(target[kind], kind, [_renumbered(one_batch(shard_table), removed_offsets)])


def derive_steps(folder: Path, target: Path, vectors: Mapping[DerivedName, Vector]) -> TableEntry:
    """Write ``steps`` of the index in a folder again with new derived columns, and return the manifest's entry.

    Memory holds a block of episodes at a time.

    Raises:
        ConvertError: A column of a part was not converted.
        FormatError: The table is missing or damaged.
    """
    steps_path = folder / table_file("steps")
    table = _without_derived(open_table(steps_path, "steps").arrow())
    _check_parts(table.schema, vectors, table_path=steps_path)
    return write_table(target, "steps", (_with_derived(block, vectors) for block in _blocks(one_batch(table))))


def _without_derived(table: pa.Table) -> pa.Table:
    return table.drop_columns([column for column in DERIVED if column in table.schema.names])


def _blocks(steps_batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch in blocks that end where an episode does, at least one."""
    episode_numbers = steps_batch.column("episode").to_numpy()
    rows_per_block = max(1, _BLOCK * len(episode_numbers) // max(1, steps_batch.nbytes))
    first_row = 0
    if not len(episode_numbers):
        yield steps_batch
    while first_row < len(episode_numbers):
        last_row = min(first_row + rows_per_block, len(episode_numbers)) - 1
        end_row = int(np.searchsorted(episode_numbers, episode_numbers[last_row], side="right"))
        yield steps_batch.slice(first_row, end_row - first_row)
        first_row = end_row


def _starts(part_paths: Sequence[Path]) -> list[_Start]:
    """Return the start of each shard, and of the shard that would follow."""
    shard_starts = [_Start(0, 0, 0, 0)]
    schema = None
    for part_path in part_paths:
        part_batch = _read_part(part_path, "episodes", schema)
        schema = part_batch.schema
        num_steps, num_records = (int(part_batch[column].to_numpy().sum()) for column in ("num_steps", "num_records"))
        last = shard_starts[-1]
        end_rows = (last.episodes + part_batch.num_rows, last.steps + num_steps, last.records + num_records)
        shard_starts.append(_Start(last.shard + 1, *end_rows))
    if shard_starts[-1].episodes > _MOST_EPISODES:
        raise ConvertError(f"{shard_starts[-1].episodes:,} episodes in a split, an index holds {_MOST_EPISODES:,}")
    return shard_starts


def _read_part(part_path: Path, kind: TableKind, expected: pa.Schema | None) -> pa.RecordBatch:
    try:
        # Mapped, so that the kernel can drop what was copied.
        reader = pa.ipc.open_file(pa.memory_map(str(part_path)))
        part_batch = reader.get_batch(0)
        part_batch.validate()
    except (pa.ArrowException, OSError) as error:
        detail = " ".join(str(error).split())[:300]
        raise ShardError(f"{part_path}: not a complete Arrow IPC file ({detail}); {_AGAIN}") from None
    is_first = expected is None
    expected_fields = list(FIRST_FIELDS[kind] if expected is None else expected)
    actual_fields = list(part_batch.schema)[: len(expected_fields) if is_first else None]
    for actual, field in zip_longest(actual_fields, expected_fields):
        if actual is None or field is None or not actual.equals(field, check_metadata=not is_first):
            expected_text = f"expected {field}{'' if is_first else ', as in the shards before'}"
            name = (actual or field).name
            raise ShardError(f"{part_path}: column {name!r} is {actual}, {expected_text}; {_AGAIN}")
    return part_batch


def _renumbered_parts(
    parts_by_shard: Sequence[Mapping[TableKind, Path]], starts: Sequence[_Start], kind: TableKind
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each part with their numbers in the index; ``starts`` has one more, for the end."""
    schema = None
    for shard_tables, (shard_start, next_start) in zip(parts_by_shard, pairwise(starts), strict=True):
        part_batch = _read_part(shard_tables[kind], kind, schema)
        schema = part_batch.schema
        expected_rows = getattr(next_start, kind) - getattr(shard_start, kind)
        if part_batch.num_rows != expected_rows:
            difference = f"{part_batch.num_rows:,} rows, {shard_tables['episodes'].name} says {expected_rows:,}"
            raise ShardError(f"{shard_tables[kind]}: {difference}; {_AGAIN}")
        yield _renumbered(part_batch, shard_start.added(kind))


def _renumbered(part_batch: pa.RecordBatch, added_numbers: Mapping[str, int]) -> pa.RecordBatch:
    for column, added_number in added_numbers.items():
        part_batch = _with_column(part_batch, column, part_batch[column].to_numpy() + added_number)
    return part_batch


def _with_column(batch: pa.RecordBatch, column: str, values: np.ndarray) -> pa.RecordBatch:
    """Return a batch with other numbers in a column."""
    index = batch.schema.get_field_index(column)
    field = batch.schema.field(index)
    return batch.set_column(index, field, pa.array(values, field.type))


def _with_derived(steps_batch: pa.RecordBatch, vectors: Mapping[DerivedName, Vector]) -> pa.RecordBatch:
    raw_columns = steps_batch
    for column_index, (column_name, vector) in enumerate(vectors.items(), len(STEP_FIELDS)):
        field = vector_field(column_name, vector)
        column = pa.array(derive_vector(raw_columns, vector).reshape(-1))
        if pa.types.is_fixed_size_list(field.type):
            column = pa.FixedSizeListArray.from_arrays(column, type=field.type)
        steps_batch = steps_batch.add_column(column_index, field, column)
    return steps_batch


def _check_parts(schema: pa.Schema, vectors: Mapping[DerivedName, Vector], *, table_path: Path) -> None:
    for column, vector in vectors.items():
        for part in vector_inputs(vector):
            if problem := find_fault(schema, part):
                reason = f"{column} takes {part.path}, but {problem}"
                raise ConvertError(f"{table_path}: {reason}; convert this dataset again with --overwrite")
