"""Encoding of chunks of video, see ``stream.format.video``.

A chunk is encoded apart from all others by one thread, so its bytes depend on its frames and the policy alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from convert.errors import ShardError, UsageError
from convert.shard.images import EncodedFrame, FramePolicy
from stream.base.errors import FormatError
from stream.base.extras import missing
from stream.format.video import VIDEO_CODECS, ChunkFrame, VideoCodec, coded_side, coded_sizes

_ENCODERS: dict[str, str] = {"h264": "libx264", "av1": "libsvtav1"}
_OPTIONS = {
    # The fast ways of mbtree differ between processors, and between two runs for what memory held before.
    "h264": {"preset": "medium", "bf": "0", "x264-params": "scenecut=0:cpu-independent=1"},
    # Low delay: no frame is hidden or shown in another order.
    "av1": {"preset": "8", "svtav1-params": "pred-struct=1:lp=1:scd=0:keyint=-1"},
}
CRF: dict[VideoCodec, int] = {"h264": 18, "av1": 30}
"""Default of the quality, of which a smaller number is the better one."""
MOST_CRF: dict[VideoCodec, int] = {"h264": 51, "av1": 63}
_INFORMATION = re.compile(rb"\x00?\x00\x00\x01\x06.*?(?=\x00\x00\x01)", re.DOTALL)
"""x264's text about itself in each chunk, 700 bytes."""
_SECOND = Fraction(1, 25)


def check_encoder(codec: VideoCodec) -> None:
    """Raise UsageError if PyAV is not installed, or lacks the encoder."""
    try:
        import av

        av.Codec(_ENCODERS[codec], "w")
    except ModuleNotFoundError:
        raise UsageError(missing("av", "video", by=f"--codec {codec}")) from None
    except ValueError:
        raise UsageError(f"--codec {codec}: PyAV {av.__version__} has no encoder {_ENCODERS[codec]}") from None


def check_sizes(sizes: Mapping[str, Iterable[str]], policies: Mapping[str, FramePolicy], *, dataset: str) -> None:
    """Raise ShardError if frames of one camera have two sizes that are the same as video.

    Args:
        sizes: Sizes of the frames, "HxW", by camera.
        policies: Policy of each camera.
        dataset: Name for the message.
    """
    for camera, found in sizes.items():
        if policies[camera].codec in VIDEO_CODECS:
            try:
                coded_sizes([(int(height), int(width)) for height, width in (each.split("x") for each in found)])
            except FormatError as error:
                raise ShardError(f"{dataset}, {camera}: {error}") from None


def encode_chunk(frames: Iterable[EncodedFrame | None], policy: FramePolicy) -> tuple[bytes | None, list[bool]]:
    """Encode the frames of a chunk while they are taken.

    Args:
        frames: Frames as ``convert_frame`` returns them, None for a hole.
        policy: Codec and quality.

    Returns:
        The chunk, None if all frames are holes; and which frames are none. A hole shows the frame before it, or the
        first one.
    """
    held: list[bool] = []
    passed: bytes | None = None
    encoder: _Encoder | None = None
    for frame in frames:
        held.append(frame is not None)
        if frame is None or frame.video is None:
            continue
        if isinstance(frame.video, ChunkFrame):
            # The chunks of a converted root have the same frames as those of a root that is made of it.
            passed = bytes(frame.video.chunk)
        else:
            encoder = encoder or _Encoder(policy, frame.size)
            encoder.add(frame.video, at=len(held) - 1)
    return passed if encoder is None else encoder.finish(len(held)), held


class _Encoder:
    """An encoder of one chunk of frames of a height and width."""

    def __init__(self, policy: FramePolicy, shape: tuple[int, int]) -> None:
        # SVT-AV1 would print its settings for each chunk.
        os.environ.setdefault("SVT_LOG", "1")
        import av
        from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

        self._av = av
        self._shape = shape
        self._to_yuv = partial(
            VideoReformatter().reformat,
            format="yuv420p",
            dst_colorspace=Colorspace.ITU601,
            dst_color_range=ColorRange.MPEG,
            interpolation=Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.BITEXACT,
            threads=1,
        )
        context: Any = av.CodecContext.create(_ENCODERS[policy.codec], "w")
        context.height, context.width = map(coded_side, shape)
        context.pix_fmt, context.time_base, context.framerate = "yuv420p", _SECOND, 1 / _SECOND
        context.gop_size, context.thread_count = policy.gop, 1
        # BT.601 in the limited range.
        context.colorspace, context.color_range = 5, 1
        context.options = {**_OPTIONS[policy.codec], "crf": str(policy.crf)}
        self._context = context
        self._last: Any = None
        self._count = 0
        self._packets: list[bytes] = []

    def add(self, pixels: np.ndarray, *, at: int) -> None:
        """Add the frame with the number ``at``, uint8 [H, W, 3], and fill the holes before it."""
        padding = [(0, coded_side(side) - side) for side in self._shape]
        padded = np.pad(pixels, (*padding, (0, 0)), mode="edge") if max(padding) > (0, 0) else pixels
        frame = self._to_yuv(self._av.VideoFrame.from_ndarray(np.ascontiguousarray(padded), format="rgb24"))
        self._fill(at, frame if self._last is None else self._last)
        self._fill(at + 1, frame)
        self._last = frame

    def finish(self, count: int) -> bytes:
        """Return the chunk, whose holes at the end are filled up to ``count`` frames."""
        self._fill(count, self._last)
        self._packets += map(bytes, self._context.encode())
        if self._context.name == "libx264":
            self._packets[0] = _INFORMATION.sub(b"", self._packets[0], count=1)
        return b"".join(self._packets)

    def _fill(self, count: int, frame: Any) -> None:
        for number in range(self._count, count):
            frame.pts, frame.time_base = number, _SECOND
            self._packets += map(bytes, self._context.encode(frame))
        self._count = max(count, self._count)
