"""Frames: fitting ones pass through, the others are transcoded once.

JPEG is decoded by libjpeg-turbo through simplejpeg, which is strict about damage; PNG by libpng, which checks
checksums, and WebP by libwebp, both through OpenCV. OpenCV encodes, because simplejpeg has no optimised Huffman tables.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import cv2
import numpy as np
import simplejpeg

from convert.errors import CorruptFrame
from convert.source.episode import SourceFrame
from stream.base.errors import FormatError
from stream.format.frame import Codec, encode_raw
from stream.format.names import MAX_PIXELS
from stream.format.video import ChunkFrame, video_codec

_JPEG = b"\xff\xd8\xff"
PNG = b"\x89PNG\r\n\x1a\n"
_CHUNK = struct.Struct(">I4s")

cv2.setNumThreads(1)
cv2.ipp.setUseIPP(False)
# CorruptFrame reports damage; OpenCV would print it too.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)


@dataclass(frozen=True, kw_only=True)
class FramePolicy:
    """Size and encoding required of stored frames.

    Attributes:
        size: (height, width), or None to keep the size of the source.
        resize: ``stretch`` changes the aspect ratio, ``crop`` cuts the centre, ``pad`` adds black borders.
        quality: Quality of JPEG, 1 to 100, for frames that are encoded again.
        subsampling: Chroma of such frames, ``420`` or ``444``.
        codec: ``jpeg``; ``raw`` for the pixels as they are; ``h264`` or ``av1`` for chunks of video.
        gop: Frames of a chunk of video, 1 for frames that are stored one by one.
        crf: Quality of video that is encoded again.
    """

    size: tuple[int, int] | None = (256, 256)
    resize: Literal["stretch", "crop", "pad"] = "stretch"
    quality: int = 95
    subsampling: Literal["420", "444"] = "420"
    codec: Codec = "jpeg"
    gop: int = 1
    crf: int | None = None


@dataclass(frozen=True, kw_only=True)
class EncodedFrame:
    """A frame as stored, a JPEG or a depth map.

    Attributes:
        data: Frame; empty for a frame of a chunk of video.
        size, source_size: Height and width of the stored frame, and of the frame in the source.
        passed: Whether the bytes are the source's own.
        video: For a chunk of video the pixels, uint8 [H, W, 3], or the place in a chunk that is stored as it is.
    """

    data: bytes
    size: tuple[int, int]
    source_size: tuple[int, int]
    passed: bool
    video: np.ndarray | ChunkFrame | None = None


def convert_frame(
    frame: SourceFrame | CorruptFrame, policy: FramePolicy, *, channels: Literal["rgb", "bgr"]
) -> EncodedFrame:
    """Return one frame of the source as the policy requires.

    Args:
        frame: Encoded image (recognised by its first bytes, not by the dataset's declaration), uint8 [H, W] or
            [H, W, C], a place in a chunk of video, or the reason why there is none.
        channels: Real order of the source's colours; ``bgr`` becomes rgb.

    Returns:
        A 3-channel JPEG, raw pixels, or what ``encode_chunk`` takes. A 3-channel JPEG of the required size in the right
        order, and a chunk of the required codec, size and length, pass through byte for byte, after they were decoded
        once to find damage.

    Raises:
        CorruptFrame: Not an image, damaged, or larger than 64 megapixels.
    """
    if isinstance(frame, CorruptFrame):
        raise frame
    if isinstance(frame, bytes) and frame.startswith(_JPEG) and policy.codec == "jpeg":
        height, width, colour_space = _jpeg_header(frame)
        if channels == "rgb" and colour_space == "YCbCr" and policy.size in (None, (height, width)):
            # Damage shows when the entropy-coded data is read; gray at an eighth of the size skips most of the rest.
            decode_jpeg(frame, colorspace="GRAY", min_height=1, min_width=1)
            return EncodedFrame(data=frame, size=(height, width), source_size=(height, width), passed=True)
    decoded = decode_frame(frame, channels=channels)
    pixels = resize(decoded, policy)
    encoded_frame = partial(EncodedFrame, size=pixels.shape[:2], source_size=decoded.shape[:2])
    if policy.codec == "raw":
        return encoded_frame(data=encode_raw(pixels), passed=False)
    if policy.codec == "jpeg":
        return encoded_frame(data=encode_jpeg(pixels, policy.quality, policy.subsampling), passed=False)
    if isinstance(frame, ChunkFrame) and frame.gop == policy.gop and pixels is decoded and channels == "rgb":
        passed = video_codec(frame.chunk) == policy.codec
        return encoded_frame(data=b"", passed=passed, video=frame if passed else pixels)
    return encoded_frame(data=b"", passed=False, video=pixels)


def decode_frame(frame: SourceFrame, *, channels: Literal["rgb", "bgr"] = "rgb") -> np.ndarray:
    """Decode one frame of the source.

    Returns:
        uint8 [H, W, 3], RGB. Gray is repeated, a fourth channel is dropped, 16 bits are cut to 8.

    Raises:
        CorruptFrame: As ``convert_frame``.
    """
    if isinstance(frame, ChunkFrame):
        try:
            frame = frame.decode()
        except FormatError as error:
            raise CorruptFrame(str(error)) from None
    if isinstance(frame, np.ndarray):
        pixels = _three_channels(frame)
        return pixels[:, :, ::-1] if channels == "bgr" else pixels
    if frame.startswith(_JPEG):
        _jpeg_header(frame)
        return decode_jpeg(frame, colorspace=channels.upper())
    if frame.startswith(PNG):
        check_png(frame)
        return _decode(frame, "PNG", channels)
    if frame.startswith(b"RIFF") and frame[8:12] == b"WEBP":
        _check_webp(frame)
        return _decode(frame, "WebP", channels)
    raise CorruptFrame(f"{len(frame)} bytes that are neither JPEG, PNG nor WebP, starting with {frame[:8]!r}")


def _decode(frame: bytes, format_name: str, channels: Literal["rgb", "bgr"]) -> np.ndarray:
    read_flags = cv2.IMREAD_COLOR_RGB if channels == "rgb" else cv2.IMREAD_COLOR_BGR
    try:
        decoded = cv2.imdecode(np.frombuffer(frame, np.uint8), read_flags | cv2.IMREAD_IGNORE_ORIENTATION)
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
        raise CorruptFrame(
            f"PNG of {len(png_bytes)} bytes begins with the chunk {png_bytes[12:16]!r}, expected b'IHDR'"
        )
    width, height = struct.unpack_from(">II", png_bytes, 16)
    check_size(height, width)
    offset, chunk_type = len(PNG), b""
    while chunk_type != b"IEND" and offset + 8 <= len(png_bytes):
        chunk_length, chunk_type = _CHUNK.unpack_from(png_bytes, offset)
        if chunk_length > len(png_bytes) - offset - 12:
            raise CorruptFrame(
                f"PNG of {len(png_bytes)} bytes: the chunk at byte {offset} claims {chunk_length:,} bytes"
            )
        offset += 12 + chunk_length


def decode_jpeg(jpeg_bytes: bytes, **decoder_options: Any) -> np.ndarray:
    """Decode a JPEG to uint8 [H, W, 3], RGB unless options of simplejpeg say otherwise.

    Raises CorruptFrame for any damage that libjpeg notices.
    """
    try:
        return simplejpeg.decode_jpeg(jpeg_bytes, **decoder_options)
    except ValueError as error:
        raise CorruptFrame(f"JPEG of {len(jpeg_bytes)} bytes: {error}") from None


def encode_jpeg(pixels: np.ndarray, quality: int, subsampling: Literal["420", "444"] = "420") -> bytes:
    """Encode uint8 [H, W, 3], RGB, as a baseline JPEG with optimised Huffman tables."""
    encoder_options = {
        cv2.IMWRITE_JPEG_QUALITY: quality,
        cv2.IMWRITE_JPEG_OPTIMIZE: 1,
        cv2.IMWRITE_JPEG_SAMPLING_FACTOR: getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{subsampling}"),
    }
    bgr_pixels = cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2BGR)
    encoded, jpeg_bytes = cv2.imencode(
        ".jpg", bgr_pixels, [value for option_pair in encoder_options.items() for value in option_pair]
    )
    if not encoded:
        raise CorruptFrame(f"frame of shape {pixels.shape} could not be encoded")
    return jpeg_bytes.tobytes()


def scale_smoothly(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize uint8 [H, W, 3]: area filter along axes that shrink, linear where they grow."""
    pixels = np.ascontiguousarray(pixels)
    shrunk_size = (min(height, pixels.shape[0]), min(width, pixels.shape[1]))
    if shrunk_size != pixels.shape[:2]:
        pixels = cv2.resize(pixels, (shrunk_size[1], shrunk_size[0]), interpolation=cv2.INTER_AREA)
    if shrunk_size != (height, width):
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)
    return pixels


