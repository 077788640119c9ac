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
        actual_size = os.fstat(self._fd).st_size
        if size is not None and actual_size != size:
            raise FormatError(
                f"{path}: {actual_size:,} bytes, the manifest says {size:,}; the file is damaged or belongs to another "
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
        stored_sizes = list(map(stored_size, positions, num_bytes))
        verified: list[memoryview] = []
        while len(verified) < len(stored_sizes):
            run_start = run_stop = len(verified)
            begin = end = positions[run_start]
            while (
                run_stop < len(stored_sizes) and 0 <= positions[run_stop] - end <= _GAP and end - begin < _MOST_AT_ONCE
            ):
                end = positions[run_stop] + stored_sizes[run_stop]
                run_stop += 1
            run_bytes = memoryview(self.pread(end - begin, begin))
            for record_index in range(run_start, run_stop):
                record_start = positions[record_index] - begin
                stored_record = run_bytes[record_start : record_start + stored_sizes[record_index]]
                verified.append(
                    cut_record(
                        stored_record,
                        stored_sizes[record_index],
                        positions[record_index],
                        num_bytes[record_index],
                        xxh3_64[record_index],
                    )
                )
        return verified

    def pread(self, num_bytes: int, position: int) -> bytes | memoryview:
        """Return bytes of the file, fewer at its end."""
        return os.pread(self._fd, num_bytes, position)

    def read_into(self, position: int, num_bytes: int, xxh3_64: int, frame_buffers: Sequence[memoryview]) -> None:
        """Read one record into buffers, which are filled one after the other; raises as ``read_all`` does."""
        expected = sum(map(len, frame_buffers))
        if expected != num_bytes or position < 0:
            raise FormatError(f"has {num_bytes:,} bytes at {position:,}, expected {expected:,}")
        buffers: list[memoryview] = []
        block_header = memoryview(bytearray(BLOCK_HEADER))
        block_remaining, stored_bytes = BLOCK - position % BLOCK, num_bytes
        record_hash = xxhash.xxh3_64()
        for frame_buffer in frame_buffers:
            split_at = 0
            while len(frame_buffer) - split_at > block_remaining:
                buffers += (frame_buffer[split_at : split_at + block_remaining], block_header)
                split_at, block_remaining, stored_bytes = (
                    split_at + block_remaining,
                    BLOCK - BLOCK_HEADER,
                    stored_bytes + BLOCK_HEADER,
                )
            buffers.append(frame_buffer[split_at:] if split_at else frame_buffer)
            block_remaining -= len(frame_buffer) - split_at
        bytes_read = 0
        for first_buffer in range(0, len(buffers), _MOST_BUFFERS):
            bytes_read += os.preadv(
                self._fd, buffers[first_buffer : first_buffer + _MOST_BUFFERS], position + bytes_read
            )
        for frame_buffer in frame_buffers:
            record_hash.update(frame_buffer)
        if bytes_read != stored_bytes or record_hash.intdigest() != xxh3_64:
            raise FormatError(_CHANGED)


def stored_size(position: int, num_bytes: int) -> int:
    """Return the size of a record with the block headers inside of it."""
    if not 0 <= num_bytes < 1 << 31 or position < 0:
        raise FormatError(f"cannot be read (the index says {num_bytes:,} bytes at {position:,})")
    first_bytes = min(num_bytes, BLOCK - position % BLOCK)
    return num_bytes + BLOCK_HEADER * -((first_bytes - num_bytes) // (BLOCK - BLOCK_HEADER))


def cut_record(stored_record: memoryview, size: int, position: int, num_bytes: int, xxh3_64: int) -> memoryview:
    """Return a record without its block headers; raise FormatError if the checksum is another."""
    record = stored_record
    if size > num_bytes:
        first_bytes = BLOCK - position % BLOCK
        block_contents = (
            stored_record[block_start + BLOCK_HEADER : block_start + BLOCK]
            for block_start in range(first_bytes, size, BLOCK)
        )
        record = memoryview(b"".join((stored_record[:first_bytes], *block_contents)))
    if len(stored_record) != size or xxhash.xxh3_64_intdigest(record) != xxh3_64:
        raise FormatError(_CHANGED)
    return record
