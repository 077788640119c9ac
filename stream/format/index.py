"""The index of one split of a dataset: its tables and shards, and the check of the columns in use."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from stream.base.arguments import check_whole
from stream.base.errors import ArgumentError, FormatError
from stream.base.machine import available_memory
from stream.format.names import LABELS, TABLE_KINDS, TableKind, label_file, shard_file, table_file, waiting_label
from stream.format.shards import SplitShards
from stream.format.table import Column, Table, open_table
from stream.storage.remote import CachedRoot

if TYPE_CHECKING:
    from stream.format.catalog import Dataset

    # At run time it would bring pydantic into every worker.
    from stream.format.manifest import SplitEntry, TableEntry

_CHUNK = 4 << 20
_PAUSE_S = 0.1
_AT_ONCE = 64 << 20
"""Bytes of the largest index that is checked when a mixture is opened, not while training runs."""


@dataclass(frozen=True, eq=False)
class SplitIndex:
    """An open split of a dataset.

    Attributes:
        member: Number of the dataset in the mixture.
        dataset, split: Names of dataset and split.
        folder: Folder of the split.
        remote: Place of the split's shards if they are read in place, else None.
        shards: Shards of the split.
        episodes, steps, records: Tables of the index; ``steps`` has the columns of labels too.
    """

    member: int
    dataset: str
    split: str
    folder: str
    remote: CachedRoot | None
    shards: SplitShards
    episodes: Table
    steps: Table
    records: Table

    def table(self, kind: TableKind) -> Table:
        """Return the table of a kind."""
        table: Table = getattr(self, kind)
        return table

    @property
    def labels(self) -> dict[str, Column]:
        """Columns of ``steps`` that were added after the conversion, by name."""
        return {name: column for name, column in self.steps.columns.items() if column.file is not None}

    def record_number(self, row: int) -> int:
        """Return the number in its ArrayRecord file of the record of a row."""
        firsts = self.shards.first_records
        shard = int(np.clip(np.searchsorted(firsts, row, side="right") - 1, 0, len(firsts) - 2))
        first, stop = firsts[shard : shard + 2].tolist()
        return record_number(self.records.array("position")[first:stop], row - first)

    def record_path(self, shard: int) -> str:
        """Return the path of a shard's ArrayRecord file."""
        return os.path.join(self.folder, shard_file(self.shards.stem(shard)))


def record_number(positions: np.ndarray, row: int) -> int:
    """Return the number in its ArrayRecord file of the record of a row; rows of a chunk of video share theirs.

    Args:
        positions: Position of the record of each row of the shard, int64 [rows].
        row: Row of the shard.
    """
    if (positions[1:] > positions[:-1]).all():
        return row
    return len(np.unique(positions[positions < positions[row]]))


def open_index(dataset: Dataset, split: str, *, member: int = 0) -> SplitIndex:
    """Open a split of a dataset.

    Raises:
        FormatError: A table is missing or damaged, or differs from the manifest.
        OSError: A table cannot be read.
    """
    folder = dataset.folder / split
    entry = dataset.manifest.splits[split]
    tables: dict[str, Table] = {}
    for kind in TABLE_KINDS:
        path = folder / table_file(kind)
        try:
            tables[kind] = open_table(path, kind, entry=entry.index[kind], rows=getattr(entry, kind))
        except FormatError as error:
            if dataset.remote is None:
                raise
            raise FormatError(f"{error}; {_drop_cached(path)}") from None
    if entry.labels:
        tables["steps"] = tables["steps"].with_columns(open_labels(folder, entry))
    return SplitIndex(
        member=member,
        dataset=dataset.name,
        split=split,
        folder=str(folder),
        remote=dataset.remote and dataset.remote / split,
        shards=dataset.shards[split],
        **tables,
    )


def _drop_cached(path: str | Path) -> str:
    """Remove a damaged file of a cache, and return the words that say so."""
    with contextlib.suppress(OSError):
        os.unlink(path)
    return "it was removed from the cache: open the data again to fetch it again"


