"""A shard of a converted split: its ArrayRecord file and its rows in the split's index."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

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
        number: Position in the manifest's list of shards of the split.
        entry: Manifest's entry of the shard.
        first: First row of the shard, by table.
        totals: Rows of the whole split, by table.
        index: Manifest's entries of the tables.
    """

    folder: str
    split: str
    number: int
    entry: ShardEntry
    first: Mapping[TableKind, int]
    totals: Mapping[TableKind, int]
    index: Mapping[TableKind, TableEntry]

    @property
    def name(self) -> str:
        """Stem of the shard."""
        return self.entry.name

    @property
    def path(self) -> Path:
        """Path of the ArrayRecord file."""
        return Path(self.folder, shard_file(self.entry.name))

    def rows(self, kind: TableKind) -> slice:
        """Return the rows of the shard in a table."""
        return slice(self.first[kind], self.first[kind] + getattr(self.entry, kind))

    def open_table(self, kind: TableKind) -> Table:
        """Open a table of the split's index; raises FormatError or OSError."""
        return open_index_table(Path(self.folder), kind, self.index[kind], self.totals[kind])

    def open_records(self) -> RecordFile:
        """Open the ArrayRecord file; raises FormatError or OSError."""
        check_regular(self.path)
        return RecordFile(str(self.path), self.entry.file.bytes)


def list_shards(folder: Path, split: str, entry: SplitEntry) -> list[SplitShard]:
    """Return the shards of a split in the manifest's order; ``folder`` is the dataset's, with the manifest."""
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
    """Open a table of the index in a split's folder; raises FormatError or OSError."""
    path = folder / table_file(kind)
    check_regular(path)
    return open_table(path, kind, entry=entry, rows=rows)


def changed_columns(table: Table, entry: TableEntry) -> Iterable[str]:
    """Yield a sentence about each column that is not the one in the manifest."""
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


def check_regular(path: Path) -> None:
    """Raise OSError if something other than a file is at ``path``; to open a pipe would wait without end.

    A missing file passes: the functions that open files have a sentence for that.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise OSError(
            None, f"it is a {'folder' if stat.S_ISDIR(mode) else 'device or pipe'}, expected a file", str(path)
        )


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read; raises OSError as ``check_regular`` does."""
    check_regular(path)
    return path.open("rb")
