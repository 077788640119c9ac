"""Frames at another size: beside TensorFlow's filters, which OpenVLA and Octo use, and in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stream import ArgumentError, Frames, make_loader
from stream.batch.pictures.resize import Resize
from stream.sample.frames import ImageFilter, ImageFit
from tests.stream.index_root import write_dataset


def picture(height: int, width: int) -> np.ndarray:
    small = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def resized(frame: np.ndarray, size: tuple[int, int], fit: ImageFit, filter: ImageFilter = "area") -> np.ndarray:
    out = np.full((*size, *frame.shape[2:]), 7, frame.dtype)
    Resize(fit, filter).apply(frame, out)
    return out


@pytest.mark.parametrize("size", [(224, 224), (128, 128), (300, 280)])
def test_lanczos_differs_from_tensorflow_by_one_level_at_most(size: tuple[int, int]) -> None:
    tf = pytest.importorskip("tensorflow")
    frame = picture(256, 200)
    expected = tf.clip_by_value(tf.round(tf.image.resize(frame, size, method="lanczos3", antialias=True)), 0, 255)
    result = resized(frame, size, "stretch", "lanczos")
    assert np.abs(result.astype(int) - expected.numpy()).max() <= 1


def test_area_is_the_mean_of_the_covered_pixels() -> None:
    frame = picture(256, 192)
    expected = frame.reshape(64, 4, 64, 3, 3).mean(axis=(1, 3))
    assert np.abs(resized(frame, (64, 64), "stretch") - expected).max() <= 1


@pytest.mark.parametrize("fit", ["stretch", "pad"])
def test_frames_of_the_size_are_not_touched(fit: ImageFit) -> None:
    frame = picture(64, 48)
    np.testing.assert_array_equal(resized(frame, (64, 48), fit, "lanczos"), frame)


@pytest.mark.parametrize(
    ("shape", "inner"), [((240, 320), (168, 224)), ((320, 240), (224, 168)), ((100, 37), (224, 82))]
)
def test_padding_is_black_and_even(shape: tuple[int, int], inner: tuple[int, int]) -> None:
    padded = resized(np.full((*shape, 3), 200, np.uint8), (224, 224), "pad", "bilinear")
    rows, columns = (padded[:, :, 0] > 0).any(axis=1), (padded[:, :, 0] > 0).any(axis=0)
    assert (int(rows.sum()), int(columns.sum())) == inner
    assert (int(rows.argmax()), int(columns.argmax())) == ((224 - inner[0]) // 2, (224 - inner[1]) // 2)


@pytest.mark.parametrize("fit", ["stretch", "pad"])
def test_depth_takes_values_that_were_measured(fit: ImageFit) -> None:
    depth = np.random.default_rng(0).integers(1, 1 << 16, (30, 40), np.uint16)
    result = resized(depth, (20, 20), fit, "lanczos")
    assert set(result[result > 0].tolist()) <= set(depth.ravel().tolist())
    assert (result > 0).any(axis=1).sum() == (20 if fit == "stretch" else 15)
    np.testing.assert_array_equal(resized(depth, (60, 80), fit)[::2, ::2], depth)


@pytest.mark.parametrize("fit", ["stretch", "pad"])
@pytest.mark.parametrize("size", [(20, 30), (25, 60), (160, 30), (300, 400)], ids=str)
def test_depth_is_taken_where_its_colours_are(size: tuple[int, int], fit: ImageFit) -> None:
    # The pixels of both say at which row and column they were.
    positions = np.stack([*np.mgrid[1:161, 1:241], np.zeros((160, 240))], axis=2)
    colours = resized(positions.astype(np.uint8), size, fit).astype(int)
    depths = np.stack([resized(positions[:, :, axis].astype(np.uint16), size, fit) for axis in (0, 1)], axis=2)
    assert depths.any(axis=2).sum() == colours.any(axis=2).sum() > 0
    # Half a pixel to the middle of an even number of pixels, and half a level of rounding.
    assert np.abs(depths - colours[:, :, :2]).max() <= 1


def test_datasets_of_several_sizes_make_one_batch(tmp_path: Path) -> None:
    for name, size in (("small", (16, 16)), ("large", (24, 40))):
        write_dataset(tmp_path, name, {"train": [[9, 9]]}, size=size)
    message = r"frames of 2 sizes .*small 16x16; large 24x40.* give .*size=.*--image-size HxW"
    with pytest.raises(ArgumentError, match=message):
        make_loader(tmp_path, "small,large", batch_size=8)
    loader = make_loader(tmp_path, "small,large", batch_size=8, frames=Frames(size=(32, 32), fit="pad"))
    assert loader.batch_at(0)["frames"].shape == (8, 2, 32, 32, 3)


def test_a_camera_without_a_size_keeps_its_own(frames_root: Path) -> None:
    loader = make_loader(
        frames_root, "viola", batch_size=2, frames=Frames(cameras=["primary", "wrist"], size={"wrist": (8, 8)})
    )
    assert loader.batch_at(0)["frames/primary"].shape[2:4] == (64, 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frames": {"size": 224}}, "size=224; expected .height, width. in pixels"),
        ({"frames": {"size": (224, 0)}}, "expected .height, width. in pixels"),
        ({"frames": {"size": (10**6, 10**6)}}, r"size=.1000000, 1000000.; expected .* at most 67,108,864 pixels a"),
        ({"frames": {"size": {"primary": (8193, 8192)}}}, r"size\['primary'\]=.8193, 8192.; expected .* at most"),
        ({"frames": {"size": {"wrist": (8, 8)}}}, "size: no camera 'wrist' is loaded"),
        ({"frames": {"fit": "crop"}}, "fit='crop'; expected one of 'stretch', 'pad'"),
        ({"frames": {"filter": "nearest"}}, "filter='nearest'; expected one of 'area', 'lanczos', 'bilinear'"),
        ({"frames": {"size": (8, 8), "decode": "device"}}, "decode='device' gives frames in their stored size"),
    ],
)
def test_wrong_sizes_are_refused_when_the_loader_is_made(frames_root: Path, options: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_loader(frames_root, "viola", batch_size=2, **options)
