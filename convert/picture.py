"""Pictures: their format by magic bytes, the limit of their size, and their pixels as uint8 RGB.

JPEG is decoded by simplejpeg, which is strict about damage; PNG and WebP by OpenCV, which checks checksums of PNG.
"""

from __future__ import annotations

import struct
from typing import Any, Literal

import cv2
import numpy as np
import simplejpeg

from convert.errors import CorruptFrame
from stream.base.errors import FormatError
from stream.format.names import MAX_PIXELS
from stream.format.video import ChunkFrame

JPEG = b"\xff\xd8\xff"
PNG = b"\x89PNG\r\n\x1a\n"
RIFF = b"RIFF"
PICTURES = (JPEG, PNG, RIFF)
"""Magic bytes of JPEG, PNG and WebP."""
_PNG_CHUNK = struct.Struct(">I4s")

cv2.setNumThreads(1)
cv2.ipp.setUseIPP(False)
# CorruptFrame reports damage; OpenCV would print it too.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


def decode_frame(frame: bytes | np.ndarray | ChunkFrame, *, channels: Literal["rgb", "bgr"] = "rgb") -> np.ndarray:
    """Decode one frame of the source to uint8 [H, W, 3], RGB; raises CorruptFrame as ``convert_frame`` does.

    Gray is repeated, a fourth channel is dropped, 16 bits are cut to 8.
    """
    if isinstance(frame, ChunkFrame):
        try:
            frame = frame.decode()
        except FormatError as error:
            raise CorruptFrame(str(error)) from None
    if isinstance(frame, np.ndarray):
        pixels = _to_rgb(frame)
        return pixels[:, :, ::-1] if channels == "bgr" else pixels
    if frame.startswith(JPEG):
        read_jpeg_header(frame)
        return decode_jpeg(frame, colorspace=channels.upper())
    read_flags = cv2.IMREAD_COLOR_RGB if channels == "rgb" else cv2.IMREAD_COLOR_BGR
    if frame.startswith(PNG):
        check_png(frame)
        return decode_by_opencv(frame, "PNG", read_flags | cv2.IMREAD_IGNORE_ORIENTATION)
    if frame.startswith(RIFF) and frame[8:12] == b"WEBP":
        _check_webp(frame)
        return decode_by_opencv(frame, "WebP", read_flags | cv2.IMREAD_IGNORE_ORIENTATION)
    raise CorruptFrame(f"{len(frame)} bytes that are neither JPEG, PNG nor WebP, starting with {frame[:8]!r}")


def decode_by_opencv(frame: bytes, format_name: str, read_flags: int) -> np.ndarray:
    """Decode a picture by OpenCV with some flags; raises CorruptFrame if it is damaged."""
    try:
        decoded = cv2.imdecode(np.frombuffer(frame, np.uint8), read_flags)
    except cv2.error as error:
        raise CorruptFrame(f"{format_name} of {len(frame)} bytes: {' '.join(str(error).split())[:200]}") from None
    if decoded is None:
        raise CorruptFrame(f"{format_name} of {len(frame)} bytes does not decode")
    return decoded


def _check_webp(webp_bytes: bytes) -> None:
    """Raise CorruptFrame if a WebP claims too many pixels."""
    chunk_type, header_bits = webp_bytes[12:16], int.from_bytes(webp_bytes[20:30].ljust(10, b"\0"), "little")
    if chunk_type == b"VP8X":
        check_size((header_bits >> 56 & 0xFFFFFF) + 1, (header_bits >> 32 & 0xFFFFFF) + 1)
    elif chunk_type == b"VP8L":
        check_size((header_bits >> 22 & 0x3FFF) + 1, (header_bits >> 8 & 0x3FFF) + 1)
    else:
        check_size(header_bits >> 64 & 0x3FFF, header_bits >> 48 & 0x3FFF)


def check_png(png_bytes: bytes) -> None:
    """Raise CorruptFrame if a PNG claims a size or a chunk for which OpenCV would allocate too much."""
    if len(png_bytes) < 24 or png_bytes[12:16] != b"IHDR":
        chunk_type = png_bytes[12:16]
        raise CorruptFrame(f"PNG of {len(png_bytes)} bytes begins with the chunk {chunk_type!r}, expected b'IHDR'")
    width, height = struct.unpack_from(">II", png_bytes, 16)
    check_size(height, width)
    chunk_offset, chunk_type = len(PNG), b""
    while chunk_type != b"IEND" and chunk_offset + 8 <= len(png_bytes):
        chunk_length, chunk_type = _PNG_CHUNK.unpack_from(png_bytes, chunk_offset)
        if chunk_length > len(png_bytes) - chunk_offset - 12:
            claim = f"the chunk at byte {chunk_offset} claims {chunk_length:,} bytes"
            raise CorruptFrame(f"PNG of {len(png_bytes)} bytes: {claim}")
        chunk_offset += 12 + chunk_length


def decode_jpeg(jpeg_bytes: bytes, **decoder_options: Any) -> np.ndarray:
    """Decode a JPEG to uint8 [H, W, 3], RGB unless options of simplejpeg say otherwise; raises CorruptFrame."""
    try:
        return simplejpeg.decode_jpeg(jpeg_bytes, **decoder_options)
    except ValueError as error:
        raise CorruptFrame(f"JPEG of {len(jpeg_bytes)} bytes: {error}") from None


def read_jpeg_header(jpeg_bytes: bytes) -> tuple[int, int, str]:
    """Return height, width and colour space of a JPEG; raises CorruptFrame if it is damaged or too large."""
    try:
        height, width, colour_space, _ = simplejpeg.decode_jpeg_header(jpeg_bytes)
    except ValueError as error:
        raise CorruptFrame(f"JPEG of {len(jpeg_bytes)} bytes: {error}") from None
    check_size(height, width)
    return height, width, colour_space


def check_size(height: int, width: int) -> None:
    """Raise CorruptFrame for a frame without pixels, or with too many."""
    if not 0 < height * width <= MAX_PIXELS:
        raise CorruptFrame(f"image claims {width}x{height}; more than {MAX_PIXELS} pixels or none")


def _to_rgb(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or not pixels.size:
        raise CorruptFrame(f"raw frame is {pixels.dtype} {pixels.shape}, expected pixels of uint8 [H, W] or [H, W, C]")
    check_size(*pixels.shape[:2])
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    if pixels.shape[2] > 4:
        raise CorruptFrame(f"raw frame has {pixels.shape[2]} channels, expected 1 to 4 in the last place")
    if pixels.shape[2] in (1, 2):
        return np.repeat(pixels[:, :, :1], 3, axis=2)
    return pixels[:, :, :3]


def floats_to_bytes(block: np.ndarray, *, white: int) -> np.ndarray:
    """Round pictures of floats [n, ...] to uint8; raises ValueError for values beyond black and white, or NaN."""
    converted = np.empty(block.shape, np.uint8)
    for number, pixels in enumerate(block):
        rounded = np.rint(pixels * np.float32(255 / white))
        if not ((rounded >= 0) & (rounded <= 255)).all():
            raise ValueError(f"has values from {pixels.min():g} to {pixels.max():g}, expected 0 to {white}")
        converted[number] = rounded
    return converted
