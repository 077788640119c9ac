"""Opening ArrayRecord files for single records, in any order.

Where the ``records`` sidecar says where the records lie, they are read from there and compared with the sidecar's
checksums; array_record reads files that were converted before there was that. It reads the index of a file when it
opens it, copies each record twice and checks it by a slower hash. Measured in turns: a record of an open shard took 20
microseconds of the processor in place of 10, opening a shard again and reading a record of it half as long again, and
each open shard 26 KB more.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from stream.errors import LimitError
from stream.format import BLOCK, BLOCK_HEADER, FormatError

if TYPE_CHECKING:
    from array_record.python.array_record_module import ArrayRecordReader

# Readahead buffers and threads are for reading in sequence; with the default footer prefetch of 1 MB opening takes six
# times as long (370 instead of 59 microseconds on a local disk).
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0,footer_prefetch_bytes:8192"
_THREADS = 64
_SKIPPED = bytearray(BLOCK_HEADER)
"""Headers of blocks are read to here, by all threads; nobody looks at them."""
_LEAST_MEMORY = 1 << 20
_MOST_PARTS = os.sysconf("SC_IOV_MAX")


Place = tuple[int, int, int]
"""Where a record lies: what ``stream.format.PLACE_FIELDS`` say of it."""


class RecordMemory:
    """Where the records of one batch after the other are read to; used by one thread at a time.

    Fresh memory for every record took a microsecond more of a pair.
    """

    def __init__(self) -> None:
        self._memory = memoryview(bytearray())
        self._taken = 0

    def __len__(self) -> int:
        return len(self._memory)

    def take(self, size: int) -> memoryview:
        """Return so many bytes, which are the caller's until ``clear``."""
        start = self._taken
        stop = self._taken = start + size
        if stop > len(self._memory):
            # What was taken of the old memory keeps it.
            self._memory = np.empty(max(_LEAST_MEMORY, 2 * len(self._memory), size), np.uint8).data
            start, stop, self._taken = 0, size, size
        return self._memory[start:stop]

    def clear(self) -> None:
        """Give out the same bytes again."""
        self._taken = 0


class RecordFile:
    """An open ArrayRecord file of which it is known where the records lie; it closes with its last user.

    Args:
        path: of the file.
        position, num_bytes, xxh3_64: see ``stream.format.PLACE_FIELDS``, [records] each.

    Raises:
        OSError: it cannot be opened.
    """

    __slots__ = ("_fd", "_num_bytes", "_position", "_xxh3_64")

    def __init__(self, path: str, position: np.ndarray, num_bytes: np.ndarray, xxh3_64: np.ndarray) -> None:
        self._fd = -1
        self._position, self._num_bytes, self._xxh3_64 = position, num_bytes, xxh3_64
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        # At the end of the interpreter ``os`` may be gone before this.
        if self._fd >= 0:
            _close(self._fd)

    def read(self, record: int, place: Place | None = None, memory: RecordMemory | None = None) -> bytes | memoryview:
        """Return one record; safe to call from several threads.

        Args:
            record: its number.
            place: where it lies, if whoever calls knows.
            memory: to read it to, fresh memory without.

        Raises:
            FormatError: its bytes are not those that were written, or there is no such record.
            OSError: the disk cannot read it.
        """
        if place is not None:
            start, size, xxh3_64 = place
            return read_record(self._fd, start, size, xxh3_64, memory)
        try:
            start, size = self._position.item(record), self._num_bytes.item(record)
        except IndexError:
            raise FormatError(f"cannot be read (there are {len(self._position)} records)") from None
        return read_record(self._fd, start, size, self._xxh3_64.item(record), memory)


def read_record(file: int, start: int, size: int, xxh3_64: int, memory: RecordMemory | None = None) -> memoryview:
    """Read a record out of an ArrayRecord file.

    Args:
        file: its descriptor.
        start, size, xxh3_64: of the record, see ``stream.format.PLACE_FIELDS``.
        memory: to read it to, fresh memory without.

    Raises:
        FormatError: its bytes are not those that were written.
        OSError: the disk cannot read it.
    """
    data = np.empty(size, np.uint8).data if memory is None else memory.take(size)
    room = BLOCK - start % BLOCK
    if size <= room:
        whole = os.preadv(file, (data,), start) == size
    elif size <= room + BLOCK - BLOCK_HEADER:
        # Two of three records of 40 KB: a microsecond less of a pair than the general way.
        whole = os.preadv(file, (data[:room], _SKIPPED, data[room:]), start) == size + BLOCK_HEADER
    else:
        parts: list[bytearray | memoryview] = [data[:room]]
        for at in range(room, size, BLOCK - BLOCK_HEADER):
            parts += (_SKIPPED, data[at : at + BLOCK - BLOCK_HEADER])
        end = start
        for first in range(0, len(parts), _MOST_PARTS):
            end += os.preadv(file, parts[first : first + _MOST_PARTS], end)
        whole = end - start == size + len(parts) // 2 * BLOCK_HEADER
    if not whole or xxhash.xxh3_64_intdigest(data) != xxh3_64:
        raise FormatError("cannot be read (its bytes are not those that were written)")
    return data


class LibraryFile:
    """An open ArrayRecord file that array_record reads; it closes with its last user.

    Args:
        path: of the file.
        records: how many it has.

    Raises:
        FormatError: it is damaged.
        LimitError: see ``open_reader``.
        OSError: it cannot be opened.
    """

    def __init__(self, path: str, records: int) -> None:
        reader = open_reader(path)
        if not reader.ok():
            # The library tells a lack of file handles no different from damage; this raises it.
            open(path, "rb").close()
        if not reader.ok() or reader.num_records() != records:
            raise FormatError(
                f"{path}: {reader.num_records()} readable records, the manifest says {records}; the file is damaged "
                "or of another conversion"
            )
        self._reader = reader

    def read(self, record: int, place: Place | None = None, memory: RecordMemory | None = None) -> bytes:
        """Return one record, wherever ``place`` says it lies and in fresh memory; safe to call from several threads.
        Any damage of it raises FormatError."""
        try:
            return bytes(self._reader.read(record, record + 1)[0])
        # array_record raises RuntimeError, ValueError or IndexError, depending on what is damaged.
        except Exception as error:
            raise FormatError(f"cannot be read ({' '.join(str(error).split())[:200]})") from None


def open_reader(path: str) -> ArrayRecordReader:
    """Open an ArrayRecord file; whether it could be read is what ``ok()`` of the reader says.

    Raises:
        LimitError: this process cannot have the threads that array_record starts.
    """
    check_threads()
    from array_record.python.array_record_module import ArrayRecordReader

    return ArrayRecordReader(path, options=_OPTIONS)


@functools.cache
def check_threads(count: int = _THREADS) -> None:
    """See that this process can have so many more threads.

    array_record starts 64 with the first reader of a process, whatever its options say, and waits for ever if it gets
    only some of them.
    """
    end = threading.Event()
    started = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            started.append(thread)
    except (RuntimeError, MemoryError):
        raise LimitError(
            f"this process can have {len(started)} more threads, and array_record needs {count}; raise the limit on "
            "processes (ulimit -u, the container's pids limit) or on address space (ulimit -v), or take fewer workers"
        ) from None
    finally:
        end.set()
        for thread in started:
            thread.join()
