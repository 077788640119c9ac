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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError, FormatError
from stream.base.machine import available_memory
from stream.format.names import LABELS, TABLE_KINDS, TableKind, label_file, shard_file, table_file, waiting_label
from stream.format.record_file import SplitShards
from stream.format.table import CHUNK, OTHER_FILE, Column, Table, hash_spans, open_table
from stream.storage.remote import CachedRoot

if TYPE_CHECKING:
    from stream.format.catalog import Dataset

    # At run time this import would load pydantic in every worker.
    from stream.format.manifest import SplitEntry, TableEntry

_PAUSE_S = 0.1
_AT_ONCE = 64 << 20
"""Bytes of the largest index that is checked when a mixture is opened, not while training runs."""


@dataclass(frozen=True, eq=False)
class SplitIndex:
    """An open split of a dataset, number ``member`` of the mixture.

    Attributes:
        remote: Location of the split's shards if they are read in place, else None.
        episodes, steps, records: Tables of the index; ``steps`` includes the columns of labels.
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
        return {column_name: column for column_name, column in self.steps.columns.items() if column.file is not None}

    def record_number(self, record_row: int) -> int:
        """Return the number in its ArrayRecord file of the record of a row."""
        first_rows = self.shards.first_records
        shard_number = int(np.clip(np.searchsorted(first_rows, record_row, side="right") - 1, 0, len(first_rows) - 2))
        start_row, stop_row = first_rows[shard_number : shard_number + 2].tolist()
        return record_number(self.records.array("position")[start_row:stop_row], record_row - start_row)

    def record_path(self, shard_number: int) -> str:
        """Return the path of a shard's ArrayRecord file."""
        return os.path.join(self.folder, shard_file(self.shards.stem(shard_number)))


def record_number(positions: np.ndarray, shard_row: int) -> int:
    """Return the number in its ArrayRecord file of the record of a row; rows of a chunk of video share a number.

    ``positions`` are the positions of the records of all rows of the shard, int64 [rows].
    """
    if (positions[1:] > positions[:-1]).all():
        return shard_row
    return len(np.unique(positions[positions < positions[shard_row]]))


def open_index(dataset: Dataset, split: str, *, member: int = 0) -> SplitIndex:
    """Open a split of a dataset.

    Raises FormatError if a table is missing or damaged, or differs from the manifest, and OSError if it cannot be read.
    """
    split_folder = dataset.folder / split
    entry = dataset.manifest.splits[split]
    tables_by_kind: dict[str, Table] = {}
    for kind in TABLE_KINDS:
        table_path = split_folder / table_file(kind)
        try:
            tables_by_kind[kind] = open_table(table_path, kind, entry=entry.index[kind], rows=getattr(entry, kind))
        except FormatError as error:
            if dataset.remote is None:
                raise
            raise FormatError(f"{error}; {_drop_cached(table_path)}") from None
    if entry.labels:
        tables_by_kind["steps"] = tables_by_kind["steps"].with_columns(open_labels(split_folder, entry))
    return SplitIndex(
        member=member,
        dataset=dataset.name,
        split=split,
        folder=str(split_folder),
        remote=dataset.remote and dataset.remote / split,
        shards=dataset.shards[split],
        **tables_by_kind,
    )


def _drop_cached(file_path: str | Path) -> str:
    """Remove a damaged file of a cache, and return the sentence that reports it."""
    with contextlib.suppress(OSError):
        os.unlink(file_path)
    return "it was removed from the cache: open the data again to fetch it again"


def label_path(split_folder: Path, label_name: str, label_entry: TableEntry) -> Path:
    """Return the file with the labels of an entry of the manifest.

    A process that was killed, or still runs, may have written the manifest without having renamed the file yet.
    """
    waiting_path = split_folder / LABELS / waiting_label(label_name, label_entry.sha256)
    return waiting_path if waiting_path.exists() else split_folder / LABELS / label_file(label_name)


def open_labels(split_folder: Path, entry: SplitEntry) -> list[Table]:
    """Open the tables of labels of a split; raise as ``open_index`` does."""
    label_tables = []
    for label_name, label_entry in entry.labels.items():
        path = label_path(split_folder, label_name, label_entry)
        try:
            label_tables.append(open_table(path, None, entry=label_entry, rows=entry.steps))
        except FormatError:
            # Another process may have renamed the file in between.
            if (renamed_path := label_path(split_folder, label_name, label_entry)) == path:
                raise
            label_tables.append(open_table(renamed_path, None, entry=label_entry, rows=entry.steps))
    return label_tables


class EpisodeRows(NamedTuple):
    """Rows of one episode in ``records`` and ``steps``."""

    records: range
    steps: range


