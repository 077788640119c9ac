"""The ArrayRecord files of a split, and reading of records at the locations that the index gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from stream.base.errors import FormatError
from stream.format.names import BLOCK, BLOCK_HEADER
from stream.format.table import MISSING, OTHER_FILE

if TYPE_CHECKING:
    from stream.format.manifest import ShardEntry
    from stream.storage.object_reads import Read

_GAP = 4096
"""Bytes between two records that are still read at once."""
_MOST_AT_ONCE = 16 << 20
_MOST_BUFFERS = 1024
"""Linux's limit of one call."""
_CHANGED = "cannot be read (its bytes are not those that were written)"


@dataclass(frozen=True, eq=False)
class SplitShards:
    """The shards of one split, in the order of the manifest.

    Attributes:
        stems: Names, bytes [shards].
        episodes: Episode counts, int64 [shards].
        first_records: Row of each shard's first record in the split, and the record count, int64 [shards + 1].
        sizes: Sizes of the ArrayRecord files in bytes, int64 [shards].
    """

    stems: np.ndarray
    episodes: np.ndarray
    first_records: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, entries: Sequence[ShardEntry]) -> SplitShards:
        """Return the shards of a manifest's list."""
        return cls(
            stems=np.array([entry.name.encode() for entry in entries], "S"),
            episodes=np.array([entry.episodes for entry in entries], np.int64),
            first_records=np.cumsum([0, *(entry.records for entry in entries)], dtype=np.int64),
            sizes=np.array([entry.file.bytes for entry in entries], np.int64),
        )

    def __len__(self) -> int:
        return len(self.stems)

    def stem(self, shard_number: int) -> str:
        """Return the name of a shard."""
        return bytes(self.stems[shard_number]).decode()


class RecordFile:
    """An open ArrayRecord file of ``size`` bytes (None for any), closed with the last reference to it.

    Raises FormatError if the file is missing or has another size, and OSError if it cannot be opened.
    """

    def __init__(self, path: str, size: int | None = None) -> None:
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FormatError(f"{path}: {MISSING}") from None
        actual_size = os.fstat(self._fd).st_size
        if size is not None and actual_size != size:
            raise FormatError(f"{path}: {actual_size:,} bytes, the manifest says {size:,}; {OTHER_FILE}")

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        # When the interpreter ends, ``os`` may be gone before this object.
        if self._fd >= 0:
            _close(self._fd)

    def ahead(self, records: Iterable[tuple[int, int]]) -> list[Read]:
        """Return the remote reads of records, by position and size; none for a local file."""
        return []

    def read(self, position: int, num_bytes: int, xxh3_64: int) -> memoryview:
        """Return one record; see ``read_all``."""
        return self.read_all((position,), (num_bytes,), (xxh3_64,))[0]

    def read_all(self, positions: Sequence[int], num_bytes: Sequence[int], xxh3_64: Sequence[int]) -> list[memoryview]:
        """Return records, reading neighbours at once; several threads may call this at the same time.

        Args:
            positions, num_bytes, xxh3_64: Location and checksum of each record, see ``RECORD_FIELDS``.

        Raises:
            FormatError: The bytes do not match the checksum.
            OSError: The disk cannot read them.
        """
        sizes = list(map(stored_size, positions, num_bytes))
        records: list[memoryview] = []
        while len(records) < len(sizes):
            # One read spans the following records, as long as they are ascending, close together, and not too large.
            run_stop = len(records)
            run_start = run_end = positions[run_stop]
            while (
                run_stop < len(sizes)
                and 0 <= positions[run_stop] - run_end <= _GAP
                and run_end - run_start < _MOST_AT_ONCE
            ):
                run_end = positions[run_stop] + sizes[run_stop]
                run_stop += 1
            content = memoryview(self.pread(run_end - run_start, run_start))
            for record in range(len(records), run_stop):
                start, size = positions[record] - run_start, sizes[record]
                stored = content[start : start + size]
                records.append(cut_record(stored, size, positions[record], num_bytes[record], xxh3_64[record]))
        return records

    def pread(self, num_bytes: int, position: int) -> bytes | memoryview:
        """Return bytes of the file, fewer at its end."""
        return os.pread(self._fd, num_bytes, position)

    def read_into(self, position: int, num_bytes: int, xxh3_64: int, buffers: Sequence[memoryview]) -> None:
        """Read one record into buffers, which are filled one after the other; raise as ``read_all`` does."""
        expected = sum(map(len, buffers))
        if expected != num_bytes or position < 0:
            raise FormatError(f"has {num_bytes:,} bytes at {position:,}, expected {expected:,}")
        # The file has a header at each multiple of BLOCK, which one spare buffer takes whenever the record crosses one.
        pieces: list[memoryview] = []
        spare_header = memoryview(bytearray(BLOCK_HEADER))
        block_left, stored_bytes = BLOCK - position % BLOCK, num_bytes
        for buffer in buffers:
            start = 0
            while len(buffer) - start > block_left:
                pieces += (buffer[start : start + block_left], spare_header)
                start += block_left
                stored_bytes += BLOCK_HEADER
                block_left = BLOCK - BLOCK_HEADER
            pieces.append(buffer[start:] if start else buffer)
            block_left -= len(buffer) - start
        bytes_read = 0
        for first in range(0, len(pieces), _MOST_BUFFERS):
            bytes_read += os.preadv(self._fd, pieces[first : first + _MOST_BUFFERS], position + bytes_read)
        digest = xxhash.xxh3_64()
        for buffer in buffers:
            digest.update(buffer)
        if bytes_read != stored_bytes or digest.intdigest() != xxh3_64:
            raise FormatError(_CHANGED)


def stored_size(position: int, num_bytes: int) -> int:
    """Return the size of a record with the block headers inside of it."""
    if not 0 <= num_bytes < 1 << 31 or position < 0:
        raise FormatError(f"cannot be read (the index says {num_bytes:,} bytes at {position:,})")
    first_bytes = min(num_bytes, BLOCK - position % BLOCK)
    # Rounded up: each further block, also one that is not full, has a header.
    num_headers = -((first_bytes - num_bytes) // (BLOCK - BLOCK_HEADER))
    return num_bytes + BLOCK_HEADER * num_headers


def cut_record(stored: memoryview, size: int, position: int, num_bytes: int, xxh3_64: int) -> memoryview:
    """Return a record without its block headers; raise FormatError if the checksum is another."""
    record = stored
    if size > num_bytes:
        first_bytes = BLOCK - position % BLOCK
        blocks = (stored[start + BLOCK_HEADER : start + BLOCK] for start in range(first_bytes, size, BLOCK))
        record = memoryview(b"".join((stored[:first_bytes], *blocks)))
    if len(stored) != size or xxhash.xxh3_64_intdigest(record) != xxh3_64:
        raise FormatError(_CHANGED)
    return record
