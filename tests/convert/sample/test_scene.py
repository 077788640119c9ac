"""Pictures of generated episodes."""

import functools

import cv2
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


@pytest.mark.parametrize("shape", [(480, 640), (512, 640), (256, 320), (180, 320)])
def test_larger_jpegs_take_9_to_14_hundredths_of_their_pixels(shape: tuple[int, int]) -> None:
    picture = scene(1).colour(7, "image", height=shape[0], width=shape[1])
    size = len(simplejpeg.encode_jpeg(picture, quality=95, colorsubsampling="420"))
    assert 0.09 < size / picture.size < 0.14


@pytest.mark.parametrize("shape", [(128, 128), (224, 224), (480, 640)])
def test_pngs_take_about_half_of_their_pixels(shape: tuple[int, int]) -> None:
    picture = scene(2).colour(7, "image", height=shape[0], width=shape[1])
    assert 0.4 < len(cv2.imencode(".png", picture)[1]) / picture.size < 0.7


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


def test_the_same_seed_gives_the_same_frames() -> None:
    scenes = [Scene(np.random.default_rng(3)) for _ in range(2)]
    first, second = (scene.colour(5, "image", height=96, width=128) for scene in scenes)
    assert np.array_equal(first, second)


def test_other_seeds_give_other_frames() -> None:
    first, second = (scene(seed).colour(5, "image", height=96, width=128).astype(int) for seed in (3, 4))
    assert np.abs(first - second).mean() > 10


def test_cameras_show_the_same_world_from_other_places() -> None:
    shown = scene(3)
    first, second = (shown.colour(5, camera, height=96, width=128) for camera in ("image_1", "image_2"))
    assert np.abs(first.astype(int) - second).mean() > 5
    assert np.abs(np.median(first, axis=(0, 1)) - np.median(second, axis=(0, 1))).max() < 30


def test_consecutive_frames_differ_by_motion_and_noise_but_not_much() -> None:
    shown = scene(5)
    first, second = (shown.colour(step, "image", height=128, width=128).astype(int) for step in (10, 11))
    assert 1 < np.abs(first - second).mean() < 20


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