def label_path(folder: Path, name: str, entry: TableEntry) -> Path:
    """Return the file with the labels of an entry of the manifest.

    A process that was killed, or is at work, may have written the manifest and not given the file its name yet.

    Args:
        folder: Folder of the split.
        name: Name of the labels.
        entry: Entry in the manifest.
    """
    waiting = folder / LABELS / waiting_label(name, entry.sha256)
    return waiting if waiting.exists() else folder / LABELS / label_file(name)


def open_labels(folder: Path, entry: SplitEntry) -> list[Table]:
    """Open the tables of labels of a split; raise as ``open_index`` does.

    Args:
        folder: Folder of the split.
        entry: Its entry in the manifest.
    """

    def opened(path: Path, table: TableEntry) -> Table:
        return open_table(path, None, entry=table, rows=entry.steps)

    found = []
    for name, table in entry.labels.items():
        path = label_path(folder, name, table)
        try:
            found.append(opened(path, table))
        except FormatError:
            # It may have got its name in between.
            if (again := label_path(folder, name, table)) == path:
                raise
            found.append(opened(again, table))
    return found


@dataclass(frozen=True)
class EpisodeRows:
    """Rows of one episode in ``records`` and ``steps``."""

    records: range
    steps: range


def find_episode(dataset: Dataset, index: SplitIndex, episode: int) -> EpisodeRows:
    """Return the rows of an episode.

    Raises:
        ArgumentError: The episode does not exist, or its shard was not fetched.
        FormatError: Its rows lie outside of the tables.
    """
    where = f"dataset {dataset.name}, split {index.split}"
    episode = check_whole("episode", episode, least=None)
    if not 0 <= episode < len(index.episodes):
        raise ArgumentError(f"{where}: episode {episode} of {len(index.episodes):,}, counted from 0")
    fetched, shard = dataset.fetched, int(index.episodes.array("shard")[episode])
    if fetched is not None and 0 <= shard < len(index.shards) and index.shards.stem(shard) not in fetched.shards:
        raise ArgumentError(
            f"{where}: episode {episode} lies in {index.shards.stem(shard)}, which was not fetched; bring it from "
            f"{fetched.source} with `pairstream fetch`"
        )
    first, count, steps_row, steps = (
        int(index.episodes.array(name)[episode])
        for name in ("first_record", "num_records", "first_steps_row", "num_steps")
    )
    if not (
        0 <= first <= first + count <= len(index.records) and 0 <= steps_row <= steps_row + steps <= len(index.steps)
    ):
        raise FormatError(f"{index.episodes.path}: episode {episode} leads outside of records or steps; it is damaged")
    return EpisodeRows(range(first, first + count), range(steps_row, steps_row + steps))


@dataclass(frozen=True)
class UsedColumn:
    """A column that batches need, with its XXH3 in the manifest; ``is_cached`` if its file is a copy in a cache."""

    table: Table
    name: str
    xxh3: str
    is_cached: bool = False

    @property
    def path(self) -> str:
        """File with the column."""
        return self.table.file_of(self.name)

    @property
    def bytes(self) -> int:
        """Size of the column in the file."""
        return sum(stop - start for start, stop in self.table.columns[self.name].spans)


