"""Pictures of a batch as a model gets it: every array that looks like images, of any key, dtype and layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pairstream.replay.faults import arrays_of
from stream.base.depth_colours import colour_depth, depth_range

_LEAST = 8
"""Least height and width of an image."""
_STORED = re.compile(r"^(frames|depth)(/.*)?$")


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images under one key of a batch.

    Attributes:
        key: Key.
        images: uint8 [F, H, W, 3] of each row.
        is_real: Mask of the frames of each row, bool [b, F].
    """

    key: str
    images: list[np.ndarray]
    is_real: np.ndarray


def find_pictures(batch: Mapping[str, Any], num_rows: int) -> list[Pictures]:
    """Return the images of a batch, key by key.

    Frames and depth of a loader are recognised by their keys. Other arrays are images if their shape is [b, H, W, 3] or
    [b, 3, H, W], also with a dimension of frames. Of 6 channels, which two image encoders share, the first 3 are shown.
    Floats are scaled from their least to their largest value.
    """
    all_pictures = []
    for batch_key, values in arrays_of(batch, num_rows):
        frames = _frames(batch_key, values)
        if frames is None:
            continue
        mask = batch.get(re.sub("^(frames|depth)", r"\1_mask", batch_key)) if _STORED.match(batch_key) else None
        is_real = np.ones(frames.shape[:2], bool) if mask is None else np.asarray(mask)
        all_pictures.append(Pictures(batch_key, [_colours(row_frames) for row_frames in frames], is_real))
    return all_pictures


def _frames(batch_key: str, values: np.ndarray) -> np.ndarray | None:
    """Return an array as [b, F, H, W, 3], of depth [b, F, H, W]; None if it is not an image."""
    if batch_key.split("/")[0] == "depth" and values.dtype == np.uint16 and values.ndim == 4:
        return values
    if values.ndim not in (4, 5) or values.dtype.kind not in "uf":
        return None
    if values.shape[-1] not in (3, 6) and values.shape[-3] in (3, 6):
        values = np.moveaxis(values, -3, -1)
    if values.shape[-1] not in (3, 6) or min(values.shape[-3:-1]) < _LEAST:
        return None
    values = values[..., :3]
    return values[:, None] if values.ndim == 4 else values


def _colours(frames: np.ndarray) -> np.ndarray:
    """Return the frames of a row as colours, uint8 [F, H, W, 3], all with the same scale."""
    if frames.dtype == np.uint8:
        return frames
    if frames.dtype == np.uint16 and frames.ndim == 3:
        return colour_depth(frames, depth_range(frames))
    finite_values = frames[np.isfinite(frames)]
    lowest, highest = (float(finite_values.min()), float(finite_values.max())) if finite_values.size else (0.0, 1.0)
    scaled = (np.nan_to_num(frames.astype(np.float32)) - lowest) / ((highest - lowest) or 1.0)
    return (255 * np.clip(scaled, 0, 1)).astype(np.uint8)