def find_episode(dataset: Dataset, index: SplitIndex, episode: int) -> EpisodeRows:
    """Return the rows of an episode.

    Raises:
        ArgumentError: The episode does not exist, or its shard was not fetched.
        FormatError: Its rows are outside of the tables.
    """
    context = f"dataset {dataset.name}, split {index.split}"
    episode = check_whole_number("episode", episode, least=None)
    if not 0 <= episode < len(index.episodes):
        raise ArgumentError(f"{context}: episode {episode} of {len(index.episodes):,}, counted from 0")
    fetched, shard = dataset.fetched, int(index.episodes.array("shard")[episode])
    if fetched is not None and 0 <= shard < len(index.shards) and index.shards.stem(shard) not in fetched.shards:
        problem = f"episode {episode} is in {index.shards.stem(shard)}, which was not fetched"
        raise ArgumentError(f"{context}: {problem}; bring it from {fetched.source} with `pairstream fetch`")
    rows = []
    for table, first_name, count_name in (
        (index.records, "first_record", "num_records"),
        (index.steps, "first_steps_row", "num_steps"),
    ):
        first, count = (int(index.episodes.array(name)[episode]) for name in (first_name, count_name))
        if not 0 <= first <= first + count <= len(table):
            problem = f"episode {episode} leads outside of records or steps; it is damaged"
            raise FormatError(f"{index.episodes.path}: {problem}")
        rows.append(range(first, first + count))
    return EpisodeRows(*rows)


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
    dataset: Dataset, index: SplitIndex, columns: Iterable[tuple[TableKind, str]], *, reference: SplitIndex
) -> list[UsedColumn]:
    """Return columns of an index, given by table and name, with their checksums.

    Raises ArgumentError if the split lacks a label of ``reference``, a split of the same dataset, and FormatError if a
    column is missing, or its type differs from ``reference``.
    """
    entry = dataset.manifest.splits[index.split]
    hashes_by_kind = {kind: entry.columns(kind) for kind in TABLE_KINDS}
    used = []
    for kind, name in dict.fromkeys(columns):
        table, expected = index.table(kind), reference.table(kind)
        column_hash, column = hashes_by_kind[kind].get(name), table.columns.get(name)
        if column_hash is None and column is None and kind == "steps" and name in reference.labels:
            problem = f"has no label {name!r}, which split {reference.split} has"
            remedy = "attach it there too, or load one split at a time"
            raise ArgumentError(f"dataset {index.dataset}, split {index.split}: {problem}; {remedy}")
        remedy = "convert this dataset again"
        if column_hash is None or column is None:
            raise FormatError(f"{table.path}: column {name!r} is not in both the file and the manifest; {remedy}")
        if name not in expected.columns or not column.is_like(expected.columns[name]):
            remedy = remedy if column.file is None else "attach the labels again"
            problem = f"column {name!r} is of another type than in {expected.file_of(name)}"
            raise FormatError(f"{table.file_of(name)}: {problem}; {remedy}")
        used.append(UsedColumn(table, name, column_hash, index.remote is not None))
    # Columns of a file together, so that it is opened once.
    return sorted(used, key=attrgetter("path"))


class IndexCheck:
    """A comparison of columns with their checksums, which also loads them into the kernel's cache.

    A small index is read at once; FormatError if it is damaged. ``start`` reads a larger one in a thread, up to half of
    the memory available. The thread reads from the disk at full speed, and pauses after cached bytes, to leave the
    processors to the workers. ``error`` is what it found.
    """

    def __init__(self, columns: Sequence[UsedColumn]) -> None:
        self.error: FormatError | None = None
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
        max_bytes = math.inf if available is None else available // 2
        total_bytes = accumulate(column.bytes for column in self._columns)
        columns = [column for column, size in zip(self._columns, total_bytes, strict=True) if size <= max_bytes]
        try:
            _check(columns, pause_s=_PAUSE_S)
        except FormatError as error:
            self.error = error


def _check(columns: Iterable[UsedColumn], *, pause_s: float = 0.0) -> None:
    """Compare columns with their checksums; successive columns of a file open it once."""
    for file_path, file_columns in groupby(columns, attrgetter("path")):
        try:
            with open(file_path, "rb", buffering=0) as table_file:
                for column in file_columns:
                    if _hash(table_file.fileno(), column, pause_s) != column.xxh3:
                        remedy = "Check it with `pairstream verify`, or copy it again"
                        remedy = _drop_cached(file_path) if column.is_cached else remedy
                        problem = f"column {column.name!r} differs from the manifest; {OTHER_FILE}"
                        raise FormatError(f"{file_path}: {problem}. {remedy}")
        except OSError as error:
            raise FormatError(f"{file_path}: cannot be read ({error.strerror})") from None


def _hash(descriptor: int, column: UsedColumn, pause_s: float) -> str:
    """Return the XXH3 of a column, read from its file; mapped bytes would count as memory of this process."""
    read_buffer = memoryview(bytearray(min(CHUNK, column.bytes)))

    def read(start: int, stop: int) -> memoryview:
        chunk = read_buffer[: stop - start]
        if pause_s and _read_cached(descriptor, chunk, start):
            time.sleep(pause_s)
        elif os.preadv(descriptor, [chunk], start) != len(chunk):
            raise FormatError(f"{column.path}: ends before column {column.name!r} does; copy it again")
        return chunk

    return hash_spans(column.table.columns[column.name], read)


def _read_cached(descriptor: int, chunk: memoryview, start: int) -> bool:
    """Read bytes of a file if the page cache holds all of them, and return whether it does."""
    try:
        return os.preadv(descriptor, [chunk], start, os.RWF_NOWAIT) == len(chunk)
    except (OSError, AttributeError):
        # EAGAIN, or a file system or platform without RWF_NOWAIT.
        return False
