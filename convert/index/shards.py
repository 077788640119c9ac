"""Shards of a split and their rows in the index."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from stream.base.reading import check_regular
from stream.format.manifest import ShardEntry, SplitEntry
from stream.format.names import TABLE_KINDS, TableKind, shard_file
from stream.format.record_file import RecordFile


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A shard of a split, by its number in the manifest; its rows are contiguous in each table of the index.

    ``folder`` is that of the split, ``first`` has the first row of the shard by table.
    """

    folder: Path
    number: int
    entry: ShardEntry
    first: dict[TableKind, int]

    @property
    def path(self) -> Path:
        """Path of the ArrayRecord file."""
        return self.folder / shard_file(self.entry.name)

    def rows(self, kind: TableKind) -> slice:
        """Return the rows of the shard in a table."""
        return slice(self.first[kind], self.first[kind] + getattr(self.entry, kind))

    def open_records(self) -> RecordFile:
        """Open the ArrayRecord file; raises FormatError or OSError."""
        # Opening a missing file gives a better message.
        with contextlib.suppress(FileNotFoundError):
            check_regular(self.path)
        return RecordFile(str(self.path), self.entry.file.bytes)


def list_shards(folder: Path, split_entry: SplitEntry) -> list[Shard]:
    """Return the shards of a split in the order of the manifest; ``folder`` is the folder of the split."""
    shards, first_rows = [], dict.fromkeys(TABLE_KINDS, 0)
    for shard_number, entry in enumerate(split_entry.shards):
        shards.append(Shard(folder=folder, number=shard_number, entry=entry, first=first_rows))
        first_rows = {kind: first_rows[kind] + getattr(entry, kind) for kind in TABLE_KINDS}
    return shards
