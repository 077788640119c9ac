"""Chunks of video: successive frames of one camera as an elementary stream of H.264 (Annex B) or AV1 (OBUs).

A chunk is a separate record, without a header of this format. It begins with a key frame, and each of its frames is
shown in the order in which it is stored. Pixels are 4:2:0 in BT.601's limited range, as the stream itself says. Odd
heights and widths are stored with the last row or column again (see ``coded_side``), and cut when they are decoded.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import xxhash

from stream.base.errors import ArgumentError, FormatError
from stream.base.extras import missing

VideoCodec = Literal["h264", "av1"]
VIDEO_CODECS: tuple[VideoCodec, ...] = get_args(VideoCodec)
MAX_GOP = 64
"""Most frames of a chunk."""
_STARTS: dict[bytes, VideoCodec] = {b"\0\0\0\1": "h264", b"\x12\0": "av1"}
_DECODERS: dict[VideoCodec, str] = {"h264": "h264", "av1": "libdav1d"}
_OPTIONS = {"err_detect": "explode+crccheck+bitstream+buffer", "max_pixels": str(1 << 26)}
_LOW_DELAY = 1 << 19
"""FFmpeg's flag: a frame is returned for its packet, without waiting for more."""
_DELIMITER = 2
_SLICE = re.compile(rb"\x00\x00\x01[\x01\x05\x21\x25\x41\x45\x61\x65]")
"""Start of a NAL unit with a part of a frame."""
_Sizes = Sequence[tuple[int, int]]
_local = threading.local()


def video_codec(record: bytes | memoryview) -> VideoCodec | None:
    """Return the codec of a chunk by its first bytes, None for any other record."""
    return next((codec for magic_bytes, codec in _STARTS.items() if record[: len(magic_bytes)] == magic_bytes), None)


def coded_side(side_length: int) -> int:
    """Return the height or width at which frames are encoded: even, and at least 4.

    >>> coded_side(1), coded_side(255), coded_side(256)
    (4, 256, 256)
    """
    return max(4, side_length + side_length % 2)


