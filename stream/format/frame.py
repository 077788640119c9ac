"""Frames that are stored one by one: a JPEG, raw pixels, or a depth map. The first bytes give the kind.

Raw pixels and depth maps have a header: ``b"RAW1"`` or ``b"DPT1"``, the height and the width (uint16 each,
little-endian). Of raw pixels uint8 [H, W, 3], RGB, row by row, follows.

The values of a depth map are compressed without loss, as one zstd frame: uint16 [H, W], little-endian, row by row, in
millimetres. 0 means that nothing was measured. Differences to neighbours would save up to a third of the bytes, but
summing them takes longer than all other steps of decoding.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

import numpy as np
import simplejpeg

from stream.base.errors import FormatError
from stream.format.names import RECORD_HEADER, RECORD_MAGIC, frame_views
from stream.format.video import VIDEO_CODECS, ChunkFrame, VideoCodec, video_codec

Codec = Literal["jpeg", "raw", VideoCodec]
CODECS: tuple[Codec, ...] = ("jpeg", "raw", *VIDEO_CODECS)
StoredFrame = bytes | memoryview | ChunkFrame
RAW_MAGIC = b"RAW1"
RAW_HEADER = struct.Struct("<4sHH")
DEPTH_MAGIC = b"DPT1"
DEPTH_HEADER = struct.Struct("<4sHH")
_MOST = (1 << 16) - 1


def frame_shape(encoded: bytes | memoryview) -> tuple[int, int]:
    """Return height and width of a stored colour frame; raise FormatError if it is not one."""
    if encoded[: len(RAW_MAGIC)] == RAW_MAGIC:
        return _raw(encoded)[0]
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(encoded)
    except ValueError as error:
        raise FormatError(f"{len(encoded)} bytes that are not a JPEG: {error}") from None
    return height, width


def decode_frame(encoded: StoredFrame, out: np.ndarray | None = None) -> np.ndarray:
    """Decode a stored colour frame to RGB, uint8 [H, W, 3]: into ``out``, or a new array if it is None.

    Raises FormatError if the frame is damaged, or has another size than ``out``.
    """
    if isinstance(encoded, ChunkFrame) or encoded[: len(RAW_MAGIC)] == RAW_MAGIC:
        if isinstance(encoded, ChunkFrame):
            decoded = encoded.decode()
        else:
            shape, pixels = _raw(encoded)
            decoded = np.frombuffer(pixels, np.uint8).reshape(*shape, 3)
        if out is None:
            return decoded.copy()
        if decoded.shape == out.shape:
            out[...] = decoded
    else:
        try:
            decoded = simplejpeg.decode_jpeg(encoded, buffer=out)
        except ValueError as error:
            raise FormatError(f"JPEG of {len(encoded)} bytes: {error}") from None
    if out is not None and decoded.shape != out.shape:
        raise FormatError(f"it is {decoded.shape}, the manifest says {out.shape}")
    return decoded


def encode_raw(pixels: np.ndarray) -> bytes:
    """Encode uint8 [H, W, 3] as raw pixels; raise FormatError if a side is beyond 65,535."""
    height, width, _ = pixels.shape
    if max(height, width) > _MOST:
        raise FormatError(f"a frame of {height}x{width}, a side has at most {_MOST:,}")
    return RAW_HEADER.pack(RAW_MAGIC, height, width) + np.ascontiguousarray(pixels).tobytes()


def as_jpeg(data: StoredFrame, quality: int = 95) -> bytes | memoryview:
    """Return a stored frame as a JPEG: itself, or its pixels encoded; raise FormatError if it is damaged."""
    if not isinstance(data, ChunkFrame) and data[: len(RAW_MAGIC)] != RAW_MAGIC:
        return data
    encoded: bytes = simplejpeg.encode_jpeg(decode_frame(data), quality=quality, colorsubsampling="444")
    return encoded


@lru_cache(64)
def _raw_headers(num_frames: int, height: int, width: int) -> list[bytes]:
    """Return the bytes before each frame of a raw record."""
    frame_header = RAW_HEADER.pack(RAW_MAGIC, height, width)
    num_bytes = len(frame_header) + height * width * 3
    record_header = RECORD_HEADER.pack(RECORD_MAGIC, num_frames) + struct.pack("<I", num_bytes) * num_frames
    return [record_header + frame_header, *[frame_header] * (num_frames - 1)]


class RawRecord:
    """A record of raw frames of one size, as the buffers into which it is read: no byte is copied.

    ``frames`` are arrays uint8 [H, W, 3], contiguous, to be filled with the frames of the record.
    """

    def __init__(self, frames: Sequence[np.ndarray]) -> None:
        height, width, _ = frames[0].shape
        self._expected = _raw_headers(len(frames), height, width)
        self._found = [bytearray(len(expected)) for expected in self._expected]
        self._shape = height, width
        self.parts: list[memoryview] = []
        for buffer, frame in zip(self._found, frames, strict=True):
            self.parts += (memoryview(buffer), frame.reshape(-1).data)

    def check(self) -> None:
        """Raise FormatError if the bytes that were read are not a record of these frames."""
        if self._found != self._expected:
            height, width = self._shape
            raise FormatError(f"does not hold {len(self._expected)} raw frames of {height}x{width}")


def _raw(encoded: bytes | memoryview) -> tuple[tuple[int, int], memoryview]:
    """Return the size and the pixels of a raw frame."""
    frame_bytes = memoryview(encoded)
    if len(frame_bytes) < RAW_HEADER.size:
        raise FormatError(f"raw frame of {len(frame_bytes)} bytes is shorter than its header")
    _, height, width = RAW_HEADER.unpack_from(frame_bytes)
    if len(frame_bytes) != RAW_HEADER.size + height * width * 3:
        raise FormatError(f"raw frame of {len(frame_bytes)} bytes says that it is {height}x{width}")
    return (height, width), frame_bytes[RAW_HEADER.size :]


@cache
def _codec() -> Any:
    # Only here, because processes without depth run without pyarrow.
    import pyarrow as pa

    return pa.Codec("zstd")


def depth_shape(encoded: bytes | memoryview) -> tuple[int, int]:
    """Return height and width of a stored depth map; raise FormatError if it is something else."""
    if len(encoded) < DEPTH_HEADER.size:
        raise FormatError(f"{len(encoded)} bytes are not a depth map")
    magic_bytes, height, width = DEPTH_HEADER.unpack_from(encoded)
    if magic_bytes != DEPTH_MAGIC:
        raise FormatError(f"not a depth map: it starts with {bytes(magic_bytes)!r}, expected {DEPTH_MAGIC!r}")
    return height, width


def decode_depth(encoded: bytes | memoryview, out: np.ndarray | None = None) -> np.ndarray:
    """Decode a stored depth map to uint16 [H, W] in millimetres: into ``out``, or a new array if it is None.

    Raises FormatError if it is not a depth map, is damaged, or has another size than ``out``.
    """
    depth_size = depth_shape(encoded)
    out = np.empty(depth_size, np.uint16) if out is None else out
    if depth_size != out.shape:
        raise FormatError(f"the depth map is {depth_size}, the manifest says {out.shape}")
    try:
        depth_bytes = _codec().decompress(memoryview(encoded)[DEPTH_HEADER.size :], decompressed_size=out.nbytes)
    except (ValueError, OSError) as error:
        raise FormatError(f"depth map of {len(encoded)} bytes: {' '.join(str(error).split())[:200]}") from None
    out[...] = np.frombuffer(depth_bytes, "<u2").reshape(depth_size)
    return out


@dataclass(frozen=True)
class StoredCamera:
    """A camera with stored frames.

    Attributes:
        sizes: Sizes of its frames, (height, width) in pixels.
        codec: Codec of colour frames.
        gop: Frames of a record, 1 except for chunks of video. The frame of step t has the number t % gop in its record.
    """

    name: str
    role: str
    sizes: tuple[tuple[int, int], ...]
    is_depth: bool = False
    codec: Codec = "jpeg"
    gop: int = 1

    @property
    def keys(self) -> tuple[str, str]:
        """Names of the camera in the argument ``cameras``: its name, and its role (``depth/<role>`` for depth)."""
        return self.name, f"depth/{self.role}" if self.is_depth else self.role

    def frame(self, record: bytes | memoryview, frame_number: int) -> memoryview | ChunkFrame:
        """Return a frame of a record by its number; raise FormatError if the record does not have it."""
        if self.codec in VIDEO_CODECS:
            if video_codec(record) != self.codec:
                raise FormatError(f"{len(record)} bytes that are not a chunk of {self.codec}")
            return ChunkFrame(record, frame_number, self.sizes, self.gop)
        stored_frames = frame_views(record)
        if frame_number >= len(stored_frames):
            raise FormatError(f"it holds {len(stored_frames)} frames, expected {frame_number + 1}")
        return stored_frames[frame_number]
