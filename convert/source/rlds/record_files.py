"""TFRecord and ArrayRecord files, the formats in which TFDS stores records.

TensorFlow's own reader of TFRecord is slow to import, and it neither names damaged bytes nor reads on. Beam's is
private. Source of the format: tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import xxhash
from array_record.python.array_record_module import ArrayRecordReader

from convert.errors import DamagedRecord
from convert.report import first_line

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C of ``data``, rotated and offset as TFRecord stores it."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def encode_tfrecord(data: bytes) -> bytes:
    """Return ``data`` as one framed TFRecord entry."""
    length_crc = masked_crc32c(struct.pack("<Q", len(data)))
    return _HEADER.pack(len(data), length_crc) + data + _FOOTER.pack(masked_crc32c(data))


class TFRecordFile:
    """An iterator over the records of an open TFRecord file of ``size`` bytes, called ``name`` in messages."""

    def __init__(self, file: BinaryIO, *, name: str, size: int) -> None:
        self._file = file
        self._name = name
        self._size = size
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        """SHA-256 in hex over the lengths and stored checksums of the records read so far."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[bytes | DamagedRecord]:
        """Yield the items of ``read`` for all records."""
        return (item for item in self.read(lambda number: True) if item is not None)

    def read(self, is_requested: Callable[[int], bool]) -> Iterator[bytes | DamagedRecord | None]:
        """Yield each record, or a ``DamagedRecord`` instead of a record with a wrong checksum.

        Of an unrequested record only the length is read, and None is yielded. After a damaged length, or in a file that
        ends inside a record, nothing more is readable: the last item is then a ``DamagedRecord`` with ``rest=True``.
        """
        position = record_start = 0
        while header := self._file.read(_HEADER.size):
            # A header that is cut short is a truncated record below.
            length, length_crc = _HEADER.unpack(header.ljust(_HEADER.size))
            if len(header) == _HEADER.size and masked_crc32c(header[:8]) != length_crc:
                fault = f"wrong checksum of the length of record {position} at byte {record_start}"
                yield DamagedRecord(f"{self._name}: {fault}; nothing after it is readable", rest=True)
                return
            record_end = record_start + _HEADER.size + length + _FOOTER.size
            is_skipped = record_end <= self._size and self._file.seekable() and not is_requested(position)
            if is_skipped:
                self._file.seek(length, os.SEEK_CUR)
            data = self._file.read(length) if record_end <= self._size and not is_skipped else b""
            footer = self._file.read(_FOOTER.size)
            if (len(data) < length and not is_skipped) or len(footer) < _FOOTER.size:
                fault = f"ends inside record {position}, which starts at byte {record_start}"
                yield DamagedRecord(f"{self._name}: {fault}; the file is truncated, copy it again", rest=True)
                return
            self._digest.update(header + footer)
            if is_skipped:
                yield None
            elif masked_crc32c(data) == _FOOTER.unpack(footer)[0]:
                yield data
            else:
                message = f"wrong checksum of record {position} at byte {record_start} ({length} bytes)"
                yield DamagedRecord(f"{self._name}: {message}", rest=False)
            position += 1
            record_start = record_end


class ArrayRecordFile:
    """An iterator over the records of a local ArrayRecord file; ``name`` is its name in messages."""

    def __init__(self, path: Path, *, name: str) -> None:
        self._path = path
        self._name = name
        self._digest = xxhash.xxh3_128()

    @property
    def digest(self) -> str:
        """XXH3 in hex over the records read so far."""
        return self._digest.hexdigest()

    def read(self, is_requested: Callable[[int], bool]) -> Iterator[bytes | DamagedRecord | None]:
        """Yield each record, or a ``DamagedRecord`` instead of one that does not read.

        An unrequested record is read for the digest and yielded as None. In a file that is cut short no record is
        readable: the only item is a ``DamagedRecord`` with ``rest=True``.
        """
        reader = ArrayRecordReader(str(self._path), "readahead_buffer_size:0,max_parallelism:1")
        if not reader.ok():
            yield DamagedRecord(f"{self._name}: not a complete ArrayRecord file; copy it again", rest=True)
            return
        for number in range(reader.num_records()):
            try:
                (record,) = reader.read(number, number + 1)
            except (RuntimeError, ValueError, IndexError) as error:
                yield DamagedRecord(f"{self._name}: record {number} does not read: {first_line(error)}", rest=False)
            else:
                self._digest.update(xxhash.xxh3_128_digest(record))
                yield record if is_requested(number) else None
