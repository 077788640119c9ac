"""The index of one split of a dataset: its tables, its shards, and a check of the columns that are used."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from stream.format.names import TABLE_KINDS, TableKind, shard_file, table_file
from stream.format.shards import SplitShards
from stream.format.table import Table, open_table
from stream.storage.errors import FormatError
from stream.storage.memory import available_memory

if TYPE_CHECKING:
    from stream.format.catalog import Dataset

_CHUNK = 4 << 20
_AT_ONCE = 64 << 20
"""Bytes that are checked when a mixture is opened; what is larger is checked while training runs."""
_PAUSE_S = 0.1


@dataclass(frozen=True, eq=False)
class SplitIndex:
    """An open split of a dataset.

    Attributes:
        member: Number of the dataset in the mixture.
        dataset: Name of the dataset.
        split: Name of the split.
        folder: Folder of the split.
        shards: Shards of the split.
        episodes, steps, records: Tables of the index.
    """

    member: int
    dataset: str
    split: str
    folder: str
    shards: SplitShards
    episodes: Table
    steps: Table
    records: Table

    def table(self, kind: TableKind) -> Table:
        """Return a table."""
        table: Table = getattr(self, kind)
        return table

    def record_path(self, shard: int) -> str:
        """Return the ArrayRecord file of a shard."""
        return os.path.join(self.folder, shard_file(self.shards.stem(shard)))


def open_index(dataset: Dataset, split: str, *, member: int = 0) -> SplitIndex:
    """Open a split of a dataset.

    Raises:
        FormatError: A table is missing, damaged, or not the one that the manifest describes.
        OSError: A table cannot be read.
    """
    folder = dataset.folder / split
    entry = dataset.manifest.splits[split]
    tables = {
        kind: open_table(folder / table_file(kind), kind, entry=entry.index[kind], rows=getattr(entry, kind))
        for kind in TABLE_KINDS
    }
    return SplitIndex(
        member=member,
        dataset=dataset.name,
        split=split,
        folder=str(folder),
        shards=dataset.shards[split],
        **tables,
    )


@dataclass(frozen=True)
class UsedColumn:
    """A column that batches are made of, with the XXH3 that the manifest says of it."""

    table: Table
    name: str
    xxh3: str

    @property
    def bytes(self) -> int:
        """Size of the column."""
        return sum(stop - start for start, stop in self.table.columns[self.name].spans)


def used_columns(
    dataset: Dataset, index: SplitIndex, columns: Iterable[tuple[TableKind, str]], *, first: SplitIndex
) -> list[UsedColumn]:
    """Return columns of an index with their checksums.

    Args:
        dataset: Dataset of the index.
        index: Split of the dataset.
        columns: Columns by table and name.
        first: First split that samples of the dataset are in, whose columns have the same types.

    Raises:
        FormatError: A column is missing, or of another type than in ``first``.
    """
    entries = dataset.manifest.splits[index.split].index
    found = []
    for kind, name in dict.fromkeys(columns):
        table, other = index.table(kind), first.table(kind)
        if name not in entries[kind].columns or name not in table.columns:
            raise FormatError(
                f"{table.path}: column {name!r} is not in the file and the manifest; convert this dataset again"
            )
        if name not in other.columns or not table.columns[name].is_like(other.columns[name]):
            raise FormatError(
                f"{table.path}: column {name!r} is of another type than in {other.path}; convert this dataset again"
            )
        found.append(UsedColumn(table, name, entries[kind].columns[name]))
    return found


class IndexCheck:
    """Reads columns of an index from their files once: to compare them with the manifest, and so that the kernel has
    them in memory before batches ask for them.

    Small indexes are read at once; larger ones by ``start`` in a thread, as far as half of the memory available goes.
    The thread reads from the disk as fast as it can, and pauses where the kernel has the bytes already.

    Args:
        columns: Columns, the ones that are needed first in front.

    Raises:
        FormatError: A small index is not the one that the manifest describes.
    """

    def __init__(self, columns: Sequence[UsedColumn]) -> None:
        self.error: FormatError | None = None
        """What was found wrong in the background."""
        self._columns = columns
        self._thread: threading.Thread | None = None
        if sum(column.bytes for column in columns) <= _AT_ONCE:
            self._columns = ()
            for column in columns:
                _check(column)

    def start(self) -> None:
        """Begin in the background, if there is something left to read."""
        if self._columns and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stream-index", daemon=True)
            self._thread.start()

    def raise_error(self) -> None:
        """Raise what was found wrong."""
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        room = available_memory()
        room = None if room is None else room // 2
        for column in self._columns:
            room = None if room is None else room - column.bytes
            if room is not None and room < 0:
                return
            try:
                _check(column, pause=_PAUSE_S)
            except FormatError as error:
                self.error = error
                return


def _check(column: UsedColumn, *, pause: float = 0.0) -> None:
    try:
        found = _hash(column, pause)
    except OSError as error:
        raise FormatError(f"{column.table.path}: cannot be read ({error.strerror})") from None
    if found != column.xxh3:
        raise FormatError(
            f"{column.table.path}: column {column.name!r} is not the one that the manifest describes; the file is "
            "damaged or of another conversion. Check it with `python -m convert.verify`, or copy it again"
        )


def _hash(column: UsedColumn, pause: float) -> str:
    """Return the XXH3 of a column, read from its file with a pause after each chunk that the kernel had in memory."""
    digest = xxhash.xxh3_64()
    view = memoryview(bytearray(min(_CHUNK, column.bytes)))
    with open(column.table.path, "rb", buffering=0) as file:
        for start, stop in column.table.columns[column.name].spans:
            for begin in range(start, stop, _CHUNK):
                part = view[: min(_CHUNK, stop - begin)]
                if pause and _is_cached(file.fileno(), part, begin):
                    time.sleep(pause)
                elif os.preadv(file.fileno(), [part], begin) != len(part):
                    raise FormatError(f"{column.table.path}: ends before column {column.name!r} does; copy it again")
                digest.update(part)
    return digest.hexdigest()


def _is_cached(file: int, part: memoryview, begin: int) -> bool:
    """Read bytes of a file if the kernel has all of them in memory, and return whether it had."""
    try:
        return os.preadv(file, [part], begin, os.RWF_NOWAIT) == len(part)
    except OSError:
        # EAGAIN, or a file system that cannot tell.
        return False
