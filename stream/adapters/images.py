"""Frames in the forms that trainers take."""

from __future__ import annotations

import numpy as np


def as_float(frames: np.ndarray) -> np.ndarray:
    """Return frames with values from 0 to 1 and the channels first, float32 [..., 3, H, W]."""
    return np.moveaxis(frames, -1, -3).astype(np.float32, order="C") / np.float32(255)
