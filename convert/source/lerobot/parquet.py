"""Bound of the memory that parquet files claim, because a few bytes on the disk can stand for any number in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

MOST = 1 << 32
"""Bytes that are read at once. Larger row groups are of pictures, which hardly shrink; numbers stay far below."""
MOST_METADATA = 1 << 28
"""Bytes of a file of ``meta``: those of a million episodes."""
_SHRINK = 8
"""Times that any file may have shrunk, whatever its size."""


def check_claim(file: pq.ParquetFile, columns: Sequence[str], *, groups: Iterable[int], size: int, most: int) -> None:
    """Refuse row groups that would take more memory than ``most``, and more than a file of ``size`` bytes stands for.

    The values are counted too, because equal ones take no bytes before they are in memory.

    Raises:
        pa.ArrowInvalid: They take more.
        KeyError: The file lacks a column, or has two of its name.
    """
    widths = {name: _width(file.schema_arrow.field(name).type) for name in columns}
    paths = [f"{file.schema.column(number).path}." for number in range(len(file.schema))]
    leaves = [(at, name) for at, path in enumerate(paths) for name in columns if path.startswith(f"{name}.")]
    claims = dict.fromkeys(columns, 0)
    for group in map(file.metadata.row_group, groups):
        for at, name in leaves:
            chunk = group.column(at)
            claims[name] += max(chunk.total_uncompressed_size, chunk.num_values * widths[name])
    if (claimed := sum(claims.values())) > max(most, _SHRINK * size):
        largest = max(claims, key=lambda name: claims[name])
        raise pa.ArrowInvalid(
            f"{claimed:,} bytes in memory, most of {largest:.80}; expected at most {most:,} of a file of {size:,}; "
            "write it again"
        )


def _width(kind: pa.DataType) -> int:
    """Return the bytes of a number in memory, 0 for texts and pictures, whose count says nothing about their size."""
    while inner := getattr(kind, "value_type", None):
        kind = inner
    return -(-kind.bit_width // 8) if pa.types.is_primitive(kind) else 0
