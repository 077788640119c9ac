"""Loaders whose frames are augmented on a device, and how far their pictures are from those of the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stream import Frames, make_loader
from stream.loader.loader import Loader


def open_loader(root: Path, augment: Any, **arguments: Any) -> Loader:
    frames = Frames([-1, 0], cameras=["primary", "wrist"], size=(64, 64), edges="repeat", augment=augment)
    return make_loader(root, "bridge,droid", batch_size=8, **{"frames": frames, **arguments})


def largest_difference(batch: dict[str, Any], moved: dict[str, Any]) -> int:
    assert batch.keys() == moved.keys()
    largest = 0
    for key, values in batch.items():
        if not isinstance(values, np.ndarray):
            continue
        actual = np.asarray(moved[key])
        if key.startswith("frames/"):
            assert actual.dtype == np.uint8 and actual.shape == values.shape
            largest = max(largest, int(np.abs(values.astype(int) - actual).max()))
        else:
            np.testing.assert_array_equal(actual, values, err_msg=key)
    return largest


class ToFloat:
    """A transform after which frames cannot be augmented."""

    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with frames of another type."""
        return {**batch, "frames/primary": batch["frames/primary"].astype(np.float32)}
