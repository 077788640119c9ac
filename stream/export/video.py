"""One H.264 file of a camera's frames, made with PyAV."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from stream.storage.errors import ArgumentError
from stream.storage.extras import imports_of

with imports_of("lerobot", by="stream.export --video"):
    import av

CODEC, PIXELS = "h264", "yuv420p"
_ENCODER = "libx264"
_OPTIONS = {"crf": "18", "g": "2", "bf": "0", "preset": "medium"}
"""A key frame every two frames, as LeRobot's recorder has them, so that any frame is found fast."""


def check_size(camera: str, shape: tuple[int, int]) -> None:
    """Raise ArgumentError if frames of this height and width cannot be encoded, or PyAV has no encoder."""
    if shape[0] % 2 or shape[1] % 2:
        raise ArgumentError(
            f"--video: frames of camera {camera} are {shape[0]}x{shape[1]}, and H.264 needs even numbers; take --images"
        )
    try:
        av.Codec(_ENCODER, "w")
    except ValueError:
        raise ArgumentError(f"--video: PyAV {av.__version__} has no encoder {_ENCODER}; take --images") from None


class VideoWriter:
    """A video file to write frames to; frame n is at n / rate seconds.

    Args:
        path: File to make.
        shape: Height and width of the frames.
        rate: Frames per second.
    """

    def __init__(self, path: Path, *, shape: tuple[int, int], rate: float) -> None:
        self._rate = Fraction(rate).limit_denominator(1_000)
        self._container = av.open(str(path), "w", options={"movflags": "faststart"})
        stream: Any = self._container.add_stream(_ENCODER, rate=self._rate, options=_OPTIONS)
        stream.height, stream.width = shape
        stream.pix_fmt = PIXELS
        self._stream = stream
        self._count = 0

    def write(self, pixels: np.ndarray) -> None:
        """Add a frame, uint8 [H, W, 3] in RGB."""
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        frame.pts, frame.time_base = self._count, 1 / self._rate
        self._count += 1
        self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Write the rest and close the file."""
        self._container.mux(self._stream.encode())
        self.close()

    def close(self) -> None:
        """Close the file, complete or not."""
        self._container.close()
