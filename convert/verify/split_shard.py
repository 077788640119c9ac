"""A shard of a converted split: its ArrayRecord file and its rows in the index of the split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from convert.verify.files import check_regular
from stream.format.manifest import ShardEntry, SplitEntry, TableEntry
from stream.format.names import TABLE_KINDS, TableKind, shard_file, table_file
from stream.format.record_file import RecordFile
from stream.format.table import Table, hash_column, open_table


@dataclass(frozen=True, kw_only=True)
class SplitShard:
    """A shard and its rows in the index. The rows of a shard are contiguous in each table.

    Attributes:
        folder: Folder of the split.
        split: Name of the split.
        number: Position in the list of shards in the manifest.
        entry: Manifest entry of the shard.
        first: First row of the shard, by table.
        totals: Number of rows of the split, by table.
        index: Manifest entries of the tables.
    """

    folder: str
    split: str
    number: int
    entry: ShardEntry
    first: Mapping[TableKind, int]
    totals: Mapping[TableKind, int]
    index: Mapping[TableKind, TableEntry]

    @property
    def path(self) -> Path:
        """Path of the ArrayRecord file."""
        return Path(self.folder, shard_file(self.entry.name))

    def rows(self, kind: TableKind) -> slice:
        """Return the rows of the shard in a table."""
        return slice(self.first[kind], self.first[kind] + getattr(self.entry, kind))

    def open_table(self, kind: TableKind) -> Table:
        """Open a table of the index; raises FormatError or OSError."""
        return open_index_table(Path(self.folder), kind, self.index[kind], self.totals[kind])

    def open_records(self) -> RecordFile:
        """Open the ArrayRecord file; raises FormatError or OSError."""
        check_regular(self.path)
        return RecordFile(str(self.path), self.entry.file.bytes)


def list_shards(folder: Path, split: str, entry: SplitEntry) -> list[SplitShard]:
    """Return the shards of a split in the order of the manifest; ``folder`` is the folder of the dataset."""
    totals = {kind: getattr(entry, kind) for kind in TABLE_KINDS}
    shards, first = [], dict.fromkeys(TABLE_KINDS, 0)
    for number, shard in enumerate(entry.shards):
        shards.append(
            SplitShard(
                folder=str(folder / split),
                split=split,
                number=number,
                entry=shard,
                first=first,
                totals=totals,
                index=entry.index,
            )
        )
        first = {kind: first[kind] + getattr(shard, kind) for kind in TABLE_KINDS}
    return shards


def open_index_table(folder: Path, kind: TableKind, entry: TableEntry, rows: int) -> Table:
    """Open a table of the index in the folder of a split; raises FormatError or OSError."""
    path = folder / table_file(kind)
    check_regular(path)
    return open_table(path, kind, entry=entry, rows=rows)


def changed_columns(table: Table, entry: TableEntry) -> Iterator[str]:
    """Yield a sentence about each column that differs from its manifest entry."""
    for names, what in (
        (set(table.columns) - set(entry.columns), "not in"),
        (set(entry.columns) - set(table.columns), "only in"),
    ):
        if names:
            yield f"column {min(names)!r} is {what} the manifest"
    for name, column in table.columns.items():
        expected = entry.columns.get(name)
        if expected is not None and (found := hash_column(table.content, column)) != expected:
            yield f"column {name!r} has XXH3 {found}, expected {expected}"
