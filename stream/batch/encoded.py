"""Frames that stay encoded until they are on a device.

With ``decode="device"`` a batch has, instead of ``frames``:

- ``frames_jpeg`` uint8 [b, N]: the JPEGs of each row, one after the other, padded with zeros. N is a multiple of 4,096
  and differs from batch to batch.
- ``frames_span`` int32 [b, F, 2]: first byte and end of each frame in its row; (0, 0) where a row has fewer frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import simplejpeg

from stream.storage.errors import FormatError

ENCODED_KEYS = ("frames_jpeg", "frames_span")
_STEP = 4096
"""Divisor of N, so that slots seldom change size."""


EncodedRow = tuple[int, Sequence[tuple[int, int, Any]]]
"""A row of a batch, and camera, frame and data of each of its stored frames."""


def pack_frames(
    encoded: Sequence[EncodedRow], copies: Sequence[tuple[int, int, int, int]], rows: int, frames: int
) -> dict[str, np.ndarray]:
    """Return ``frames_jpeg`` and ``frames_span`` of a batch of one camera.

    Args:
        encoded: Encoded frames.
        copies: Row, camera, frame, and the frame of the same row with the same picture.
        rows: Rows of the batch.
        frames: Most frames of a row.
    """
    width = max((sum(len(data) for _, _, data in jpegs) for _, jpegs in encoded), default=1)
    jpeg = np.zeros((rows, -(-width // _STEP) * _STEP), np.uint8)
    span = np.zeros((rows, frames, 2), np.int32)
    for row, jpegs in encoded:
        start = 0
        for _, frame, data in jpegs:
            stop = start + len(data)
            jpeg[row, start:stop] = np.frombuffer(data, np.uint8)
            span[row, frame] = start, stop
            start = stop
    for row, _, frame, source in copies:
        span[row, frame] = span[row, source]
    return {"frames_jpeg": jpeg, "frames_span": span}


def encoded_frames(batch: Mapping[str, Any]) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield row, frame and JPEG (uint8 [bytes], a view) of all frames of a batch."""
    jpeg, spans = batch["frames_jpeg"], batch["frames_span"]
    for row, frames in enumerate(spans.tolist()):
        for frame, (begin, end) in enumerate(frames):
            if end:
                yield row, frame, jpeg[row, begin:end]


def decode_frames(batch: Mapping[str, Any], shape: tuple[int, int]) -> np.ndarray:
    """Decode the frames of a batch on the host.

    Args:
        batch: Batch of arrays, of a loader with ``decode="device"``.
        shape: (height, width) of all frames.

    Returns:
        uint8 [b, F, height, width, 3], RGB, the same as with ``decode="host"``.

    Raises:
        FormatError: A frame cannot be decoded, or has another size.
    """
    rows, frames, _ = batch["frames_span"].shape
    decoded = np.zeros((rows, frames, *shape, 3), np.uint8)
    for row, frame, jpeg in encoded_frames(batch):
        try:
            if simplejpeg.decode_jpeg(jpeg, buffer=decoded[row, frame]).shape != decoded.shape[2:]:
                raise ValueError(f"it is not {shape[0]}x{shape[1]}")
        except ValueError as error:
            raise FormatError(f"frame {frame} of row {row} cannot be decoded ({error})") from None
    return decoded
