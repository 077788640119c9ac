"""Frames that stay encoded until they are on a device.

With ``decode="device"`` a batch has, instead of ``frames``:

- ``frames_jpeg`` uint8 [b, N]: the JPEGs of each row, of all cameras, one after the other, padded with zeros. N is a
  multiple of 4,096 and differs from batch to batch.
- ``frames_span`` int32 [b, F, 2]: first byte and end of each frame in its row; (0, 0) for a missing frame. With several
  cameras, each has a separate array such as ``frames_span/wrist``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import simplejpeg

from stream.base.errors import FormatError

JPEG_KEY = "frames_jpeg"
SPAN_KEY = "frames_span"
"""Key of the spans of one camera, and start of the keys of several."""
_STEP = 4096
"""Divisor of N, which keeps slots from changing their size often."""


EncodedRow = tuple[int, Sequence[tuple[int, int, Any]]]
"""A row of a batch, and camera, frame and data of each of its stored frames."""


def pack_frames(
    encoded: Sequence[EncodedRow],
    copies: Sequence[tuple[int, int, int, int]],
    *,
    num_rows: int,
    max_frames: int,
    suffixes: Sequence[str] = ("",),
) -> dict[str, np.ndarray]:
    """Return ``frames_jpeg`` and the spans of a batch.

    Args:
        encoded: Encoded frames.
        copies: Row, camera, frame, and the frame of the same row with the same picture.
        num_rows: Rows of the batch.
        max_frames: Most frames of a row and camera.
        suffixes: Ending of the keys of each camera.
    """
    row_bytes = max(
        (sum(len(encoded_frame) for _, _, encoded_frame in row_frames) for _, row_frames in encoded), default=1
    )
    jpeg = np.zeros((num_rows, -(-row_bytes // _STEP) * _STEP), np.uint8)
    spans = np.zeros((len(suffixes), num_rows, max_frames, 2), np.int32)
    for row, row_frames in encoded:
        byte_start = 0
        for camera, frame, encoded_frame in row_frames:
            byte_stop = byte_start + len(encoded_frame)
            jpeg[row, byte_start:byte_stop] = np.frombuffer(encoded_frame, np.uint8)
            spans[camera, row, frame] = byte_start, byte_stop
            byte_start = byte_stop
    for row, camera, frame, source_frame in copies:
        spans[camera, row, frame] = spans[camera, row, source_frame]
    return {
        JPEG_KEY: jpeg,
        **{f"{SPAN_KEY}{suffix}": camera_spans for suffix, camera_spans in zip(suffixes, spans, strict=True)},
    }


def encoded_frames(batch: Mapping[str, Any]) -> Iterator[tuple[str, int, int, np.ndarray]]:
    """Yield the key (``frames``, ``frames/wrist``), row, frame and JPEG (uint8 [bytes], a view) of all frames."""
    jpeg = batch[JPEG_KEY]
    for array_name, camera_spans in batch.items():
        if array_name.startswith(SPAN_KEY):
            key = f"frames{array_name.removeprefix(SPAN_KEY)}"
            for row, frame_spans in enumerate(camera_spans.tolist()):
                for frame, (start, stop) in enumerate(frame_spans):
                    if stop:
                        yield key, row, frame, jpeg[row, start:stop]


def with_frames(batch: Mapping[str, Any], frames: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch with decoded frames instead of the encoded ones."""
    other_arrays = {key: array for key, array in batch.items() if key != JPEG_KEY and not key.startswith(SPAN_KEY)}
    return {**frames, **other_arrays}


def decode_frames(batch: Mapping[str, Any], shapes: Mapping[str, tuple[int, int]]) -> dict[str, np.ndarray]:
    """Decode the frames of a batch on the host.

    Args:
        batch: Batch of arrays, of a loader with ``decode="device"``.
        shapes: (height, width) of the frames of each key.

    Returns:
        uint8 [b, F, height, width, 3] by key, RGB, the same as with ``decode="host"``.

    Raises:
        FormatError: A frame cannot be decoded, or has another size.
    """
    decoded = {
        key: np.zeros((*batch[f"{SPAN_KEY}{key.removeprefix('frames')}"].shape[:2], *shape, 3), np.uint8)
        for key, shape in shapes.items()
    }
    for key, row, frame, jpeg in encoded_frames(batch):
        image = decoded[key][row, frame]
        try:
            if simplejpeg.decode_jpeg(jpeg, buffer=image).shape != image.shape:
                height, width, _ = image.shape
                raise ValueError(f"it is not {height}x{width}")
        except ValueError as error:
            raise FormatError(f"{key}: frame {frame} of row {row} cannot be decoded ({error})") from None
    return decoded