def used_columns(
    dataset: Dataset, index: SplitIndex, columns: Iterable[tuple[TableKind, str]], *, first: SplitIndex
) -> list[UsedColumn]:
    """Return columns of an index with their checksums.

    Args:
        dataset: Dataset of the index.
        index: Split of the dataset.
        columns: Table and name of each column.
        first: Split of the same dataset to compare the types of columns with.

    Raises:
        ArgumentError: The split lacks a label that ``first`` has.
        FormatError: A column is missing, or its type differs from ``first``.
    """
    entry = dataset.manifest.splits[index.split]
    stored = {kind: entry.columns(kind) for kind in TABLE_KINDS}
    found = []
    for kind, name in dict.fromkeys(columns):
        table, other = index.table(kind), first.table(kind)
        if name in first.labels and kind == "steps" and name not in {*stored[kind], *table.columns}:
            raise ArgumentError(
                f"dataset {index.dataset}, split {index.split}: has no label {name!r}, which split {first.split} has; "
                "attach it there too, or load one split at a time"
            )
        if name not in stored[kind] or name not in table.columns:
            raise FormatError(
                f"{table.path}: column {name!r} is not in both the file and the manifest; convert this dataset again"
            )
        if name not in other.columns or not table.columns[name].is_like(other.columns[name]):
            again = "convert this dataset again" if table.columns[name].file is None else "attach the labels again"
            raise FormatError(
                f"{table.file_of(name)}: column {name!r} is of another type than in {other.file_of(name)}; {again}"
            )
        found.append(UsedColumn(table, name, stored[kind][name], index.remote is not None))
    # Columns of a file together, so that it is opened once.
    return sorted(found, key=attrgetter("path"))


class IndexCheck:
    """A comparison of columns with their checksums, which also brings them into the kernel's cache.

    A small index is read at once. ``start`` reads a larger one in a thread, up to half of the memory available. The
    thread reads from the disk at full speed, and pauses after cached bytes, to leave the processors to the workers.

    Args:
        columns: Columns in the order in which they are needed.

    Raises:
        FormatError: A small index differs from the manifest.
    """

    def __init__(self, columns: Sequence[UsedColumn]) -> None:
        self.error: FormatError | None = None
        """Error that the thread found."""
        self._columns = columns
        self._thread: threading.Thread | None = None
        if sum(column.bytes for column in columns) <= _AT_ONCE:
            self._columns = ()
            _check(columns)

    def start(self) -> None:
        """Start the thread if columns are left to read."""
        if self._columns and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stream-index", daemon=True)
            self._thread.start()

    def raise_error(self) -> None:
        """Raise the error that the thread found, if any."""
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        available = available_memory()
        room = math.inf if available is None else available // 2
        used = accumulate(column.bytes for column in self._columns)
        columns = [column for column, size in zip(self._columns, used, strict=True) if size <= room]
        try:
            _check(columns, pause=_PAUSE_S)
        except FormatError as error:
            self.error = error


def _check(columns: Iterable[UsedColumn], *, pause: float = 0.0) -> None:
    """Compare columns with their checksums; those of a file, one after the other, open it once."""
    for path, same in groupby(columns, attrgetter("path")):
        try:
            with open(path, "rb", buffering=0) as file:
                for column in same:
                    if _hash(file.fileno(), column, pause) != column.xxh3:
                        what_to_do = "Check it with `pairstream verify`, or copy it again"
                        raise FormatError(
                            f"{path}: column {column.name!r} is not the one that the manifest describes; the file is "
                            "damaged or belongs to another conversion. "
                            + (_drop_cached(path) if column.is_cached else what_to_do)
                        )
        except OSError as error:
            raise FormatError(f"{path}: cannot be read ({error.strerror})") from None


def _hash(file: int, column: UsedColumn, pause: float) -> str:
    """Return the XXH3 of a column, read from its file; mapped bytes would count as memory of this process."""
    digest = xxhash.xxh3_64()
    view = memoryview(bytearray(min(_CHUNK, column.bytes)))
    for start, stop in column.table.columns[column.name].spans:
        for begin in range(start, stop, _CHUNK):
            part = view[: min(_CHUNK, stop - begin)]
            if pause and _read_cached(file, part, begin):
                time.sleep(pause)
            elif os.preadv(file, [part], begin) != len(part):
                raise FormatError(f"{column.path}: ends before column {column.name!r} does; copy it again")
            digest.update(part)
    return digest.hexdigest()


def _read_cached(file: int, part: memoryview, begin: int) -> bool:
    """Read bytes of a file if the page cache holds all of them, and return whether it does."""
    try:
        return os.preadv(file, [part], begin, os.RWF_NOWAIT) == len(part)
    except OSError:
        # EAGAIN, or a file system without this.
        return False
