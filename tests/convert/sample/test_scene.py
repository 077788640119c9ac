"""Pictures of generated episodes."""

import functools

import numpy as np
import pytest
import simplejpeg

from convert.sample.scene import Scene

RED = 100
RED_OBJECT, ARM = 7, 8
SEEDS = range(6)


@functools.cache
def scene(seed: int) -> Scene:
    return Scene(np.random.default_rng(seed))


def redness(picture: np.ndarray) -> np.ndarray:
    """How much red exceeds blue, pixel by pixel."""
    return picture[:, :, 0].astype(int) - picture[:, :, 2]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("camera", ["image", "image_2", "wrist_image"])
def test_a_frame_of_256_pixels_is_20_to_35_kilobytes_of_jpeg(seed: int, camera: str) -> None:
    picture = scene(seed).colour(7, camera, height=256, width=256)
    size = len(simplejpeg.encode_jpeg(picture, quality=95, colorsubsampling="420"))
    assert 20_000 < size < 35_000


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("camera", ["image", "wrist_image", "hand_image"])
def test_swapped_red_and_blue_can_be_told_by_the_red_object(seed: int, camera: str) -> None:
    surplus = redness(scene(seed).colour(4, camera, height=128, width=128))
    assert (surplus > RED).mean() > 0.01
    assert (surplus < -RED).mean() < 0.001


@pytest.mark.parametrize("seed", SEEDS)
def test_the_background_is_blue(seed: int) -> None:
    shown = scene(seed)
    table = shown.labels(4, "image", height=128, width=128) == 0
    assert redness(shown.colour(4, "image", height=128, width=128))[table].mean() < -10


@pytest.mark.parametrize("seed", SEEDS)
def test_the_object_moves_in_the_picture_as_the_motion_says(seed: int) -> None:
    shown, steps = scene(seed), range(0, 40, 5)
    middles = []
    for step in steps:
        down, across = np.nonzero(shown.labels(step, "image", height=120, width=160) == RED_OBJECT)
        middles.append([across.mean(), down.mean()])
    seen, meant = np.diff(middles, axis=0), np.diff(shown.motion.at(steps)["position"][:, :2], axis=0)
    assert np.corrcoef(seen.ravel(), meant.ravel())[0, 1] > 0.9


def test_labels_name_table_things_and_arm() -> None:
    labels = set(np.unique(scene(4).labels(3, "segmentation", height=128, width=256)))
    assert {0, RED_OBJECT, ARM} <= labels <= set(range(9))


@pytest.mark.parametrize(
    ("feature", "other_feature"),
    [
        ("observation/image_1", "observation/depth_1"),
        ("observation/image_with_depth", "observation/image"),
        ("observation/rgb_gripper", "observation/depth_gripper"),
    ],
)
def test_colour_depth_and_labels_of_a_camera_share_their_view(feature: str, other_feature: str) -> None:
    first, second = (scene(4).labels(3, camera, height=64, width=96) for camera in (feature, other_feature))
    assert np.array_equal(first, second)
