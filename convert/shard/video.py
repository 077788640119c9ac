"""Encoding of chunks of video, see ``stream.format.video``.

One thread encodes a chunk independently of all others, so its bytes depend only on its frames and the policy.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path
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


def check_sizes(
    sizes_by_camera: Mapping[str, Iterable[str]], policies: Mapping[str, FramePolicy], *, dataset_name: str
) -> None:
    """Raise ShardError if frames of one camera have two sizes, "HxW", that are the same as video."""
    for camera_name, camera_sizes in sizes_by_camera.items():
        if policies[camera_name].codec in VIDEO_CODECS:
            side_pairs = (frame_size.split("x") for frame_size in camera_sizes)
            try:
                coded_sizes([(int(height), int(width)) for height, width in side_pairs])
            except FormatError as error:
                raise ShardError(f"{dataset_name}, {camera_name}: {error}") from None


def encode_chunk(frames: Iterable[EncodedFrame | None], policy: FramePolicy) -> tuple[bytes | None, list[bool]]:
    """Encode the frames of a chunk, None for a hole, while they are taken.

    Returns:
        The chunk, None if all frames are holes; and which frames are none. A hole shows the frame before it, or the
        first one.
    """
    present_frames: list[bool] = []
    passed_chunk: bytes | None = None
    encoder: _Encoder | None = None
    for frame in frames:
        present_frames.append(frame is not None)
        if frame is None or frame.video is None:
            continue
        if isinstance(frame.video, ChunkFrame):
            # The chunks of a converted root have the same frames as those of a root that is made of it.
            passed_chunk = bytes(frame.video.chunk)
        else:
            encoder = encoder or _Encoder(policy, frame.size)
            encoder.add(frame.video, frame_number=len(present_frames) - 1)
    return passed_chunk if encoder is None else encoder.finish(len(present_frames)), present_frames


@contextlib.contextmanager
def usual_scheduling() -> Iterator[None]:
    """Keep the scheduling of this process while an encoder opens.

    Where root runs it, as in many containers, SVT-AV1 gives the calling thread and its own ones a real-time priority.
    All processes that this one starts afterwards would inherit it, and no other program would get a processor.
    """
    policy = os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else None
    try:
        yield
    finally:
        if policy is not None and policy != os.SCHED_FIFO:
            for thread in Path("/proc/self/task").iterdir():
                # A thread may end meanwhile.
                with contextlib.suppress(OSError):
                    if os.sched_getscheduler(int(thread.name)) == os.SCHED_FIFO:
                        os.sched_setscheduler(int(thread.name), policy, os.sched_param(0))


class _Encoder:
    """An encoder of one chunk of frames of a height and width."""

    def __init__(self, policy: FramePolicy, frame_size: tuple[int, int]) -> None:
        # SVT-AV1 would print its settings for each chunk.
        os.environ.setdefault("SVT_LOG", "1")
        import av
        from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

        self._av = av
        self._shape = frame_size
        self._to_yuv = partial(
            VideoReformatter().reformat,
            format="yuv420p",
            dst_colorspace=Colorspace.ITU601,
            dst_color_range=ColorRange.MPEG,
            interpolation=Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.BITEXACT,
            threads=1,
        )
        codec_context: Any = av.CodecContext.create(_ENCODERS[policy.codec], "w")
        codec_context.height, codec_context.width = map(coded_side, frame_size)
        codec_context.pix_fmt, codec_context.time_base, codec_context.framerate = "yuv420p", _SECOND, 1 / _SECOND
        codec_context.gop_size, codec_context.thread_count = policy.gop, 1
        # BT.601 in the limited range.
        codec_context.colorspace, codec_context.color_range = 5, 1
        codec_context.options = {**_OPTIONS[policy.codec], "crf": str(policy.crf)}
        with usual_scheduling():
            codec_context.open()
        self._context = codec_context
        self._last: Any = None
        self._count = 0
        self._packets: list[bytes] = []

    def add(self, pixels: np.ndarray, *, frame_number: int) -> None:
        """Add the frame with the number ``frame_number``, uint8 [H, W, 3], and fill the holes before it."""
        edge_padding = [(0, coded_side(frame_side) - frame_side) for frame_side in self._shape]
        padded_pixels = np.pad(pixels, (*edge_padding, (0, 0)), mode="edge") if max(edge_padding) > (0, 0) else pixels
        rgb_frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(padded_pixels), format="rgb24")
        video_frame = self._to_yuv(rgb_frame)
        self._fill(frame_number, video_frame if self._last is None else self._last)
        self._fill(frame_number + 1, video_frame)
        self._last = video_frame

    def finish(self, num_frames: int) -> bytes:
        """Return the chunk, whose holes at the end are filled up to ``num_frames`` frames."""
        self._fill(num_frames, self._last)
        self._packets += map(bytes, self._context.encode())
        if self._context.name == "libx264":
            self._packets[0] = _INFORMATION.sub(b"", self._packets[0], count=1)
        return b"".join(self._packets)

    def _fill(self, num_frames: int, video_frame: Any) -> None:
        for frame_number in range(self._count, num_frames):
            video_frame.pts, video_frame.time_base = frame_number, _SECOND
            self._packets += map(bytes, self._context.encode(video_frame))
        self._count = max(num_frames, self._count)
