"""Depth: values of any unit become uint16 millimetres, resized by the nearest value and stored without loss.

0 means that nothing was measured: so do NaN, infinity, negative values and what is beyond 65,535 mm. Values that are no
whole millimetres are rounded, half to even.
"""

from __future__ import annotations

import io

import cv2
import numpy as np
import pyarrow as pa
from PIL import Image

from convert.errors import CorruptFrame
from convert.picture import PNG, check_png, check_size, decode_by_opencv
from convert.shard.images import EncodedFrame, FramePolicy, resize
from stream.format.frame import DEPTH_HEADER, DEPTH_MAGIC

_TIFF = (b"II*\0", b"MM\0*")
_CODEC = pa.Codec("zstd", compression_level=6)
"""Level 6 decodes faster than lower ones, and saves 10 %."""
_MOST = np.iinfo(np.uint16).max


def convert_depth(
    frame: bytes | np.ndarray | CorruptFrame, policy: FramePolicy, *, scale: float | None, is_float: bool = False
) -> EncodedFrame:
    """Return one depth map as it is stored; raises CorruptFrame if damaged, no depth, or above 64 megapixels.

    Args:
        frame: PNG of 16 bits, TIFF, numbers [H, W] or [H, W, 1], or the reason why there is none.
        scale: Millimetres of a stored 1; None keeps the numbers.
        is_float: Whether a PNG of four channels has the bits of a float32 in each pixel, as TFDS writes them.
    """
    if isinstance(frame, CorruptFrame):
        raise frame
    depth_values = _one_channel(_decode(frame, is_float=is_float) if isinstance(frame, bytes) else frame)
    depth_map = to_millimetres(resize(depth_values, policy, scale_nearest), scale)
    return EncodedFrame(data=encode_depth(depth_map), size=depth_map.shape, source_size=depth_values.shape)


def to_millimetres(depth_values: np.ndarray, millimetres_per_unit: float | None) -> np.ndarray:
    """Return numbers times ``millimetres_per_unit`` as uint16, 0 for what is no number from 0 to 65,535.

    >>> to_millimetres(np.array([0.5, np.nan, -1, 65.5351, 65.6]), 1000).tolist()
    [500, 0, 0, 65535, 0]
    """
    if depth_values.dtype == np.uint16 and millimetres_per_unit in (None, 1):
        return depth_values
    millimetres = np.rint(np.multiply(depth_values, millimetres_per_unit or 1, dtype=np.float64))
    return np.where((millimetres >= 0) & (millimetres <= _MOST), millimetres, 0).astype(np.uint16)


def scale_nearest(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize an array [H, W] so that each value is the one under its centre.

    >>> scale_nearest(np.arange(5)[None], 1, 3).tolist()
    [[0, 2, 4]]
    """
    row_numbers, column_numbers = (
        (2 * np.arange(new_side) + 1) * old_side // (2 * new_side)
        for new_side, old_side in zip((height, width), values.shape, strict=True)
    )
    return values[row_numbers[:, None], column_numbers]


def encode_depth(depth_map: np.ndarray) -> bytes:
    """Encode uint16 [H, W] as ``stream.format.frame`` describes it."""
    height, width = depth_map.shape
    if max(height, width) > _MOST:
        raise CorruptFrame(f"depth map of {height}x{width}, a side has at most {_MOST:,}")
    compressed: bytes = _CODEC.compress(np.ascontiguousarray(depth_map, "<u2"), asbytes=True)
    return DEPTH_HEADER.pack(DEPTH_MAGIC, height, width) + compressed


def _decode(encoded: bytes, *, is_float: bool) -> np.ndarray:
    if encoded.startswith(PNG):
        check_png(encoded)
        decoded = decode_by_opencv(encoded, "PNG", cv2.IMREAD_UNCHANGED)
        if is_float and decoded.dtype == np.uint8 and decoded.shape[2:] == (4,):
            return cv2.cvtColor(decoded, cv2.COLOR_BGRA2RGBA).view("<f4")
        return decoded
    if encoded.startswith(_TIFF):
        try:
            with Image.open(io.BytesIO(encoded), formats=["TIFF"]) as picture:
                check_size(picture.height, picture.width)
                return np.asarray(picture)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise CorruptFrame(f"TIFF of {len(encoded)} bytes: {str(error)[:200]}") from None
    raise CorruptFrame(
        f"{len(encoded)} bytes that are no depth map: neither PNG nor TIFF, starting with {encoded[:8]!r}"
    )


def _one_channel(values: np.ndarray) -> np.ndarray:
    """Return numbers as [H, W]; several channels may only repeat one."""
    description = f"{values.dtype} {values.shape}"
    if values.dtype.kind not in "uif" or values.dtype.itemsize == 1:
        raise CorruptFrame(f"{description} is no depth map, which has 16 bits or floats")
    if values.ndim == 3 and values.shape[2]:
        first_channel = values[:, :, :1]
        if values.shape[2] == 1 or np.array_equal(values, np.broadcast_to(first_channel, values.shape), equal_nan=True):
            values = first_channel[:, :, 0]
    if values.ndim != 2 or not values.size:
        raise CorruptFrame(f"{description} is no depth map [H, W]: its channels differ, or it is empty")
    check_size(*values.shape)
    return values
