"""A converted dataset, read file by file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from array_record.python import array_record_module

from stream.format import dataset_dir, decode_record, open_sidecar, shard_file
from stream.manifest import Manifest, ShardEntry, read_manifest

_PAIR_COLUMNS = ("step", "offset", "steps_row", "num_frames")


@dataclass(frozen=True)
class ConvertedShard:
    """One shard: its entry in the manifest, its sidecars and its records."""

    folder: Path
    split: str
    entry: ShardEntry

    def path(self, kind: str) -> Path:
        """Where the file of a kind lies."""
        return self.folder / self.split / shard_file(self.entry.name, kind)

    @cached_property
    def steps(self) -> pa.Table:
        return open_sidecar(self.path("steps"))

    @cached_property
    def episodes(self) -> pa.Table:
        return open_sidecar(self.path("episodes"))

    @cached_property
    def pairs(self) -> list[Pair]:
        """What the records sidecar and the episodes say of each record."""
        ids = self.episodes["episode_id"].to_pylist()
        return [
            Pair(shard=self, record=record, episode_id=ids[row["episode"]], **{key: row[key] for key in _PAIR_COLUMNS})
            for record, row in enumerate(open_sidecar(self.path("records")).to_pylist())
        ]

    def frames(self, record: int) -> list[bytes]:
        """The encoded frames of a record."""
        reader = array_record_module.ArrayRecordReader(str(self.path("arrayrecord")))
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
    num_frames: int

    @property
    def frames(self) -> list[bytes]:
        """Its encoded frames."""
        return self.shard.frames(self.record)

    def row(self, *columns: str) -> dict[str, Any]:
        """The values of columns of the steps sidecar at its first step."""
        return {column: self.shard.steps[column][self.steps_row].as_py() for column in columns}


@dataclass(frozen=True)
class ConvertedDataset:
    """The folder ``ROOT/<dataset>/<version>``."""

    folder: Path
    manifest: Manifest

    @cached_property
    def shards(self) -> list[ConvertedShard]:
        """All shards, split by split."""
        return [
            ConvertedShard(self.folder, name, entry)
            for name, split in self.manifest.splits.items()
            for entry in split.shards
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
    folder = dataset_dir(root, dataset, version)
    return ConvertedDataset(folder, read_manifest(folder))
