"""A converted dataset, read by its index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from array_record.python import array_record_module

from stream.format import TableKind, decode_record, shard_file, table_file
from stream.manifest import Manifest, ShardEntry, read_manifest
from stream.table import open_table

_PAIR_COLUMNS = ("step", "offset", "steps_row")


@dataclass(frozen=True)
class ConvertedSplit:
    """The index of a split."""

    folder: Path
    manifest: Manifest
    name: str

    def path(self, kind: TableKind) -> Path:
        """Location of a table."""
        return self.folder / self.name / table_file(kind)

    def _open(self, kind: TableKind) -> pa.Table:
        entry = self.manifest.splits[self.name]
        return open_table(self.path(kind), kind, entry=entry.index[kind], rows=getattr(entry, kind)).arrow()

    @cached_property
    def steps(self) -> pa.Table:
        return self._open("steps")

    @cached_property
    def episodes(self) -> pa.Table:
        return self._open("episodes")

    @cached_property
    def records(self) -> pa.Table:
        return self._open("records")


@dataclass(frozen=True)
class ConvertedShard:
    """One shard: its entry in the manifest, its rows of the index and its records. Numbers count in the split."""

    index: ConvertedSplit
    number: int
    entry: ShardEntry

    @property
    def split(self) -> str:
        """Name of its split."""
        return self.index.name

    @property
    def path(self) -> Path:
        """Location of its ArrayRecord file."""
        return self.index.folder / self.split / shard_file(self.entry.name)

    def _slice(self, kind: TableKind) -> pa.Table:
        before = self.index.manifest.splits[self.split].shards[: self.number]
        table: pa.Table = getattr(self.index, kind)
        return table.slice(sum(getattr(entry, kind) for entry in before), getattr(self.entry, kind))

    @cached_property
    def steps(self) -> pa.Table:
        return self._slice("steps")

    @cached_property
    def episodes(self) -> pa.Table:
        return self._slice("episodes")

    @cached_property
    def records(self) -> pa.Table:
        return self._slice("records")

    @cached_property
    def pairs(self) -> list[Pair]:
        """What the index says of each record."""
        ids = self.index.episodes["episode_id"].to_pylist()
        return [
            Pair(shard=self, record=record, episode_id=ids[row["episode"]], **{key: row[key] for key in _PAIR_COLUMNS})
            for record, row in enumerate(self.records.to_pylist())
        ]

    def frames(self, record: int) -> list[bytes]:
        """The encoded frames of a record."""
        reader = array_record_module.ArrayRecordReader(str(self.path))
        try:
            return decode_record(reader.read(record, record + 1)[0])
        finally:
            reader.close()


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A record: which steps of which episode it is of."""

    shard: ConvertedShard
    record: int
    episode_id: str
    step: int
    offset: int
    steps_row: int

    @property
    def frames(self) -> list[bytes]:
        """Its encoded frames."""
        return self.shard.frames(self.record)

    def row(self, *columns: str) -> dict[str, Any]:
        """The values of columns of ``steps`` at its first step."""
        return {column: self.shard.index.steps[column][self.steps_row].as_py() for column in columns}


@dataclass(frozen=True)
class ConvertedDataset:
    """The folder ``ROOT/<dataset>/<version>``."""

    folder: Path
    manifest: Manifest

    @cached_property
    def splits(self) -> dict[str, ConvertedSplit]:
        """The index of each split."""
        return {name: ConvertedSplit(self.folder, self.manifest, name) for name in self.manifest.splits}

    @cached_property
    def shards(self) -> list[ConvertedShard]:
        """All shards, split by split."""
        return [
            ConvertedShard(self.splits[name], number, entry)
            for name, split in self.manifest.splits.items()
            for number, entry in enumerate(split.shards)
        ]

    @property
    def pairs(self) -> Iterator[Pair]:
        """All records of all shards."""
        for shard in self.shards:
            yield from shard.pairs

    def some_pairs(self) -> list[Pair]:
        """The first and the last pair of each episode."""
        ends: dict[tuple[str, bool], Pair] = {}
        for pair in self.pairs:
            ends.setdefault((pair.episode_id, False), pair)
            ends[pair.episode_id, True] = pair
        return list(ends.values())


def open_converted(root: Path, dataset: str, version: str) -> ConvertedDataset:
    """Open ``root/<dataset>/<version>``."""
    folder = root / dataset / version
    return ConvertedDataset(folder, read_manifest(folder))
