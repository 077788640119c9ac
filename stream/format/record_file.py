"""Reading of records from ArrayRecord files, at the locations that the index gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import xxhash

from stream.base.errors import FormatError
from stream.format.names import BLOCK, BLOCK_HEADER

if TYPE_CHECKING:
    from stream.storage.object_reads import Read

_GAP = 4096
"""Bytes between two records that are still read at once."""
_MOST_AT_ONCE = 16 << 20
_MOST_BUFFERS = 1024
"""Linux's limit of one call."""
_CHANGED = "cannot be read (its bytes are not those that were written)"


class RecordFile:
    """An open ArrayRecord file, closed with the last reference to it.

    Args:
        path: File.
        size: Size in bytes that the manifest gives, or None for any.

    Raises:
        FormatError: The file is missing or has another size.
        OSError: The file cannot be opened.
    """

    def __init__(self, path: str, size: int | None = None) -> None:
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FormatError(
                f"{path}: missing, though the manifest names it; run the same `python -m convert.run` command "
                "again, or copy it again"
            ) from None
        found = os.fstat(self._fd).st_size
        if size is not None and found != size:
            raise FormatError(
                f"{path}: {found:,} bytes, the manifest says {size:,}; the file is damaged or belongs to another "
                "conversion"
            )

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        # When the interpreter ends, ``os`` may be gone before this object.
        if self._fd >= 0:
            _close(self._fd)

    def ahead(self, records: Iterable[tuple[int, int]]) -> list[Read]:
        """Return the reads that bring records from afar, none for a local file.

        Args:
            records: Position and size of each record.
        """
        return []

    def read(self, position: int, num_bytes: int, xxh3_64: int) -> memoryview:
        """Return one record; see ``read_all``."""
        return self.read_all((position,), (num_bytes,), (xxh3_64,))[0]

    def read_all(self, positions: Sequence[int], num_bytes: Sequence[int], xxh3_64: Sequence[int]) -> list[memoryview]:
        """Return some records; several threads may call this at the same time.

        Records that lie one after the other are read at once.

        Args:
            positions, num_bytes, xxh3_64: Location and checksum of each record, see ``RECORD_FIELDS``.

        Raises:
            FormatError: The bytes do not match the checksum.
            OSError: The disk cannot read them.
        """
        sizes = list(map(stored_size, positions, num_bytes))
        found: list[memoryview] = []
        while len(found) < len(sizes):
            start = stop = len(found)
            begin = end = positions[start]
            while stop < len(sizes) and 0 <= positions[stop] - end <= _GAP and end - begin < _MOST_AT_ONCE:
                end = positions[stop] + sizes[stop]
                stop += 1
            run = memoryview(self.pread(end - begin, begin))
            for number in range(start, stop):
                first = positions[number] - begin
                stored = run[first : first + sizes[number]]
                found.append(cut_record(stored, sizes[number], positions[number], num_bytes[number], xxh3_64[number]))
        return found

    def pread(self, num_bytes: int, position: int) -> bytes | memoryview:
        """Return bytes of the file, fewer at its end."""
        return os.pread(self._fd, num_bytes, position)

    def read_into(self, position: int, num_bytes: int, xxh3_64: int, parts: Sequence[memoryview]) -> None:
        """Read one record into buffers, which are filled one after the other; raises as ``read_all`` does."""
        expected = sum(map(len, parts))
        if expected != num_bytes or position < 0:
            raise FormatError(f"has {num_bytes:,} bytes at {position:,}, expected {expected:,}")
        buffers: list[memoryview] = []
        header = memoryview(bytearray(BLOCK_HEADER))
        room, size = BLOCK - position % BLOCK, num_bytes
        digest = xxhash.xxh3_64()
        for part in parts:
            start = 0
            while len(part) - start > room:
                buffers += (part[start : start + room], header)
                start, room, size = start + room, BLOCK - BLOCK_HEADER, size + BLOCK_HEADER
            buffers.append(part[start:] if start else part)
            room -= len(part) - start
        found = 0
        for first in range(0, len(buffers), _MOST_BUFFERS):
            found += os.preadv(self._fd, buffers[first : first + _MOST_BUFFERS], position + found)
        for part in parts:
            digest.update(part)
        if found != size or digest.intdigest() != xxh3_64:
            raise FormatError(_CHANGED)


def stored_size(position: int, num_bytes: int) -> int:
    """Return the size of a record with the block headers inside of it."""
    if not 0 <= num_bytes < 1 << 31 or position < 0:
        raise FormatError(f"cannot be read (the index says {num_bytes:,} bytes at {position:,})")
    first = min(num_bytes, BLOCK - position % BLOCK)
    return num_bytes + BLOCK_HEADER * -((first - num_bytes) // (BLOCK - BLOCK_HEADER))


def cut_record(stored: memoryview, size: int, position: int, num_bytes: int, xxh3_64: int) -> memoryview:
    """Return a record without its block headers; raise FormatError if the checksum is another."""
    record = stored
    if size > num_bytes:
        first = BLOCK - position % BLOCK
        blocks = (stored[start + BLOCK_HEADER : start + BLOCK] for start in range(first, size, BLOCK))
        record = memoryview(b"".join((stored[:first], *blocks)))
    if len(stored) != size or xxhash.xxh3_64_intdigest(record) != xxh3_64:
        raise FormatError(_CHANGED)
    return record
