"""Depth maps as they are stored: a header, and the values compressed without loss.

The header has ``b"DPT1"``, the height and the width (uint16 each, little-endian). The values follow as one zstd frame:
uint16 [H, W], little-endian, row by row, in millimetres. 0 means that nothing was measured.

Differences to neighbours would save up to a third of the bytes, but summing them takes longer than all of the rest.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import numpy as np

from stream.storage.errors import FormatError

DEPTH_MAGIC = b"DPT1"
DEPTH_HEADER = struct.Struct("<4sHH")


@cache
def _codec() -> Any:
    # Only here, because processes without depth run without pyarrow.
    import pyarrow as pa

    return pa.Codec("zstd")


def depth_shape(data: bytes | memoryview) -> tuple[int, int]:
    """Return height and width of a stored depth map; raise FormatError if it is none."""
    if len(data) < DEPTH_HEADER.size:
        raise FormatError(f"{len(data)} bytes are no depth map")
    magic, height, width = DEPTH_HEADER.unpack_from(data)
    if magic != DEPTH_MAGIC:
        raise FormatError(f"no depth map: it starts with {bytes(magic)!r}, expected {DEPTH_MAGIC!r}")
    return height, width


def decode_depth(data: bytes | memoryview, out: np.ndarray) -> None:
    """Decode a stored depth map.

    Args:
        data: Depth map.
        out: uint16 [H, W], filled with its values.

    Raises:
        FormatError: It is no depth map, has another size, or is damaged.
    """
    shape = depth_shape(data)
    if shape != out.shape:
        raise FormatError(f"the depth map is {shape}, the manifest says {out.shape}")
    try:
        values = _codec().decompress(memoryview(data)[DEPTH_HEADER.size :], decompressed_size=out.nbytes)
    except (ValueError, OSError) as error:
        raise FormatError(f"depth map of {len(data)} bytes: {' '.join(str(error).split())[:200]}") from None
    out[...] = np.frombuffer(values, "<u2").reshape(shape)
