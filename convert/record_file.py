"""The ArrayRecord file of a shard: written with our errors, and counted."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType

import numpy as np
import xxhash
from array_record.python import array_record_module

from convert.errors import ConvertError, ShardError
from convert.record_places import find_places
from stream.errors import LimitError
from stream.format import ARRAYRECORD_OPTIONS, FormatError, open_sidecar
from stream.record_reader import open_reader


class RecordWriter:
    """Writes one ArrayRecord file; a context manager that closes it.

    Raises:
        ShardError: the disk is full or the file cannot be written; the library only says so in the text of a
            RuntimeError.
    """

    def __init__(self, path: Path, *, output: Path) -> None:
        """``output``: the folder to name in messages."""
        # The library reports a path that cannot be written no sooner than with the first record.
        path.touch()
        self._path = path
        self._output = output
        self._writer = array_record_module.ArrayRecordWriter(str(path), ARRAYRECORD_OPTIONS)
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
        """Return where the records lie, ``stream.format.PLACE_FIELDS``, [records] each, once the file is closed. Each
        was read from there and is what was written, or this raises ShardError."""
        return find_places(self._path, self._num_bytes, self._xxh3_64)

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._writer.close()
        except RuntimeError as failure:
            if error is None:
                raise self._explain(failure) from failure

    def _explain(self, error: RuntimeError) -> ShardError:
        if os.strerror(errno.ENOSPC) in str(error):
            return ShardError(f"{self._output}: the disk is full; make room and run the same command again")
        return ShardError(f"{self._path}: ArrayRecord cannot be written: {error}")


def count_rows(path: Path, kind: str) -> int:
    """Open a file of a shard and return how many records or rows it has, -1 if it is not readable.

    Raises:
        ConvertError: this process cannot have the threads of a reader.
    """
    if kind != "arrayrecord":
        try:
            return int(open_sidecar(path).num_rows)
        except FormatError:
            return -1
    try:
        reader = open_reader(str(path))
    except LimitError as error:
        raise ConvertError(str(error)) from None
    if not reader.ok():
        # To close it would raise.
        return -1
    try:
        return int(reader.num_records())
    finally:
        reader.close()
