"""Frames as trainers take them."""

from __future__ import annotations

import numpy as np
from PIL import Image

from stream.adapters.images import as_float


def picture(height: int, width: int) -> np.ndarray:
    small = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def test_as_float_puts_the_channels_first() -> None:
    frame = picture(8, 6)
    floats = as_float(frame[None, None])
    assert (floats.shape, floats.dtype.name, floats.flags.c_contiguous) == ((1, 1, 3, 8, 6), "float32", True)
    np.testing.assert_array_equal(floats[0, 0, 1], frame[..., 1] / np.float32(255))
