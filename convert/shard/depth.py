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
from convert.shard.images import PNG, EncodedFrame, FramePolicy, check_png, check_size, resize
from stream.format.frame import DEPTH_HEADER, DEPTH_MAGIC

_TIFF = (b"II*\0", b"MM\0*")
_CODEC = pa.Codec("zstd", compression_level=6)
"""Level 6 decodes faster than lower ones, and saves 10 %."""
_MOST = np.iinfo(np.uint16).max


def convert_depth(
    frame: bytes | np.ndarray | CorruptFrame, policy: FramePolicy, *, scale: float | None, is_float: bool = False
) -> EncodedFrame:
    """Return one depth map of the source as it is stored.

    Args:
        frame: PNG of 16 bits, TIFF, numbers [H, W] or [H, W, 1], or the reason why there is none.
        scale: Millimetres of a stored 1; None keeps the numbers.
        is_float: Whether a PNG of four channels has the bits of a float32 in each pixel, as TFDS writes them.

    Raises:
        CorruptFrame: Not depth, damaged, or larger than 64 megapixels.
    """
    if isinstance(frame, CorruptFrame):
        raise frame
    values = _one_channel(_decode(frame, is_float=is_float) if isinstance(frame, bytes) else frame)
    depth = to_millimetres(resize(values, policy, scale_nearest), scale)
    return EncodedFrame(data=encode_depth(depth), size=depth.shape, source_size=values.shape, passed=False)


def to_millimetres(values: np.ndarray, scale: float | None) -> np.ndarray:
    """Return numbers times ``scale`` as uint16, 0 for what is no number from 0 to 65,535.

    >>> to_millimetres(np.array([0.5, np.nan, -1, 65.5351, 65.6]), 1000).tolist()
    [500, 0, 0, 65535, 0]
    """
    if values.dtype == np.uint16 and scale in (None, 1):
        return values
    found = np.rint(np.multiply(values, scale or 1, dtype=np.float64))
    return np.where((found >= 0) & (found <= _MOST), found, 0).astype(np.uint16)


def scale_nearest(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize an array [H, W] so that each value is the one under its centre.

    >>> scale_nearest(np.arange(5)[None], 1, 3).tolist()
    [[0, 2, 4]]
    """
    rows, columns = (
        (2 * np.arange(wanted) + 1) * have // (2 * wanted)
        for wanted, have in zip((height, width), values.shape, strict=True)
    )
    return values[rows[:, None], columns]


def encode_depth(depth: np.ndarray) -> bytes:
    """Encode uint16 [H, W] as ``stream.format.frame`` describes it."""
    height, width = depth.shape
    if max(height, width) > _MOST:
        raise CorruptFrame(f"depth map of {height}x{width}, a side has at most {_MOST:,}")
    values: bytes = _CODEC.compress(np.ascontiguousarray(depth, "<u2"), asbytes=True)
    return DEPTH_HEADER.pack(DEPTH_MAGIC, height, width) + values


def _decode(frame: bytes, *, is_float: bool) -> np.ndarray:
    if frame.startswith(PNG):
        check_png(frame)
        try:
            decoded = cv2.imdecode(np.frombuffer(frame, np.uint8), cv2.IMREAD_UNCHANGED)
        except cv2.error as error:
            raise CorruptFrame(f"PNG of {len(frame)} bytes: {' '.join(str(error).split())[:200]}") from None
        if decoded is None:
            raise CorruptFrame(f"PNG of {len(frame)} bytes does not decode")
        if is_float and decoded.dtype == np.uint8 and decoded.shape[2:] == (4,):
            return cv2.cvtColor(decoded, cv2.COLOR_BGRA2RGBA).view("<f4")
        return decoded
    if frame.startswith(_TIFF):
        try:
            with Image.open(io.BytesIO(frame), formats=["TIFF"]) as picture:
                check_size(picture.height, picture.width)
                return np.asarray(picture)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise CorruptFrame(f"TIFF of {len(frame)} bytes: {str(error)[:200]}") from None
    raise CorruptFrame(f"{len(frame)} bytes that are no depth map: neither PNG nor TIFF, starting with {frame[:8]!r}")


def _one_channel(values: np.ndarray) -> np.ndarray:
    """Return numbers as [H, W]; several channels may only repeat one."""
    told = f"{values.dtype} {values.shape}"
    if values.dtype.kind not in "uif" or values.dtype.itemsize == 1:
        raise CorruptFrame(f"{told} is no depth map, which has 16 bits or floats")
    if values.ndim == 3 and values.shape[2]:
        first = values[:, :, :1]
        if values.shape[2] == 1 or np.array_equal(values, np.broadcast_to(first, values.shape), equal_nan=True):
            values = first[:, :, 0]
    if values.ndim != 2 or not values.size:
        raise CorruptFrame(f"{told} is no depth map [H, W]: its channels differ, or it is empty")
    check_size(*values.shape)
    return values
