"""ArrayRecord files, of which the index says the location of every record."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import xxhash

from stream.format.names import BLOCK, BLOCK_HEADER
from stream.storage.errors import FormatError

_SKIPPED = bytearray(BLOCK_HEADER)
"""Headers of blocks are read to here, by all threads; nobody looks at them."""
_MOST_PARTS = os.sysconf("SC_IOV_MAX")


class RecordFile:
    """An open ArrayRecord file; it closes with its last user.

    Args:
        path: File.
        size: Bytes that the manifest says it has, None to take any.

    Raises:
        FormatError: The file is missing or of another size.
        OSError: The file cannot be opened.
    """

    def __init__(self, path: str, size: int | None = None) -> None:
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FormatError(
                f"{path}: not there, though the manifest names it; run the same `python -m convert.run` command "
                "again, or copy it again"
            ) from None
        found = os.fstat(self._fd).st_size
        if size is not None and found != size:
            raise FormatError(
                f"{path}: {found:,} bytes, the manifest says {size:,}; the file is damaged or of another conversion"
            )

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        # At the end of the interpreter ``os`` may be gone before this.
        if self._fd >= 0:
            _close(self._fd)

    def read(self, position: int, num_bytes: int, xxh3_64: int) -> memoryview:
        """Return one record; safe to call from several threads.

        Args:
            position, num_bytes, xxh3_64: Location and checksum of the record, see ``RECORD_FIELDS``.

        Raises:
            FormatError: The bytes are not those that were written.
            OSError: The disk cannot read them.
        """
        if not 0 <= num_bytes < 1 << 31 or position < 0:
            raise FormatError(f"cannot be read (the index says {num_bytes:,} bytes at {position:,})")
        if num_bytes <= BLOCK - position % BLOCK:
            record = os.pread(self._fd, num_bytes, position)
            if len(record) != num_bytes or xxhash.xxh3_64_intdigest(record) != xxh3_64:
                raise FormatError("cannot be read (its bytes are not those that were written)")
            return memoryview(record)
        data = np.empty(num_bytes, np.uint8).data
        parts: list[bytearray | memoryview] = []
        start = 0
        # The file has a header at each border of a block.
        for border in range(BLOCK - position % BLOCK, num_bytes, BLOCK - BLOCK_HEADER):
            parts += (data[start:border], _SKIPPED)
            start = border
        parts.append(data[start:])
        read = 0
        for first in range(0, len(parts), _MOST_PARTS):
            read += os.preadv(self._fd, parts[first : first + _MOST_PARTS], position + read)
        if read != num_bytes + len(parts) // 2 * BLOCK_HEADER or xxhash.xxh3_64_intdigest(data) != xxh3_64:
            raise FormatError("cannot be read (its bytes are not those that were written)")
        return data
