"""Pictures of messages: raw ones as arrays, compressed ones as they are stored."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from convert.errors import CorruptFrame, MalformedEpisode
from convert.source.files.plain import PICTURES
from stream.storage.errors import closest

RAW, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
_VIDEO = ("CompressedVideo", "FFMPEGPacket")
_DEPTH_HEADER = 12
"""Bytes before the PNG of compressed depth."""


class _Encoding(NamedTuple):
    """The pixels of an encoding: dtype, values stored of each, and the colours among these; depth has none."""

    dtype: str
    stored: int
    colours: slice | None = None


_ENCODINGS = {
    "rgb8": _Encoding("uint8", 3, slice(0, 3)),
    "bgr8": _Encoding("uint8", 3, slice(2, None, -1)),
    "rgba8": _Encoding("uint8", 4, slice(0, 3)),
    "bgra8": _Encoding("uint8", 4, slice(2, None, -1)),
    "mono8": _Encoding("uint8", 1, slice(0, 1)),
    "8UC1": _Encoding("uint8", 1, slice(0, 1)),
    "mono16": _Encoding("uint16", 1),
    "16UC1": _Encoding("uint16", 1),
    "32FC1": _Encoding("float32", 1),
}


class Look(NamedTuple):
    """Shape and dtype of a picture; None where only decoding tells."""

    shape: tuple[int | None, ...]
    dtype: str


def is_picture(kind: str) -> bool:
    """Return whether the messages of a type are pictures.

    Raises:
        MalformedEpisode: They are pieces of a video.
    """
    if kind.rpartition("/")[2] in _VIDEO:
        raise MalformedEpisode(f"{kind} is a video, which is not read from bags; record CompressedImage instead")
    return kind in (RAW, COMPRESSED)


def look_at(message: Any, encoding: str | None) -> Look:
    """Return how a picture looks.

    Raises:
        MalformedEpisode: Its encoding is not known.
    """
    if hasattr(message, "encoding"):
        found = _find(encoding or message.encoding)
        return Look((message.height, message.width, *([min(found.stored, 3)] if found.colours else [])), found.dtype)
    depth = _is_depth(message)
    if depth and "32FC1" in message.format:
        raise MalformedEpisode(f"compressed depth of format {message.format!r} is not read, only 16UC1")
    return Look((None, None), "uint16") if depth else Look((None, None, 3), "uint8")


def read_picture(message: Any, encoding: str | None) -> np.ndarray | bytes:
    """Return the pixels of a raw picture, uint8 [H, W, 1 or 3] in RGB or depth [H, W], or a compressed one as it is.

    Raises:
        CorruptFrame: The message has fewer bytes than its size says, or no picture.
        MalformedEpisode: Its encoding is not known.
    """
    if hasattr(message, "encoding"):
        return _pixels(message, encoding)
    data = message.data.tobytes()[_DEPTH_HEADER if _is_depth(message) and "compressedDepth" in message.format else 0 :]
    if not data.startswith(PICTURES):
        raise CorruptFrame(f"{message.format!r:.80}: the data are no JPEG, PNG or WebP")
    return data


def _is_depth(message: Any) -> bool:
    return "compressedDepth" in message.format or message.format.startswith(("16UC1", "mono16", "32FC1"))


def _find(encoding: str) -> _Encoding:
    if encoding not in _ENCODINGS:
        hint = closest(encoding, _ENCODINGS, noun="encodings")
        raise MalformedEpisode(f"pictures of encoding {encoding!r} are not read; {hint}; give the true one as encoding")
    return _ENCODINGS[encoding]


def _pixels(message: Any, encoding: str | None) -> np.ndarray:
    found = _find(encoding or message.encoding)
    dtype = np.dtype(found.dtype).newbyteorder(">" if message.is_bigendian else "<")
    row = message.width * found.stored * dtype.itemsize
    step = message.step or row
    if not row or not message.height or step < row or len(message.data) < message.height * step:
        raise CorruptFrame(
            f"a picture of {message.height} x {message.width} {encoding or message.encoding} with {step} bytes a row "
            f"has {len(message.data)} bytes"
        )
    rows = message.data[: message.height * step].reshape(message.height, step)[:, :row]
    pixels = np.ascontiguousarray(rows).view(dtype).astype(found.dtype, copy=False)
    if found.colours is None:
        return pixels.reshape(message.height, message.width)
    return np.ascontiguousarray(pixels.reshape(message.height, message.width, found.stored)[:, :, found.colours])
