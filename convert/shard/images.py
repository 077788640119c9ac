"""Frames: fitting ones pass through, the others are transcoded once, by ``convert.picture`` and OpenCV.

OpenCV encodes, because simplejpeg has no optimised Huffman tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import cv2
import numpy as np

from convert.errors import CorruptFrame
from convert.picture import JPEG, decode_frame, decode_jpeg, read_jpeg_header
from convert.source.episode import SourceFrame
from stream.format.frame import Codec, encode_raw
from stream.format.video import ChunkFrame, video_codec


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
    passed: bool = False
    video: np.ndarray | ChunkFrame | None = None


def convert_frame(
    frame: SourceFrame | CorruptFrame, policy: FramePolicy, *, channels: Literal["rgb", "bgr"]
) -> EncodedFrame:
    """Return one frame of the source as the policy requires: a 3-channel JPEG, raw pixels, or a frame of a chunk.

    A 3-channel JPEG of the required size in the right order, and a chunk of the required codec, size and length, pass
    through byte for byte, after they were decoded once to find damage.

    Args:
        frame: Encoded image (recognised by its first bytes, not by the dataset's declaration), uint8 [H, W] or
            [H, W, C], a place in a chunk of video, or the reason why there is none.
        channels: Real order of the source's colours; ``bgr`` becomes rgb.

    Raises:
        CorruptFrame: Not an image, damaged, or larger than 64 megapixels.
    """
    if isinstance(frame, CorruptFrame):
        raise frame
    if isinstance(frame, bytes) and frame.startswith(JPEG) and policy.codec == "jpeg":
        height, width, colour_space = read_jpeg_header(frame)
        if channels == "rgb" and colour_space == "YCbCr" and policy.size in (None, (height, width)):
            # Damage shows when the entropy-coded data is read; gray at an eighth of the size skips most of the rest.
            decode_jpeg(frame, colorspace="GRAY", min_height=1, min_width=1)
            return EncodedFrame(data=frame, size=(height, width), source_size=(height, width), passed=True)
    decoded = decode_frame(frame, channels=channels)
    pixels = resize(decoded, policy)
    encoded_frame = partial(EncodedFrame, size=pixels.shape[:2], source_size=decoded.shape[:2])
    if policy.codec == "raw":
        return encoded_frame(data=encode_raw(pixels))
    if policy.codec == "jpeg":
        return encoded_frame(data=encode_jpeg(pixels, policy.quality, policy.subsampling))
    if isinstance(frame, ChunkFrame) and frame.gop == policy.gop and pixels is decoded and channels == "rgb":
        passed = video_codec(frame.chunk) == policy.codec
        return encoded_frame(data=b"", passed=passed, video=frame if passed else pixels)
    return encoded_frame(data=b"", video=pixels)


def encode_jpeg(pixels: np.ndarray, quality: int, subsampling: Literal["420", "444"] = "420") -> bytes:
    """Encode uint8 [H, W, 3], RGB, as a baseline JPEG with optimised Huffman tables."""
    sampling_factor = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{subsampling}")
    encoder_options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_OPTIMIZE, 1]
    encoder_options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling_factor]
    bgr_pixels = cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2BGR)
    encoded, jpeg_bytes = cv2.imencode(".jpg", bgr_pixels, encoder_options)
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
        factor = min(height / source_height, width / source_width)
        scaled_height, scaled_width = max(1, round(source_height * factor)), max(1, round(source_width * factor))
        padded_pixels = np.zeros((height, width, *pixels.shape[2:]), pixels.dtype)
        top, left = (height - scaled_height) // 2, (width - scaled_width) // 2
        padded_pixels[top : top + scaled_height, left : left + scaled_width] = scale_function(
            pixels, scaled_height, scaled_width
        )
        return padded_pixels
    return scale_function(pixels, height, width)