def coded_sizes(sizes: Sequence[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the size of frames by the size of their encoding; raise FormatError if two sizes have the same."""
    size_by_coded: dict[tuple[int, int], tuple[int, int]] = {}
    for height, width in sorted(set(sizes)):
        first = size_by_coded.setdefault((coded_side(height), coded_side(width)), (height, width))
        if first != (height, width):
            problem = f"frames of {first[0]}x{first[1]} and {height}x{width} cannot be told apart as video"
            raise FormatError(f"{problem}; take cameras of one size, or convert them again with --image-size")
    return size_by_coded


def check_decoder(codec: VideoCodec, *, by: str) -> None:
    """Raise ArgumentError if PyAV is not installed, or lacks the decoder."""
    try:
        import av

        av.Codec(_DECODERS[codec], "r")
    except ModuleNotFoundError:
        raise ArgumentError(missing("av", "video", by=by)) from None
    except ValueError:
        raise ArgumentError(f"{by}: PyAV {av.__version__} has no decoder {_DECODERS[codec]}") from None


@dataclass(frozen=True)
class ChunkFrame:
    """Frame ``number`` of a chunk, with one of some ``sizes`` (height, width).

    ``gop`` is the count of frames of a chunk that is not the last one of its episode, 0 if unknown.
    """

    chunk: bytes | memoryview
    number: int
    sizes: tuple[tuple[int, int], ...]
    gop: int = 0

    def decode(self) -> np.ndarray:
        """Decode the frame, see ``decode_chunk``."""
        return decode_chunk(self.chunk, self.number, self.sizes)


def decode_chunk(chunk: bytes | memoryview, frame_number: int, sizes: _Sizes) -> np.ndarray:
    """Decode a frame of a chunk, RGB, uint8 [H, W, 3], not contiguous, in newly allocated memory.

    Decoding continues from the last frame that this thread decoded, if it is an earlier frame of the same chunk.

    Args:
        frame_number: Number of the frame, from 0.
        sizes: Heights and widths that the frame may have.

    Raises:
        FormatError: The bytes are not a chunk, are damaged, have too few frames or another size, or PyAV is missing.
    """
    codec = video_codec(chunk)
    if codec is None:
        raise FormatError(f"{len(chunk)} bytes that are not a chunk of video, starting with {bytes(chunk[:4])!r}")
    decoders = _local.__dict__.setdefault("decoders", {})
    decoder_key = codec, tuple(sizes)
    if decoder_key not in decoders:
        decoders[decoder_key] = _Decoder(codec, sizes)
    decoder: _Decoder = decoders[decoder_key]
    return decoder.decode(chunk, frame_number)


def decode_all(chunk: bytes | memoryview, sizes: _Sizes) -> Iterator[np.ndarray]:
    """Yield all frames of a chunk, as ``decode_chunk`` returns them."""
    for frame_number in itertools.count():
        try:
            yield decode_chunk(chunk, frame_number, sizes)
        except _TooShort:
            return


class _TooShort(FormatError):
    """A chunk has fewer frames."""


class _Decoder:
    """A decoder of chunks of one codec and size, for one thread."""

    def __init__(self, codec: VideoCodec, sizes: _Sizes) -> None:
        try:
            import av
            from av.video.reformatter import VideoReformatter
        except ModuleNotFoundError:
            raise FormatError(missing("av", "video", by=f"decoding {codec}")) from None
        self._av, self._codec = av, codec
        self._sizes = coded_sizes(sizes)
        self._reformatter = VideoReformatter()
        self._contexts: tuple[bytes, Any, Any] | None = None
        """Parameter sets, decoder and parser of the last chunk."""
        self._frames: Iterator[Any] = iter(())
        self._chunk: tuple[int, int] | None = None
        self._next = 0

    def decode(self, chunk: bytes | memoryview, frame_number: int) -> np.ndarray:
        """Decode a frame, see ``decode_chunk``."""
        chunk_key = len(chunk), xxhash.xxh3_64_intdigest(chunk)
        if chunk_key != self._chunk or frame_number < self._next:
            self._frames, self._chunk, self._next = self._decoded(bytes(chunk)), chunk_key, 0
        try:
            for frame in self._frames:
                self._next += 1
                if self._next > frame_number:
                    return self._pixels(frame)
        except BaseException as error:
            # Decoding is not continued after an error, so the same chunk gives the same error again.
            self._chunk = self._contexts = None
            if isinstance(error, self._av.FFmpegError):
                text = f"chunk of {len(chunk)} bytes: frame {self._next}: {error.strerror}"
                raise FormatError(text) from None
            raise
        raise _TooShort(f"chunk of {len(chunk)} bytes holds {self._next} frames, expected {frame_number + 1} or more")

    def _decoded(self, chunk: bytes) -> Iterator[Any]:
        context, parser = self._open(chunk)
        chunk_size: tuple[int, int] | None = None
        if self._codec == "h264":
            packets = [*parser.parse(chunk), *parser.parse()]
            chunk_size = parser.height, parser.width
        else:
            packets = [self._av.Packet(unit) for unit in _temporal_units(chunk)]
        for packet in (*packets, None):
            for frame in context.decode(packet):
                if frame.is_corrupt:
                    raise FormatError(f"chunk of {len(chunk)} bytes: frame {self._next} is damaged")
                height, width = frame.height, frame.width
                chunk_size = chunk_size or (height, width)
                if (height, width) != chunk_size:
                    raise FormatError(f"a frame is {height}x{width}, its chunk says {chunk_size[0]}x{chunk_size[1]}")
                yield frame

    def _open(self, chunk: bytes) -> tuple[Any, Any]:
        """Return a decoder and a parser for a chunk, reused from the last chunk if the parameter sets are the same."""
        parameter_sets = _head(chunk)
        if self._contexts is not None and self._contexts[0] == parameter_sets:
            _, context, parser = self._contexts
            context.flush_buffers()
            return context, parser
        # A context that has decoded another chunk would lend this one its parameter sets and its size.
        context = self._av.CodecContext.create(_DECODERS[self._codec], "r")
        context.thread_count, context.options = 1, dict(_OPTIONS)
        context.flags |= _LOW_DELAY
        # Not the decoder's context, which would crop frames to the size that the parser saw.
        parser = self._av.CodecContext.create("h264", "r") if self._codec == "h264" else None
        self._contexts = parameter_sets, context, parser
        return context, parser

    def _pixels(self, decoded: Any) -> np.ndarray:
        coded_size = decoded.height, decoded.width
        if coded_size not in self._sizes:
            size_names = " or ".join(f"{height}x{width}" for height, width in self._sizes.values())
            raise FormatError(f"a frame is {coded_size[0]}x{coded_size[1]}, the manifest says {size_names}")
        height, width = self._sizes[coded_size]
        # One thread: FFmpeg would start a thread for each stripe.
        plane: Any = self._reformatter.reformat(decoded, format="rgb24", threads=1).planes[0]
        pixel_rows = np.frombuffer(plane, np.uint8).reshape(coded_size[0], plane.line_size)
        # FFmpeg's fast conversion rounds down, which makes pixels darker by one on average.
        np.minimum(pixel_rows, 254, out=pixel_rows)
        pixel_rows += 1
        return pixel_rows[:height, : 3 * width].reshape(height, width, 3)


def _head(chunk: bytes) -> bytes:
    """Return the part of a chunk that has its parameter sets: all before the first slice, or the first two OBUs."""
    if chunk[:4] == b"\0\0\0\1":
        slice_begin = _SLICE.search(chunk)
        return chunk[: slice_begin.start()] if slice_begin else chunk
    # A temporal delimiter of two bytes, and a sequence header with its size in one byte.
    return chunk[: 4 + chunk[3]] if chunk[2:3] == b"\x0a" and chunk[3:4] < b"\x80" else chunk


def _temporal_units(chunk: bytes) -> Iterator[bytes]:
    """Yield the parts of a stream of OBUs that give one frame each: from a temporal delimiter to the next.

    Source: sections 5.3 and 7.5 of the AV1 specification.
    """
    unit_start = position = 0
    while position < len(chunk):
        obu_header, obu_start = chunk[position], position
        position += 2 if obu_header & 4 else 1
        obu_size = size_shift = 0
        # An OBU without a size extends to the end.
        while obu_header & 2 and position < len(chunk) and size_shift < 56:
            obu_size |= (chunk[position] & 127) << size_shift
            size_shift += 7
            position += 1
            if not chunk[position - 1] & 128:
                break
        if obu_header >> 3 & 15 == _DELIMITER and obu_start > unit_start:
            yield chunk[unit_start:obu_start]
            unit_start = obu_start
        position = position + obu_size if obu_header & 2 else len(chunk)
    yield chunk[unit_start:]
