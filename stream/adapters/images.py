"""Frames in the forms that trainers take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stream.batch.spec import Batch


def as_float(frames: np.ndarray) -> np.ndarray:
    """Return frames with values from 0 to 1 and the channels first, float32 [..., 3, H, W]."""
    return np.moveaxis(frames, -1, -3).astype(np.float32, order="C") / np.float32(255)


@dataclass(frozen=True)
class BlackCameras:
    """Cameras that no dataset of a mixture stores, by name with height and width: black, with mask False."""

    sizes: Mapping[str, tuple[int, int]]

    def map(self, batch: Batch) -> Batch:
        """Return the batch with these cameras."""
        mask = np.zeros_like(next(value for batch_key, value in batch.items() if batch_key.startswith("frames_mask/")))
        black: Batch = {}
        for camera_name, image_size in self.sizes.items():
            black[f"frames/{camera_name}"] = np.zeros((*mask.shape, *image_size, 3), np.uint8)
            black[f"frames_mask/{camera_name}"] = mask
        return batch | black
