"""Whether an Arrow file is compressed, found out before Arrow allocates anything for it.

Arrow inflates a compressed batch to whatever length the batch claims, so a small file could take all memory. The
format's sidecars are not compressed. pyarrow does not say which files are, so the few fields that tell are looked up
here; source of their layout: format/File.fbs and format/Message.fbs of Apache Arrow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_MAGIC = b"ARROW1"
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_BLOCK = struct.Struct("<qi4xq")
_CONTINUATION = 0xFFFFFFFF


def has_compressed_batches(file: memoryview) -> bool:
    """Whether any batch of an Arrow IPC file is compressed.

    Args:
        file: all of its bytes; few of them are looked at.

    Raises:
        ValueError: the file is not complete, or a place in it leads outside.
    """
    try:
        if bytes(file[-len(_MAGIC) :]) != _MAGIC:
            raise ValueError("does not end as an Arrow file")
        (length,) = struct.unpack_from("<i", file, len(file) - 10)
        footer = _table(file, len(file) - 10 - length)
        return any(_compressed(file, block) for slot in (2, 3) for block in _blocks(file, footer, slot))
    except (struct.error, IndexError):
        raise ValueError("a place in its footer leads outside of it") from None


def _blocks(file: memoryview, footer: int, slot: int) -> Iterator[int]:
    """Where the messages of the footer's list of batches begin."""
    place = _field(file, footer, slot)
    if not place:
        return
    vector = place + _u32(file, place)
    for number in range(_u32(file, vector)):
        offset, _, _ = _BLOCK.unpack_from(file, vector + 4 + number * _BLOCK.size)
        yield offset


def _compressed(file: memoryview, offset: int) -> bool:
    if offset < 0:
        raise ValueError("a batch of it begins before it does")
    message = _table(file, offset + (8 if _u32(file, offset) == _CONTINUATION else 4))
    kind, header = _field(file, message, 1), _field(file, message, 2)
    if not kind or not header:
        return False
    batch = header + _u32(file, header)
    if file[kind] == _DICTIONARY_BATCH:
        data = _field(file, batch, 1)
        if not data:
            return False
        batch = data + _u32(file, data)
    elif file[kind] != _RECORD_BATCH:
        return False
    return bool(_field(file, batch, 3))


def _table(file: memoryview, root: int) -> int:
    """Place of the table that a flatbuffer at ``root`` begins with."""
    return root + _u32(file, root)


def _field(file: memoryview, table: int, slot: int) -> int:
    """Place of a field of a table, 0 if it is not there."""
    vtable = table - int(struct.unpack_from("<i", file, table)[0])
    size, _ = struct.unpack_from("<HH", file, vtable)
    if 4 + 2 * slot >= size:
        return 0
    (offset,) = struct.unpack_from("<H", file, vtable + 4 + 2 * slot)
    return table + int(offset) if offset else 0


def _u32(file: memoryview, place: int) -> int:
    return int(struct.unpack_from("<I", file, place)[0])
