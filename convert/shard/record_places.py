"""Where ArrayRecord put the records of a file, found in the file and compared with what was written.

Source of the layout: doc/riegeli_records_file_format.md of google/riegeli. A file is blocks of 64 KiB that begin with a
header of 24 bytes each, and, with these headers left out, a sequence of chunks: a header of 40 bytes and data. With one
record a chunk and no compression, the data are a zero, the length of the length, the length, and the record.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from convert.errors import ShardError
from stream.format.names import BLOCK, BLOCK_HEADER
from stream.format.record_file import RecordFile
from stream.storage.errors import FormatError

_HEADER = struct.Struct("<5Q")
"""Of a chunk: hash of the rest of the header, size and hash of its data, its kind in one byte and its records in seven,
size of its decoded data."""
_RECORDS = ord("r")


def find_places(path: Path, num_bytes: Sequence[int], xxh3_64: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the columns ``position``, ``num_bytes`` and ``xxh3_64`` of the records of a file, [records] each.

    Every record is read from the location that the columns say.

    Args:
        path: ArrayRecord file, closed by its writer.
        num_bytes: Size of each record that was written, in order.
        xxh3_64: Checksum of each record.

    Raises:
        ShardError: A record is not there.
        OSError: The file cannot be read.
    """
    positions = _find_positions(path, num_bytes)
    file = RecordFile(str(path))
    for record, place in enumerate(zip(positions, num_bytes, xxh3_64, strict=True)):
        try:
            file.read(*place)
        except FormatError as error:
            raise ShardError(f"{path}: record {record} {error}, read back; is the disk sound?") from None
    return {
        "position": np.array(positions, np.int64),
        "num_bytes": np.array(num_bytes, np.int32),
        "xxh3_64": np.array(xxh3_64, np.uint64),
    }


def _find_positions(path: Path, num_bytes: Sequence[int]) -> list[int]:
    positions: list[int] = []
    with path.open("rb", buffering=0) as file:
        chunk = 0
        while len(positions) < len(num_bytes):
            header, data = _read(file.fileno(), chunk, _HEADER.size)
            if len(header) < _HEADER.size:
                raise ShardError(f"{path}: ends after {len(positions)} of {len(num_bytes)} records")
            _, size, _, kind, _ = _HEADER.unpack(header)
            if kind & 0xFF == _RECORDS:
                length = num_bytes[len(positions)]
                head = _varint(length)
                head = bytes([0, len(head)]) + head
                found, position = _read(file.fileno(), data, len(head))
                if found != head or kind >> 8 != 1 or size != len(head) + length:
                    raise ShardError(
                        f"{path}: array_record wrote record {len(positions)} in a way that is not known here; install "
                        "the version of array-record that constraints.txt names"
                    )
                positions.append(position)
            chunk = _advance(data, size)
    return positions


def _read(fd: int, position: int, size: int) -> tuple[bytes, int]:
    """Read bytes of chunks, without the headers of blocks; returns them, and where those behind them begin."""
    end = _advance(position, size)
    stored = os.pread(fd, end - position, position)
    # Of a few bytes, at most one header is in between.
    border = -position % BLOCK
    if border < len(stored):
        stored = stored[:border] + stored[border + BLOCK_HEADER :]
    return stored, _behind_header(end)


def _advance(position: int, size: int) -> int:
    """The end of so many bytes of chunks that begin at a position."""
    position = _behind_header(position)
    inside = position % BLOCK - BLOCK_HEADER + size
    blocks = max(0, inside - 1) // (BLOCK - BLOCK_HEADER)
    return position // BLOCK * BLOCK + BLOCK_HEADER + inside + blocks * BLOCK_HEADER


def _behind_header(position: int) -> int:
    return position + BLOCK_HEADER if position % BLOCK == 0 else position


def _varint(number: int) -> bytes:
    """A whole number >= 0 as in protocol buffers: seven bits a byte, the lowest first.

    >>> _varint(300)
    b'\\xac\\x02'
    """
    coded = bytearray()
    while number > 0x7F:
        coded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*coded, number])
