"""Reading of records from ArrayRecord files, at the locations that the index gives."""

from __future__ import annotations

import os
from collections.abc import Callable

import xxhash

from stream.format.names import BLOCK, BLOCK_HEADER
from stream.storage.errors import FormatError


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

    def read(self, position: int, num_bytes: int, xxh3_64: int) -> memoryview:
        """Return one record; several threads may call this at the same time.

        Args:
            position, num_bytes, xxh3_64: Location and checksum of the record, see ``RECORD_FIELDS``.

        Raises:
            FormatError: The bytes do not match the checksum.
            OSError: The disk cannot read them.
        """
        if not 0 <= num_bytes < 1 << 31 or position < 0:
            raise FormatError(f"cannot be read (the index says {num_bytes:,} bytes at {position:,})")
        first = min(num_bytes, BLOCK - position % BLOCK)
        size = num_bytes + BLOCK_HEADER * -((first - num_bytes) // (BLOCK - BLOCK_HEADER))
        stored = memoryview(os.pread(self._fd, size, position))
        record = stored
        if size > num_bytes:
            blocks = (stored[start + BLOCK_HEADER : start + BLOCK] for start in range(first, size, BLOCK))
            record = memoryview(b"".join((stored[:first], *blocks)))
        if len(stored) != size or xxhash.xxh3_64_intdigest(record) != xxh3_64:
            raise FormatError("cannot be read (its bytes are not those that were written)")
        return record
