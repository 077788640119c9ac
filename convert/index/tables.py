"""The index of a split: merged from the parts of its shards, and cut into parts again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
        columns = {
            "episodes": {
                "episode": self.episodes,
                "shard": self.shard,
                "first_steps_row": self.steps,
                "first_record": self.records,
            },
            "steps": {"episode": self.episodes},
            "records": {"shard": self.shard, "episode": self.episodes, "steps_row": self.steps},
        }
        return columns[kind]


def merge_index(
    folder: Path, shard_parts: Sequence[Mapping[TableKind, Path]], vectors: Mapping[DerivedName, Vector]
) -> dict[TableKind, TableEntry]:
    """Merge the parts of all shards of a split into its index; memory holds a block of episodes at a time.

    Args:
        folder: Existing folder to write the tables to, which no reader sees before this returns.
        shard_parts: Parts of each shard, in the manifest's order of shards.
        vectors: What each derived column is made of.

    Returns:
        The manifest's entries of the tables. The files are on the disk, and a function of only rows and arguments.

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
    """Join the parts of the pieces of a shard to files in ``folder``, named by their kind.

    Args:
        folder: Existing folder.
        pieces: Parts of each piece, in the order of its episodes.
        record_offsets: Byte offset of each record in the file of the shard.

    Raises:
        ShardError: A part cannot be read, or has other columns or rows than the other parts say.
    """
    starts = [
        replace(piece_start, shard=0) for piece_start in _starts([piece_tables["episodes"] for piece_tables in pieces])
    ]

    def batches(kind: TableKind) -> Iterator[pa.RecordBatch]:
        for piece_start, part_batch in zip(starts, _renumbered_parts(pieces, starts, kind), strict=False):
            if kind == "records":
                column_index = part_batch.schema.get_field_index("position")
                arrow_column = part_batch.schema.field(column_index)
                piece_offsets = record_offsets[piece_start.records : piece_start.records + part_batch.num_rows]
                part_batch = part_batch.set_column(
                    column_index, arrow_column, pa.array(piece_offsets, arrow_column.type)
                )
            yield part_batch

    for kind in TABLE_KINDS:
        write_table(folder / kind, kind, batches(kind))


def extract_part(shard: Shard, target: Mapping[TableKind, Path]) -> None:
    """Write the parts of one shard, cut out of the index of its split: merged again, they give the same index.

    Args:
        shard: Shard of a split whose index is what the manifest says.
        target: Files to write.

    Raises:
        FormatError: A table of the index is missing or is not one.
    """
    shard_start = _Start(shard.number, **shard.first)
    for kind in TABLE_KINDS:
        shard_table = open_table(shard.folder / table_file(kind), kind).arrow()[shard.rows(kind)]
        shard_table = shard_table.drop_columns(
            [column for column in DERIVED if kind == "steps" and column in shard_table.schema.names]
        )
        removed_offsets = {column: -number for column, number in shard_start.added(kind).items()}
        write_table(target[kind], kind, [_renumbered(one_batch(shard_table), removed_offsets)])


def derive_steps(folder: Path, target: Path, vectors: Mapping[DerivedName, Vector]) -> TableEntry:
    """Write ``steps`` of an index again with new derived columns; memory holds a block of episodes at a time.

    Args:
        folder: Folder of the split.
        target: File to write.
        vectors: What each derived column is made of.

    Returns:
        The manifest's entry of the new table.

    Raises:
        ConvertError: A column of a part was not converted.
        FormatError: The table is missing or is not one.
    """
    steps_path = folder / table_file("steps")
    table = open_table(steps_path, "steps").arrow()
    table = table.drop_columns([column for column in DERIVED if column in table.schema.names])
    _check_parts(table.schema, vectors, table_path=steps_path)
    steps_batch = one_batch(table)
    return write_table(
        target, "steps", (_with_derived(episode_block, vectors) for episode_block in _blocks(steps_batch))
    )


def _blocks(steps_batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch in blocks that end where an episode does, at least one."""
    episode_numbers = steps_batch.column("episode").to_numpy()
    rows_per_block = max(1, _BLOCK * len(episode_numbers) // max(1, steps_batch.nbytes))
    first_row = 0
    while first_row < len(episode_numbers) or not first_row:
        last_candidate = min(first_row + rows_per_block, len(episode_numbers))
        end_row = (
            int(np.searchsorted(episode_numbers, episode_numbers[last_candidate - 1], side="right"))
            if last_candidate
            else 1
        )
        yield steps_batch.slice(first_row, end_row - first_row)
        first_row = end_row


def _starts(part_paths: Sequence[Path]) -> list[_Start]:
    """Return the start of each shard, and of the shard that would follow."""
    shard_starts = [_Start(0, 0, 0, 0)]
    schema = None
    for part_path in part_paths:
        part_batch = _read_part(part_path, "episodes", schema)
        schema = part_batch.schema
        num_steps, num_records = (
            int(pc.sum(part_batch.column(column)).as_py() or 0) for column in ("num_steps", "num_records")
        )
        last_start = shard_starts[-1]
        shard_starts.append(
            _Start(
                last_start.shard + 1,
                last_start.episodes + part_batch.num_rows,
                last_start.steps + num_steps,
                last_start.records + num_records,
            )
        )
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
    for actual_field, expected_field in zip_longest(actual_fields, expected_fields):
        if (
            actual_field is None
            or expected_field is None
            or not actual_field.equals(expected_field, check_metadata=not is_first)
        ):
            raise ShardError(
                f"{part_path}: column {(actual_field or expected_field).name!r} is {actual_field}, expected "
                f"{expected_field}{'' if is_first else ', as in the shards before'}; {_AGAIN}"
            )
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
            raise ShardError(
                f"{shard_tables[kind]}: {part_batch.num_rows:,} rows, {shard_tables['episodes'].name} says "
                f"{expected_rows:,}; {_AGAIN}"
            )
        yield _renumbered(part_batch, shard_start.added(kind))


def _renumbered(part_batch: pa.RecordBatch, added_numbers: Mapping[str, int]) -> pa.RecordBatch:
    for column, added_number in added_numbers.items():
        column_index = part_batch.schema.get_field_index(column)
        arrow_column = part_batch.schema.field(column_index)
        part_batch = part_batch.set_column(
            column_index,
            arrow_column,
            pa.array(part_batch.column(column_index).to_numpy() + added_number, arrow_column.type),
        )
    return part_batch


def _with_derived(steps_batch: pa.RecordBatch, vectors: Mapping[DerivedName, Vector]) -> pa.RecordBatch:
    column_index = len(STEP_FIELDS)
    raw_columns = steps_batch
    for column_name, vector in vectors.items():
        if vector:
            values = derive_vector(raw_columns, vector)
            arrow_column = vector_field(column_name, vector)
            column = pa.array(values.reshape(-1))
            if pa.types.is_fixed_size_list(arrow_column.type):
                column = pa.FixedSizeListArray.from_arrays(column, type=arrow_column.type)
            steps_batch = steps_batch.add_column(column_index, arrow_column, column)
            column_index += 1
    return steps_batch


def _check_parts(schema: pa.Schema, vectors: Mapping[DerivedName, Vector], *, table_path: Path) -> None:
    for column, vector in vectors.items():
        for part in vector_inputs(vector):
            if problem := find_fault(schema, part):
                raise ConvertError(
                    f"{table_path}: {column} takes {part.path}, but {problem}; convert this dataset again "
                    "with --overwrite"
                )
