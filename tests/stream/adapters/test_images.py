"""Resizing beside TensorFlow's, which OpenVLA and Octo use."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from stream.adapters.images import as_float, resize, resize_with_pad


def picture(height: int, width: int) -> np.ndarray:
    small = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("size", [(224, 224), (128, 128), (300, 280)])
def test_lanczos_differs_from_tensorflow_by_one_level_at_most(size: tuple[int, int]) -> None:
    tf = pytest.importorskip("tensorflow")
    frame = picture(256, 200)
    wanted = tf.clip_by_value(tf.round(tf.image.resize(frame, size, method="lanczos3", antialias=True)), 0, 255)
    found = resize(frame[None], size, Image.Resampling.LANCZOS)[0]
    assert np.abs(found.astype(int) - wanted.numpy()).max() <= 1


def test_frames_of_the_size_are_not_touched() -> None:
    frame = picture(64, 48)
    assert resize(frame, (64, 48), Image.Resampling.LANCZOS) is frame
    assert resize_with_pad(frame, (64, 48)) is frame


@pytest.mark.parametrize(
    ("shape", "inner"), [((240, 320), (168, 224)), ((320, 240), (224, 168)), ((100, 37), (224, 82))]
)
def test_padding_is_black_and_even(shape: tuple[int, int], inner: tuple[int, int]) -> None:
    padded = resize_with_pad(np.full((2, *shape, 3), 200, np.uint8), (224, 224))
    rows, columns = (padded[0, :, :, 0] > 0).any(axis=1), (padded[0, :, :, 0] > 0).any(axis=0)
    assert (int(rows.sum()), int(columns.sum())) == inner
    assert (int(rows.argmax()), int(columns.argmax())) == ((224 - inner[0]) // 2, (224 - inner[1]) // 2)


def test_as_float_puts_the_channels_first() -> None:
    frame = picture(8, 6)
    found = as_float(frame[None, None])
    assert (found.shape, found.dtype.name, found.flags.c_contiguous) == ((1, 1, 3, 8, 6), "float32", True)
    np.testing.assert_array_equal(found[0, 0, 1], frame[..., 1] / np.float32(255))
