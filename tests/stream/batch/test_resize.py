"""Frames at another size: beside TensorFlow's filters, which OpenVLA and Octo use, and in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from convert.plan import Options
from convert.shard.images import FramePolicy
from stream import ArgumentError, make_loader
from stream.batch.resize import ImageFilter, ImageFit, Resize
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode
from tests.fixtures.datasets.rlds_dataset import write_dataset as write_source


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
    wanted = tf.clip_by_value(tf.round(tf.image.resize(frame, size, method="lanczos3", antialias=True)), 0, 255)
    found = resized(frame, size, "stretch", "lanczos")
    assert np.abs(found.astype(int) - wanted.numpy()).max() <= 1


def test_area_is_the_mean_of_the_covered_pixels() -> None:
    frame = picture(256, 192)
    wanted = frame.reshape(64, 4, 64, 3, 3).mean(axis=(1, 3))
    assert np.abs(resized(frame, (64, 64), "stretch") - wanted).max() <= 1


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
    found = resized(depth, (20, 20), fit, "lanczos")
    assert set(found[found > 0].tolist()) <= set(depth.ravel().tolist())
    assert (found > 0).any(axis=1).sum() == (20 if fit == "stretch" else 15)
    np.testing.assert_array_equal(resized(depth, (60, 80), fit)[::2, ::2], depth)


def test_depth_is_taken_under_the_middle_of_its_new_pixel() -> None:
    columns = np.broadcast_to(np.arange(1, 65, dtype=np.uint16), (64, 64))
    expected = [4 + 8 * place + 1 for place in range(8)]
    assert resized(columns, (8, 8), "stretch")[0].tolist() == expected
    assert resized(columns.T, (8, 8), "stretch")[:, 0].tolist() == expected


def test_a_raw_camera_under_two_keys_is_resized_under_one_of_them(tmp_path: Path) -> None:
    dataset = write_source(tmp_path / "source", splits={"train": [[demo_episode(6)]]})
    convert_dataset(dataset.conversion(tmp_path / "root", Options(policy=FramePolicy(size=None, codec="raw"))))
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 0}
    alone = make_loader(tmp_path / "root", "demo", cameras="image", **options).batch_at(0)["frames"]
    for keys in (("whole", "small"), ("small", "whole")):
        cameras = dict.fromkeys(keys, "image")
        loader = make_loader(tmp_path / "root", "demo", cameras=cameras, image_size={"small": (8, 12)}, **options)
        batch = loader.batch_at(0)
        np.testing.assert_array_equal(batch["frames/whole"], alone)
        for frame, small in zip(alone.reshape(-1, 24, 32, 3), batch["frames/small"].reshape(-1, 8, 12, 3), strict=True):
            np.testing.assert_array_equal(small, resized(frame, (8, 12), "stretch"))


def test_datasets_of_several_sizes_make_one_batch(frames_root: Path, tmp_path: Path) -> None:
    from tests.stream.index_root import write_dataset

    for name, size in (("small", (16, 16)), ("large", (24, 40))):
        write_dataset(tmp_path, name, {"train": [[9, 9]]}, size=size)
    with pytest.raises(ArgumentError, match=r"frames of 2 sizes .* give image_size="):
        make_loader(tmp_path, "small,large", batch_size=8)
    whole = make_loader(tmp_path, "small,large", batch_size=8, image_size=(32, 32), image_fit="pad", num_workers=1)
    batch = next(iter(whole))
    assert batch["frames"].shape == (8, 2, 32, 32, 3)
    native: Any = {
        name: make_loader(tmp_path, name, batch_size=14, passes=1, shuffle="none") for name in whole.dataset_names
    }
    for row, ref in enumerate(whole.describe(0)):
        places = [(other.episode, other.step) for other in native[ref.dataset].describe(0)]
        place = places.index((ref.episode, ref.step))
        for frame, wanted in zip(batch["frames"][row], native[ref.dataset].batch_at(0)["frames"][place], strict=True):
            np.testing.assert_array_equal(frame, resized(wanted, (32, 32), "pad"))
    assert np.array_equal(whole.batch_at(0)["frames"], batch["frames"])


def test_each_camera_has_its_own_size(frames_root: Path) -> None:
    sizes = {"primary": (20, 30), "wrist": (8, 8)}
    batch = make_loader(frames_root, "viola", batch_size=2, cameras=["primary", "wrist"], image_size=sizes).batch_at(0)
    assert {name: batch[f"frames/{name}"].shape[2:4] for name in sizes} == sizes
    one = make_loader(frames_root, "viola", batch_size=2, cameras=["primary", "wrist"], image_size={"wrist": (8, 8)})
    assert one.batch_at(0)["frames/primary"].shape[2:4] == (64, 64)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"image_size": 224}, "image_size=224; expected .height, width. in pixels"),
        ({"image_size": (10**6, 10**6)}, "pixels, of which a frame has at most 67,108,864"),
        ({"image_size": (-224, -224)}, "expected .height, width. in pixels"),
        ({"image_size": (224, 0)}, "expected .height, width. in pixels"),
        ({"image_size": {"wrist": (8, 8)}}, "image_size: no camera 'wrist' is loaded"),
        ({"image_fit": "crop"}, "image_fit='crop'; expected one of stretch, pad"),
        ({"image_filter": "nearest"}, "expected one of area, lanczos, bilinear"),
        ({"image_size": (8, 8), "decode": "device"}, "decode='device' gives frames in their stored size"),
    ],
)
def test_wrong_sizes_are_refused_when_the_loader_is_made(frames_root: Path, given: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_loader(frames_root, "viola", batch_size=2, **given)
