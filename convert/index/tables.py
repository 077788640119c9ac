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
    folder: Path,
    parts: Sequence[Mapping[TableKind, Path]],
    vectors: Mapping[DerivedName, Vector],
) -> dict[TableKind, TableEntry]:
    """Merge the parts of all shards of a split into its index; memory holds a block of episodes at a time.

    Args:
        folder: Existing folder to write the tables to, which no reader sees before this returns.
        parts: Parts of each shard, in the manifest's order of shards.
        vectors: What each derived column is made of.

    Returns:
        The manifest's entries of the tables. The files are on the disk, and a function of rows and arguments alone.

    Raises:
        ShardError: A part cannot be read, or has other columns or rows than the other parts say.
    """
    if not parts:
        raise ConvertError(f"{folder}: no shards, so no index")
    starts = _starts([part["episodes"] for part in parts])

    def batches(kind: TableKind) -> Iterator[pa.RecordBatch]:
        for part, batch in zip(parts, _renumbered_parts(parts, starts, kind), strict=True):
            if kind == "steps":
                _check_parts(batch.schema, vectors, where=part[kind])
            for block in _blocks(batch):
                yield _with_derived(block, vectors) if kind == "steps" else block

    return {kind: write_table(folder / table_file(kind), kind, batches(kind)) for kind in TABLE_KINDS}


def join_parts(folder: Path, pieces: Sequence[Mapping[TableKind, Path]], position: np.ndarray) -> None:
    """Join the parts of the pieces of a shard to files in ``folder``, named by their kind.

    Args:
        folder: Existing folder.
        pieces: Parts of each piece, in the order of its episodes.
        position: Byte offset of each record in the file of the shard.

    Raises:
        ShardError: A part cannot be read, or has other columns or rows than the other parts say.
    """
    starts = [replace(start, shard=0) for start in _starts([piece["episodes"] for piece in pieces])]

    def batches(kind: TableKind) -> Iterator[pa.RecordBatch]:
        for start, batch in zip(starts, _renumbered_parts(pieces, starts, kind), strict=False):
            if kind == "records":
                place = batch.schema.get_field_index("position")
                field = batch.schema.field(place)
                mine = position[start.records : start.records + batch.num_rows]
                batch = batch.set_column(place, field, pa.array(mine, field.type))
            yield batch

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
    start = _Start(shard.number, **shard.first)
    for kind in TABLE_KINDS:
        cut = open_table(shard.folder / table_file(kind), kind).arrow()[shard.rows(kind)]
        cut = cut.drop_columns([name for name in DERIVED if kind == "steps" and name in cut.schema.names])
        minus = {name: -number for name, number in start.added(kind).items()}
        write_table(target[kind], kind, [_renumbered(one_batch(cut), minus)])


def derive_steps(
    folder: Path,
    target: Path,
    vectors: Mapping[DerivedName, Vector],
) -> TableEntry:
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
    path = folder / table_file("steps")
    table = open_table(path, "steps").arrow()
    table = table.drop_columns([name for name in DERIVED if name in table.schema.names])
    _check_parts(table.schema, vectors, where=path)
    batch = one_batch(table)
    return write_table(target, "steps", (_with_derived(block, vectors) for block in _blocks(batch)))


def _blocks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch in blocks that end where an episode does, at least one."""
    episodes = batch.column("episode").to_numpy()
    rows = max(1, _BLOCK * len(episodes) // max(1, batch.nbytes))
    start = 0
    while start < len(episodes) or not start:
        inside = min(start + rows, len(episodes))
        stop = int(np.searchsorted(episodes, episodes[inside - 1], side="right")) if inside else 1
        yield batch.slice(start, stop - start)
        start = stop


def _starts(episodes: Sequence[Path]) -> list[_Start]:
    """Return the start of each shard, and of the shard that would follow."""
    starts = [_Start(0, 0, 0, 0)]
    schema = None
    for path in episodes:
        batch = _read_part(path, "episodes", schema)
        schema = batch.schema
        steps, records = (int(pc.sum(batch.column(name)).as_py() or 0) for name in ("num_steps", "num_records"))
        last = starts[-1]
        starts.append(
            _Start(last.shard + 1, last.episodes + batch.num_rows, last.steps + steps, last.records + records)
        )
    if starts[-1].episodes > _MOST_EPISODES:
        raise ConvertError(f"{starts[-1].episodes:,} episodes in a split, an index holds {_MOST_EPISODES:,}")
    return starts


def _read_part(path: Path, kind: TableKind, expected: pa.Schema | None) -> pa.RecordBatch:
    try:
        # Mapped, so that the kernel can drop what was copied.
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batch = reader.get_batch(0)
        batch.validate()
    except (pa.ArrowException, OSError) as error:
        detail = " ".join(str(error).split())[:300]
        raise ShardError(f"{path}: not a complete Arrow IPC file ({detail}); {_AGAIN}") from None
    first = expected is None
    fields = list(FIRST_FIELDS[kind] if expected is None else expected)
    columns = list(batch.schema)[: len(fields) if first else None]
    for found, field in zip_longest(columns, fields):
        if found is None or field is None or not found.equals(field, check_metadata=not first):
            raise ShardError(
                f"{path}: column {(found or field).name!r} is {found}, expected {field}"
                f"{'' if first else ', as in the shards before'}; {_AGAIN}"
            )
    return batch


def _renumbered_parts(
    parts: Sequence[Mapping[TableKind, Path]], starts: Sequence[_Start], kind: TableKind
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each part with their numbers in the whole; ``starts`` has one more, for the end."""
    schema = None
    for part, (start, after) in zip(parts, pairwise(starts), strict=True):
        batch = _read_part(part[kind], kind, schema)
        schema = batch.schema
        expected = getattr(after, kind) - getattr(start, kind)
        if batch.num_rows != expected:
            raise ShardError(
                f"{part[kind]}: {batch.num_rows:,} rows, {part['episodes'].name} says {expected:,}; {_AGAIN}"
            )
        yield _renumbered(batch, start.added(kind))


def _renumbered(batch: pa.RecordBatch, added: Mapping[str, int]) -> pa.RecordBatch:
    for name, number in added.items():
        place = batch.schema.get_field_index(name)
        field = batch.schema.field(place)
        batch = batch.set_column(place, field, pa.array(batch.column(place).to_numpy() + number, field.type))
    return batch


def _with_derived(batch: pa.RecordBatch, vectors: Mapping[DerivedName, Vector]) -> pa.RecordBatch:
    place = len(STEP_FIELDS)
    raw = batch
    for name, vector in vectors.items():
        if vector:
            values = derive_vector(raw, vector)
            field = vector_field(name, vector)
            column = pa.array(values.reshape(-1))
            if pa.types.is_fixed_size_list(field.type):
                column = pa.FixedSizeListArray.from_arrays(column, type=field.type)
            batch = batch.add_column(place, field, column)
            place += 1
    return batch


def _check_parts(schema: pa.Schema, vectors: Mapping[DerivedName, Vector], *, where: Path) -> None:
    for name, vector in vectors.items():
        for part in vector_inputs(vector):
            if fault := find_fault(schema, part):
                raise ConvertError(
                    f"{where}: {name} takes {part.path}, but {fault}; convert this dataset again with --overwrite"
                )
