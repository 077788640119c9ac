"""One H.264 file of a camera's frames, made with PyAV: encoded, or copied from chunks that are H.264 already."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

from pairstream.command import needs_extra
from stream.base.errors import ArgumentError

with needs_extra("lerobot", by="pairstream export --video"):
    import av

CODEC, PIXELS = "h264", "yuv420p"
_ENCODER = "libx264"
_OPTIONS = {"crf": "18", "g": "2", "bf": "0", "preset": "medium"}
"""A key frame every two frames, as LeRobot's recorder has them, so that any frame is found fast."""


def check_size(camera_key: str, frame_shape: tuple[int, int]) -> None:
    """Raise ArgumentError if frames of this height and width cannot be encoded, or PyAV has no encoder."""
    height, width = frame_shape
    if height % 2 or width % 2:
        raise ArgumentError(
            f"--video: frames of camera {camera_key} are {height}x{width}, and H.264 needs even numbers; take --images"
        )
    try:
        av.Codec(_ENCODER, "w")
    except ValueError:
        raise ArgumentError(f"--video: PyAV {av.__version__} has no encoder {_ENCODER}; take --images") from None


class VideoFile:
    """A video file to copy chunks of H.264 to, without encoding; frame n is at n / rate seconds."""

    def __init__(self, video_path: Path, *, frame_rate: float) -> None:
        self._rate = Fraction(frame_rate).limit_denominator(1_000)
        self._container = av.open(str(video_path), "w", options={"movflags": "faststart"})
        self._stream: Any = None
        self._parser = av.CodecContext.create(CODEC, "r")
        self._count = 0

    def write(self, chunk: Any) -> None:
        """Add the frames of a chunk."""
        if self._stream is None:
            with av.open(io.BytesIO(chunk), format=CODEC) as chunk_file:
                self._stream = self._container.add_stream_from_template(chunk_file.streams.video[0])
        for packet_number, packet in enumerate([*self._parser.parse(chunk), *self._parser.parse()]):
            packet.stream, packet.time_base = self._stream, 1 / self._rate
            packet.pts = packet.dts = self._count
            packet.duration, packet.is_keyframe = 1, packet_number == 0
            self._container.mux(packet)
            self._count += 1

    def finish(self) -> None:
        """Write the remaining frames and close the file."""
        self.close()

    def close(self) -> None:
        """Close the file, complete or not."""
        self._container.close()


class EncodedVideo(VideoFile):
    """A video file to write frames to, of a height and width; frame n is at n / rate seconds."""

    def __init__(self, video_path: Path, *, frame_shape: tuple[int, int], frame_rate: float) -> None:
        super().__init__(video_path, frame_rate=frame_rate)
        self._stream = self._container.add_stream(_ENCODER, rate=self._rate, options=_OPTIONS)
        self._stream.height, self._stream.width = frame_shape
        self._stream.pix_fmt = PIXELS

    def write(self, pixels: Any) -> None:
        """Add a frame, uint8 [H, W, 3] in RGB."""
        video_frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        video_frame.pts, video_frame.time_base = self._count, 1 / self._rate
        self._count += 1
        self._container.mux(self._stream.encode(video_frame))

    def finish(self) -> None:
        """Write the remaining frames and close the file."""
        self._container.mux(self._stream.encode())
        self.close()
