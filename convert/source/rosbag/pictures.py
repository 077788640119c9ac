"""Pictures of messages: raw pictures as arrays, compressed pictures as stored."""

from __future__ import annotations

from typing import Any, NamedTuple

import cv2
import numpy as np

from convert.errors import CorruptFrame, MalformedEpisode
from convert.picture import PICTURES

RAW, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
_VIDEO = ("CompressedVideo", "FFMPEGPacket")
_DEPTH_HEADER = 12
"""Bytes before the PNG of compressed depth."""


class _Encoding(NamedTuple):
    """The pixels of an encoding.

    Attributes:
        dtype: dtype of the ``stored`` values of a pixel; 16 bits of colours are cut to 8.
        colours: Slice of red, green and blue, or OpenCV's code for the conversion to RGB; None for depth.
    """

    dtype: str
    stored: int
    colours: slice | int | None = None


_ORDERS: dict[str, tuple[int, slice | int]] = {
    "rgb": (3, slice(0, 3)),
    "bgr": (3, slice(2, None, -1)),
    "rgba": (4, slice(0, 3)),
    "bgra": (4, slice(2, None, -1)),
    "bayer_rggb": (1, cv2.COLOR_BayerRGGB2RGB),
    "bayer_bggr": (1, cv2.COLOR_BayerBGGR2RGB),
    "bayer_gbrg": (1, cv2.COLOR_BayerGBRG2RGB),
    "bayer_grbg": (1, cv2.COLOR_BayerGRBG2RGB),
}
_ENCODINGS = {
    **{f"{order}{bits}": _Encoding(f"uint{bits}", *pixels) for order, pixels in _ORDERS.items() for bits in (8, 16)},
    # A camera's own name, and that of ROS 1, for the same bytes.
    **dict.fromkeys(("uyvy", "yuv422"), _Encoding("uint8", 2, cv2.COLOR_YUV2RGB_UYVY)),
    **dict.fromkeys(("yuyv", "yuv422_yuy2"), _Encoding("uint8", 2, cv2.COLOR_YUV2RGB_YUY2)),
    **dict.fromkeys(("mono8", "8UC1"), _Encoding("uint8", 1, slice(0, 1))),
    **dict.fromkeys(("mono16", "16UC1"), _Encoding("uint16", 1)),
    "32FC1": _Encoding("float32", 1),
}
"""Encodings of sensor_msgs/image_encodings.hpp. 8UC3 and 8UC4 are missing, as they do not define which value is red."""


class PictureForm(NamedTuple):
    """Shape and dtype of a picture; None where unknown before decoding."""

    shape: tuple[int | None, ...]
    dtype: str


def is_picture(kind: str) -> bool:
    """Return whether the messages of a type are pictures; MalformedEpisode if they are pieces of a video."""
    if kind.rpartition("/")[2] in _VIDEO:
        raise MalformedEpisode(f"{kind} is a video, which is not read from bags; record CompressedImage instead")
    return kind in (RAW, COMPRESSED)


def picture_form(message: Any, encoding: str | None) -> PictureForm:
    """Return the shape and dtype of a picture; MalformedEpisode if its encoding is not known."""
    if hasattr(message, "encoding"):
        pixel_format = _find(encoding or message.encoding)
        image_size = (message.height, message.width)
        if pixel_format.colours is None:
            return PictureForm(image_size, pixel_format.dtype)
        return PictureForm((*image_size, 1 if pixel_format.colours == slice(0, 1) else 3), "uint8")
    is_depth = _is_depth(message)
    if is_depth and "32FC1" in message.format:
        raise MalformedEpisode(f"compressed depth of format {message.format!r} is not read, only 16UC1")
    return PictureForm((None, None), "uint16") if is_depth else PictureForm((None, None, 3), "uint8")


def read_picture(message: Any, encoding: str | None) -> np.ndarray | bytes:
    """Return a raw picture as uint8 [H, W, 1 or 3] in RGB or depth [H, W], or a compressed picture unchanged.

    A message without a picture, or with too few bytes for it, raises CorruptFrame.
    """
    if hasattr(message, "encoding"):
        return _pixels(message, encoding)
    data = message.data.tobytes()[_DEPTH_HEADER if _is_depth(message) and "compressedDepth" in message.format else 0 :]
    if not data.startswith(PICTURES):
        raise CorruptFrame(f"{message.format!r:.80}: the data are not JPEG, PNG or WebP")
    return data


def _is_depth(message: Any) -> bool:
    return "compressedDepth" in message.format or message.format.startswith(("16UC1", "mono16", "32FC1"))


def _find(encoding: str) -> _Encoding:
    if encoding not in _ENCODINGS:
        advice = "if the pixels are one of these, name it as encoding in the layout, else record CompressedImage"
        raise MalformedEpisode(
            f"pictures of encoding {encoding!r:.80} are not read, only {', '.join(_ENCODINGS)}; {advice}"
        )
    return _ENCODINGS[encoding]


def _pixels(message: Any, encoding: str | None) -> np.ndarray:
    encoding_name = encoding or message.encoding
    pixel_format = _find(encoding_name)
    dtype = np.dtype(pixel_format.dtype).newbyteorder(">" if message.is_bigendian else "<")
    row_bytes = message.width * pixel_format.stored * dtype.itemsize
    row_stride = message.step or row_bytes
    description = f"a picture of {message.height} x {message.width} {encoding_name} with {row_stride} bytes a row"
    if not row_bytes or not message.height or row_stride < row_bytes or len(message.data) < message.height * row_stride:
        raise CorruptFrame(f"{description} has {len(message.data)} bytes")
    if encoding and row_stride >= 2 * row_bytes:
        raise MalformedEpisode(f"{description} should have {row_bytes}; its message says {message.encoding!r:.80}")
    pixel_rows = message.data[: message.height * row_stride].reshape(message.height, row_stride)[:, :row_bytes]
    pixels = np.ascontiguousarray(pixel_rows).view(dtype).astype(pixel_format.dtype, copy=False)
    pixels = pixels.reshape(message.height, message.width, pixel_format.stored)
    if pixel_format.colours is None:
        return pixels[:, :, 0]
    if isinstance(pixel_format.colours, slice):
        pixels = pixels[:, :, pixel_format.colours]
    else:
        try:
            pixels = np.asarray(cv2.cvtColor(pixels, pixel_format.colours))
        except cv2.error as error:
            raise CorruptFrame(f"{description}: {' '.join(str(error).split())[:200]}") from None
    return np.ascontiguousarray(pixels // 256 if dtype.itemsize == 2 else pixels, np.uint8)
