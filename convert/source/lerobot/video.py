"""Frames of a video file by their numbers, decoded in order by PyAV."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from convert.errors import CorruptFrame, DamagedEpisode
from convert.source.lerobot.info import DEEP_PIXELS, DepthCodes
from stream.base.extras import imports_of
from stream.format.names import MAX_PIXELS

with imports_of("lerobot", by="reading videos of LeRobot datasets"):
    import av
    from av.video.reformatter import VideoReformatter

_SEEK_DISTANCE = 64
"""Frames from which on a seek skips them; fewer are decoded and dropped."""


class VideoFile:
    """An open video file; its packets are read when it is opened, so frames are counted before any is decoded.

    Attributes:
        times: Time of each frame, ascending, in seconds. Frame k is the one that is shown after k others.
        listed: Count of the frames that its index lists; a file that is cut short has fewer.

    Raises:
        DamagedEpisode: The file is not a video, is cut before its index, or has a codec that PyAV cannot decode.
    """

    def __init__(self, path: Path, *, name: str) -> None:
        self._name = name
        self._number = 0
        self._frame: av.VideoFrame | None = None
        try:
            self._container = av.open(str(path))
            self._open_stream()
        except (av.FFmpegError, ValueError) as error:
            raise self._unreadable(error) from None

    def _open_stream(self) -> None:
        if not self._container.streams.video:
            raise self._unreadable("it has no video")
        self._stream = self._container.streams.video[0]
        if self._stream.codec_context is None or not self._stream.codec_context.is_decoder:
            raise self._unreadable("PyAV has no decoder of its codec")
        if (num_pixels := self._stream.codec_context.width * self._stream.codec_context.height) > MAX_PIXELS:
            raise self._unreadable(f"its frames claim {num_pixels:,} pixels, more than {MAX_PIXELS:,}")
        # Each worker is a separate process, and more threads hold more frames.
        self._stream.codec_context.thread_count = 1
        packets = [packet for packet in self._container.demux(self._stream) if packet.size]
        shown_packets = [packet for packet in packets if not packet.is_discard]
        # A packet that is cut short is a frame that does not decode, and the frames after it keep their numbers.
        self._pts = np.unique(np.array([packet.pts for packet in shown_packets if packet.pts is not None], np.int64))
        self.times = self._pts * float(self._stream.time_base or 0)
        self.listed = max(self._stream.frames - len(packets) + len(shown_packets), len(self.times))
        keyframes = [(packet.pts, packet.dts) for packet in shown_packets if packet.is_keyframe]
        self._keys = np.array(sorted(times for times in keyframes if None not in times), np.int64).reshape(-1, 2)
        self._to_rgb = VideoReformatter().reformat
        self._start(0)

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def frames(self, frame_numbers: np.ndarray) -> Iterator[np.ndarray | CorruptFrame]:
        """Yield the frames of ascending numbers, uint8 [H, W, 3] in RGB; -1 gives a ``CorruptFrame``."""
        for frame in self._decoded_frames(frame_numbers):
            yield frame if isinstance(frame, CorruptFrame) else self._to_rgb(frame, format="rgb24").to_ndarray()

    def depth(self, frame_numbers: np.ndarray, codes: DepthCodes | None) -> Iterator[np.ndarray | CorruptFrame]:
        """Yield depth, uint16 [H, W], as ``frames`` does: values of the pixels, or the millimetres of their codes."""
        for frame in self._decoded_frames(frame_numbers):
            yield frame if isinstance(frame, CorruptFrame) else self._read_depth(frame, codes)

    def _read_depth(self, frame: av.VideoFrame, codes: DepthCodes | None) -> np.ndarray | CorruptFrame:
        if not (format_match := DEEP_PIXELS.fullmatch(frame.format.name)):
            return CorruptFrame(f"{self._name}: pixels of {frame.format.name}, depth has gray ones of more than 8 bits")
        # The plane itself: FFmpeg's conversions stretch the range of values.
        plane = frame.planes[0]
        dtype = np.dtype(np.uint16).newbyteorder("<" if format_match[1] == "le" else ">")
        plane_values = np.frombuffer(memoryview(plane), dtype).reshape(-1, plane.line_size // 2)
        depth = plane_values[: frame.height, : frame.width]
        if codes is None:
            return depth.astype(np.uint16)
        if (largest_code := int(depth.max())) >= len(codes.millimetres):
            return CorruptFrame(f"{self._name}: a pixel is {largest_code}, and codes have 12 bits")
        return codes.millimetres[depth]

    def _decoded_frames(self, frame_numbers: np.ndarray) -> Iterator[av.VideoFrame | CorruptFrame]:
        for number in frame_numbers.tolist():
            if number < 0:
                yield CorruptFrame(f"{self._name}: has no frame of this step")
                continue
            if not self._number <= number <= self._number + _SEEK_DISTANCE:
                self._start(number)
            self._number, pts = number, int(self._pts[number])
            while self._frame is not None and (self._frame.pts or 0) < pts:
                self._frame = next(self._decoded, None)
            if self._frame is None or self._frame.pts != pts:
                yield CorruptFrame(f"{self._name}: frame {number}, at {self.times[number]:.3f} s, cannot be decoded")
            else:
                yield self._frame

    def _start(self, frame_number: int) -> None:
        """Go to the last key frame at or before a frame."""
        keyframe = np.searchsorted(self._keys[:, 0], self._pts[frame_number], "right") - 1 if frame_number else -1
        # The key frame's time of decoding, because frames shown before it may be stored behind it.
        self._container.seek(int(self._keys[keyframe, 1]) if keyframe >= 0 else 0, stream=self._stream, backward=True)
        self._decoded = self._decode()
        self._frame = next(self._decoded, None)
        self._number = frame_number

    def _decode(self) -> Iterator[av.VideoFrame]:
        for packet in self._container.demux(self._stream):
            try:
                decoded_frames = packet.decode()
            except av.FFmpegError:
                # The frames of this packet are reported as frames that cannot be decoded.
                continue
            yield from (frame for frame in decoded_frames if frame.pts is not None and not frame.is_corrupt)

    def _unreadable(self, reason: object) -> DamagedEpisode:
        text = " ".join(str(getattr(reason, "strerror", None) or reason).split())[:200]
        return DamagedEpisode(f"{self._name}: cannot be read as a video ({text})", reason="unreadable")