def resize(
    pixels: np.ndarray,
    policy: FramePolicy,
    scale_function: Callable[[np.ndarray, int, int], np.ndarray] = scale_smoothly,
) -> np.ndarray:
    """Fit an array [H, W, ...] to the policy's size; ``scale_function`` takes an array, height and width."""
    if policy.size is None or pixels.shape[:2] == policy.size:
        return pixels
    height, width = policy.size
    source_height, source_width = pixels.shape[:2]
    if policy.resize == "crop":
        keep_height = min(source_height, max(1, round(source_width * height / width)))
        keep_width = min(source_width, max(1, round(source_height * width / height)))
        top, left = (source_height - keep_height) // 2, (source_width - keep_width) // 2
        pixels = pixels[top : top + keep_height, left : left + keep_width]
    elif policy.resize == "pad":
        scale_factor = min(height / source_height, width / source_width)
        scaled_pixels = scale_function(
            pixels, max(1, round(source_height * scale_factor)), max(1, round(source_width * scale_factor))
        )
        padded_pixels = np.zeros((height, width, *pixels.shape[2:]), pixels.dtype)
        top, left = (height - scaled_pixels.shape[0]) // 2, (width - scaled_pixels.shape[1]) // 2
        padded_pixels[top : top + scaled_pixels.shape[0], left : left + scaled_pixels.shape[1]] = scaled_pixels
        return padded_pixels
    return scale_function(pixels, height, width)


def _jpeg_header(jpeg_bytes: bytes) -> tuple[int, int, str]:
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


def _three_channels(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or not pixels.size:
        raise CorruptFrame(f"raw frame is {pixels.dtype} {pixels.shape}, expected pixels of uint8 [H, W] or [H, W, C]")
    check_size(*pixels.shape[:2])
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    if pixels.shape[2] > 4:
        raise CorruptFrame(f"raw frame has {pixels.shape[2]} channels, expected 1 to 4 in the last place")
    if pixels.shape[2] in (1, 2):
        return np.repeat(pixels[:, :, :1], 3, axis=2)
    return pixels[:, :, :3]
