"""The ArrayRecord file of a shard: its writer, and the locations of its records.

Source of the layout: doc/riegeli_records_file_format.md of google/riegeli. A file is a sequence of chunks, each with a
header of 40 bytes and data, into which a header of 24 bytes is inserted at every border of a block of 64 KiB. With one
record per chunk and no compression, the data are a zero, the length of the length, the length (seven bits a byte), and
the record.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import xxhash
from array_record.python import array_record_module

from convert.errors import ShardError
from stream.base.errors import FormatError
from stream.format.names import BLOCK, BLOCK_HEADER, MAX_FRAMES, RECORD_HEADER, RECORD_MAGIC
from stream.format.record_file import RecordFile

OPTIONS = "group_size:1,uncompressed"
"""One record per chunk for random reads; JPEG does not compress."""
_CHUNK_HEADER = 40


def encode_record(frames: Sequence[bytes]) -> bytes:
    """Pack encoded frames into one record.

    Layout, little-endian: ``b"FRM1"``, uint32 number of frames n, n x uint32 lengths in bytes, then the frames.

    >>> from stream.format.names import decode_record
    >>> decode_record(encode_record([b"first", b"second"]))
    [b'first', b'second']
    """
    if not 1 <= len(frames) <= MAX_FRAMES:
        raise FormatError(f"a record holds 1 to {MAX_FRAMES} frames, got {len(frames)}")
    lengths = struct.pack(f"<{len(frames)}I", *(len(frame) for frame in frames))
    return b"".join((RECORD_HEADER.pack(RECORD_MAGIC, len(frames)), lengths, *frames))


class RecordWriter:
    """A writer of one ArrayRecord file; a context manager that closes it. Messages name the folder ``output``.

    Raises:
        ShardError: The disk is full or the file cannot be written; the library only says so in a RuntimeError.
        OSError: The file cannot be made.
    """

    def __init__(self, records_path: Path, *, output: Path) -> None:
        # The library would report a bad path with the first record only.
        records_path.touch()
        self._path = records_path
        self._output = output
        self._writer = array_record_module.ArrayRecordWriter(str(records_path), OPTIONS)
        self._num_bytes: list[int] = []
        self._xxh3_64: list[int] = []

    def write(self, record: bytes) -> int:
        """Append a record and return its number."""
        try:
            self._writer.write(record)
        except RuntimeError as error:
            raise self._explain(error) from error
        self._num_bytes.append(len(record))
        self._xxh3_64.append(xxhash.xxh3_64_intdigest(record))
        return len(self._num_bytes) - 1

    def locations(self) -> dict[str, np.ndarray]:
        """Return the columns of ``find_locations``, once the file is closed."""
        return find_locations(self._path, self._num_bytes, self._xxh3_64)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        try:
            self._writer.close()
        except RuntimeError as error:
            # The error that left the context is not replaced by its consequence.
            if error_type is None:
                raise self._explain(error) from error

    def _explain(self, error: RuntimeError) -> ShardError:
        if os.strerror(errno.ENOSPC) in str(error):
            return ShardError(f"{self._output}: the disk is full; make room and run the same command again")
        return ShardError(f"{self._path}: ArrayRecord cannot be written: {error}")


def find_locations(records_path: Path, num_bytes: Sequence[int], xxh3_64: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the columns ``position``, ``num_bytes`` and ``xxh3_64`` of the records of a closed file, [records] each.

    Every record is read from the location in the columns; raises ShardError if one is missing or different.
    """
    positions = _positions(num_bytes)
    record_file = RecordFile(str(records_path))
    for record_number, location in enumerate(zip(positions, num_bytes, xxh3_64, strict=True)):
        try:
            record_file.read(*location)
        except FormatError as error:
            question = "is the disk sound, and array-record the version in constraints.txt?"
            reason = f"{error}, read back; {question} Another may have an unknown layout"
            raise ShardError(f"{records_path}: record {record_number} {reason}") from None
    return {
        "position": np.array(positions, np.int64),
        "num_bytes": np.array(num_bytes, np.int32),
        "xxh3_64": np.array(xxh3_64, np.uint64),
    }


def _positions(num_bytes: Sequence[int]) -> list[int]:
    """Return the offset in the file of each record.

    >>> _positions([5, 60_000, 200, 7])
    [107, 157, 60201, 60444]
    """
    positions = []
    # Counts bytes of chunks, without the headers of blocks; the file begins with a chunk without data.
    chunk_end = _CHUNK_HEADER
    for record_length in num_bytes:
        chunk_end += _CHUNK_HEADER + 2 + max(1, -(-record_length.bit_length() // 7)) + record_length
        record_start = chunk_end - record_length
        positions.append(record_start + BLOCK_HEADER * (record_start // (BLOCK - BLOCK_HEADER) + 1))
    return positions
