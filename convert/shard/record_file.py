"""The ArrayRecord file of a shard, written with our errors."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Self

import numpy as np
import xxhash
from array_record.python import array_record_module

from convert.errors import ShardError
from convert.shard.record_places import find_places

OPTIONS = "group_size:1,uncompressed"
"""One record per chunk for random reads; JPEG does not compress."""


class RecordWriter:
    """A writer of one ArrayRecord file; a context manager that closes it.

    Args:
        path: File.
        output: Folder to name in messages.

    Raises:
        ShardError: The disk is full or the file cannot be written; the library only says so in a RuntimeError.
        OSError: The file cannot be made.
    """

    def __init__(self, path: Path, *, output: Path) -> None:
        # The library would report a bad path with the first record only.
        path.touch()
        self._path = path
        self._output = output
        self._writer = array_record_module.ArrayRecordWriter(str(path), OPTIONS)
        self._num_bytes: list[int] = []
        self._xxh3_64: list[int] = []

    def write(self, record: bytes) -> None:
        """Append a record."""
        try:
            self._writer.write(record)
        except RuntimeError as error:
            raise self._explain(error) from error
        self._num_bytes.append(len(record))
        self._xxh3_64.append(xxhash.xxh3_64_intdigest(record))

    def places(self) -> dict[str, np.ndarray]:
        """Return the columns of ``find_places``, once the file is closed."""
        return find_places(self._path, self._num_bytes, self._xxh3_64)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._writer.close()
        except RuntimeError as error:
            # The error that left the context is not replaced by its consequence.
            if kind is None:
                raise self._explain(error) from error

    def _explain(self, error: RuntimeError) -> ShardError:
        if os.strerror(errno.ENOSPC) in str(error):
            return ShardError(f"{self._output}: the disk is full; make room and run the same command again")
        return ShardError(f"{self._path}: ArrayRecord cannot be written: {error}")
