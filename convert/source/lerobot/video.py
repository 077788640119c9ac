"""Frames of a video file, decoded once and in order by PyAV."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from convert.errors import CorruptFrame, DamagedEpisode
from convert.source.episode import MAX_PIXELS
from stream.storage.extras import imports_of

with imports_of("lerobot", by="reading videos of LeRobot datasets"):
    import av
    from av.video.reformatter import VideoReformatter

_FAR = 10.0
"""Seconds to skip by a seek; less is decoded and dropped."""


class VideoFile:
    """An open video file.

    Its packets are read once when it is opened, so that frames that a cut file lacks are known before any is decoded.
    One decoded frame and the one after it are in memory.

    Attributes:
        times: Time of each frame that the file has, ascending, in seconds.

    Raises:
        DamagedEpisode: The file is no video, is cut before its index, or has a codec that PyAV cannot decode.
    """

    def __init__(self, path: Path, *, name: str, fps: float) -> None:
        self._name = name
        self._tolerance = 0.5 / fps
        try:
            self._container = av.open(str(path))
            with contextlib.ExitStack() as opened:
                opened.callback(self.close)
                self._open_stream()
                opened.pop_all()
        except (av.FFmpegError, ValueError) as error:
            raise self._unreadable(error) from None

    def _open_stream(self) -> None:
        if not self._container.streams.video:
            raise self._unreadable("it has no video")
        self._stream = self._container.streams.video[0]
        if self._stream.codec_context is None or not self._stream.codec_context.is_decoder:
            raise self._unreadable("PyAV has no decoder of its codec")
        if (pixels := self._stream.codec_context.width * self._stream.codec_context.height) > MAX_PIXELS:
            raise self._unreadable(f"its frames claim {pixels:,} pixels, more than {MAX_PIXELS:,}")
        # Each worker is a process of its own, and more threads hold more frames.
        self._stream.codec_context.thread_count = 1
        base = self._stream.time_base or 0
        packets = (packet for packet in self._container.demux(self._stream) if packet.size and not packet.is_corrupt)
        self.times = np.sort([float(packet.pts * base) for packet in packets if packet.pts is not None])
        self._base = float(base)
        self._reformatter = VideoReformatter()
        self._start(0.0)

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def missing(self, wanted: np.ndarray) -> np.ndarray:
        """Return the places in ``wanted`` of the times, in seconds, within half a frame of which there is no frame."""
        if not len(self.times):
            return np.arange(len(wanted))
        after = np.clip(np.searchsorted(self.times, wanted), 1, len(self.times) - 1) if len(self.times) > 1 else 0
        before = np.maximum(np.subtract(after, 1), 0)
        distance = np.minimum(np.abs(self.times[after] - wanted), np.abs(self.times[before] - wanted))
        return np.flatnonzero(distance > self._tolerance)

    def frames(self, wanted: np.ndarray) -> Iterator[np.ndarray | CorruptFrame]:
        """Yield the frame nearest to each of some ascending times, uint8 [H, W, 3] in RGB."""
        if len(wanted) and not self._now - self._tolerance <= wanted[0] <= self._now + _FAR:
            self._start(float(wanted[0]))
        for time in wanted:
            while self._next is not None and abs(self._next.time - time) <= abs(self._now - time):
                self._step()
            if self._frame is None or abs(self._now - time) > self._tolerance:
                yield CorruptFrame(f"{self._name}: no frame at {time:.3f} s can be decoded")
            else:
                yield self._reformatter.reformat(self._frame, format="rgb24").to_ndarray()

    def _start(self, time: float) -> None:
        """Go to the last key frame at or before a time."""
        self._container.seek(int(time / self._base) if self._base else 0, stream=self._stream, backward=True)
        self._decoded = self._decode()
        self._next: av.VideoFrame | None = None
        self._now = -np.inf
        self._step()
        self._step()

    def _step(self) -> None:
        self._frame = self._next
        if self._frame is not None and self._frame.time is not None:
            self._now = self._frame.time
        self._next = next(self._decoded, None)

    def _decode(self) -> Iterator[av.VideoFrame]:
        for packet in self._container.demux(self._stream):
            try:
                found = packet.decode()
            except av.FFmpegError:
                # The steps whose frames are lost find none near enough.
                continue
            yield from (frame for frame in found if frame.time is not None and not frame.is_corrupt)

    def _unreadable(self, reason: object) -> DamagedEpisode:
        text = " ".join(str(getattr(reason, "strerror", None) or reason).split())[:200]
        return DamagedEpisode(f"{self._name}: cannot be read as a video ({text})", reason="unreadable")
