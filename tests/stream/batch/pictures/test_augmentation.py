"""Draws of augmentations, their formulas on the host, and those of the trainers' libraries on the same amounts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cv2", minversion="5")

import stream.batch.pictures.augmentation as module
from stream import ArgumentError, Augment
from stream.base.random_numbers import uniforms
from stream.batch.pictures.augmentation import DRAWS, Augmentation
from stream.batch.pictures.host import HostAugmenter

KEY = 5


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Return noise, or blocks of colour with sharp edges."""
    generator = np.random.default_rng(seed)
    if seed % 2:
        return generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
    blocks = generator.integers(0, 256, (-(-height // 8), -(-width // 8), 3), dtype=np.uint8)
    return blocks.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]


def augmentation(augment: Augment, shape: tuple[int, int], *, moves: bool = True) -> Augmentation:
    return Augmentation(augment, (moves and augment.has_geometry,), (KEY,), (shape,))


def augmented(augment: Augment, frame: np.ndarray, sample: int, *, moves: bool = True) -> np.ndarray:
    augmenter = HostAugmenter(augmentation(augment, frame.shape[:2], moves=moves))
    changed = frame.copy()
    augmenter.apply(changed, augmenter.draw(np.array([sample]))[0], 0)
    return changed


@pytest.mark.parametrize("preset", ["openpi", "octo", "openvla", "lerobot"])
def test_draws_are_uniform_and_depend_only_on_the_sample(preset: Any) -> None:
    augment = Augment(preset)
    samples = np.arange(40_000)
    whole = augmentation(augment, (64, 48)).draw(0, samples)
    some = augmentation(augment, (64, 48)).draw(0, samples[::-1][:100])
    for name, (least, most) in augment.colours.items():
        np.testing.assert_array_equal(whole.colours[name][::-1][:100], some.colours[name])
        amounts = whole.colours[name]
        if augment.library == "augmax" and name == "contrast":
            amounts = np.arctan(amounts) / (np.pi / 4) - 1
        # Samples without the operation have the neutral amount, which is the middle.
        drawn = amounts[np.abs(amounts - (least + most) / 2) > 1e-9]
        counts = np.histogram(drawn, bins=10, range=(least, most))[0]
        assert counts.sum() == len(drawn) and np.abs(counts - len(drawn) / 10).max() < 5 * np.sqrt(len(drawn) / 10)
    expected = {"openpi": 0.5, "lerobot": 0.5}.get(preset, 1.0)
    is_drawn = np.abs(whole.colours["hue"]) > 1e-9
    assert abs(is_drawn.mean() - expected) < 0.015


def test_lerobot_draws_three_operations_of_six() -> None:
    amounts = augmentation(Augment("lerobot"), (64, 48)).draw(0, np.arange(6_000))
    assert amounts.matrices is not None
    is_moved = (amounts.matrices != np.eye(2, 3)).any(axis=(1, 2))
    changes = [values != (0 if name == "hue" else 1) for name, values in amounts.colours.items()]
    assert set((np.sum(changes, axis=0) + is_moved).tolist()) == {3}
    assert all(abs(change.mean() - 0.5) < 0.03 for change in [*changes, is_moved])


def test_octo_draws_one_number_for_all_operations() -> None:
    amounts = augmentation(Augment("octo"), (64, 48)).draw(0, np.arange(100)).colours
    fractions = [(amounts[name] - least) / (most - least) for name, (least, most) in Augment("octo").colours.items()]
    np.testing.assert_allclose(fractions, np.broadcast_to(fractions[0], (4, 100)), atol=1e-12)


def test_a_crop_is_inside_of_the_frame() -> None:
    shape = (40, 60)
    matrices = augmentation(Augment(crop=(0.2, 1), ratio=(0.5, 2)), shape).draw(0, np.arange(2_000)).matrices
    assert matrices is not None
    corners = matrices @ np.array([[0, 59, 0, 59], [0, 0, 39, 39], [1, 1, 1, 1]])
    assert corners.min() > -1e-9 and corners[:, 0].max() < 59 + 1e-9 and corners[:, 1].max() < 39 + 1e-9
    area = matrices[:, 0, 0] * matrices[:, 1, 1]
    assert area.min() < 0.25 and area.max() > 0.9 and np.ptp(matrices[:, 0, 2]) > 10


def test_an_augmentation_without_operations_changes_nothing() -> None:
    assert Augmentation.of(Augment(), (), seed=0) is None
    frame = picture(24, 32)
    for amounts in ({"rotate": (0, 0), "crop": 0.999999}, {"colour_probability": 0, "hue": 0.2}):
        assert np.abs(augmented(Augment(**amounts), frame, 3).astype(int) - frame).max() <= 1
    np.testing.assert_array_equal(augmented(Augment(colour_probability=0, hue=0.2), frame, 3), frame)


def test_a_black_frame_stays_black_and_the_border_is_black() -> None:
    black = np.zeros((24, 32, 3), np.uint8)
    assert not augmented(Augment("octo", brightness=(0.4, 0.5)), black, 1).any()
    turned = augmented(Augment(rotate=(45, 45)), np.full((33, 33, 3), 200, np.uint8), 1)
    assert not turned[0, 0].any() and (turned[16, 16] == 200).all()


def test_depth_moves_by_whole_pixels() -> None:
    depth = np.arange(24 * 32, dtype=np.uint16).reshape(24, 32) + 1
    augment = Augment(crop=0.5, rotate=10, brightness=0.5, hue=0.5)
    moved = augmented(augment, depth, 4)
    assert 0 < len(np.unique(moved)) < depth.size and set(moved.ravel()) <= {0, *depth.ravel()}
    np.testing.assert_array_equal(augmented(augment, depth, 4, moves=False), depth)


def test_opencv_4_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cv2.__version__", "4.13.0")
    with pytest.raises(ArgumentError, match=r"needs OpenCV 5, as 4\.13\.0 rounds positions to 1/32 of a pixel"):
        HostAugmenter(augmentation(Augment("octo"), (8, 8)))


def _same_numbers(monkeypatch: pytest.MonkeyPatch, number: float) -> None:
    """Let every draw be one number, but those of probability and order."""

    def draw(key: int, samples: np.ndarray, count: int) -> np.ndarray:
        numbers = np.zeros((len(samples), count))
        numbers[:, : DRAWS.index("colour_probability")] = number
        return numbers

    monkeypatch.setattr(module, "uniforms", draw)


@pytest.mark.parametrize("preset", ["octo", "openvla"])
@pytest.mark.parametrize("number", [0.0, 0.03, 0.4, 0.77, 0.999])
def test_octo_and_openvla_are_within_two_levels_of_tensorflow(
    preset: Any, number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tf = pytest.importorskip("tensorflow")
    augment = Augment(preset)

    def at(name: str) -> float:
        least, most = getattr(augment, name)
        return float(least + (most - least) * number)

    area, ratio = at("crop"), float(np.exp(np.interp(number, [0, 1], np.log(augment.ratio))))  # type: ignore[arg-type]
    height, width = min(1, (area / ratio) ** 0.5), min(1, (area * ratio) ** 0.5)
    top, left = number * (1 - height), number * (1 - width)
    _same_numbers(monkeypatch, number)
    for seed in range(4):
        frame = picture(56, 48, seed)
        pixels = tf.constant(frame[None] / np.float32(255))
        pixels = tf.image.crop_and_resize(pixels, [[top, left, top + height, left + width]], [0], (56, 48))
        pixels = tf.clip_by_value(tf.image.adjust_brightness(pixels, at("brightness")), 0, 1)
        pixels = tf.clip_by_value(tf.image.adjust_contrast(pixels, at("contrast")), 0, 1)
        pixels = tf.clip_by_value(tf.image.adjust_saturation(pixels, at("saturation")), 0, 1)
        pixels = tf.clip_by_value(tf.image.adjust_hue(pixels, at("hue")), 0, 1)
        expected = tf.image.convert_image_dtype(pixels, tf.uint8, saturate=True).numpy()[0]
        assert np.abs(augmented(augment, frame, 0).astype(int) - expected).max() <= 1


@pytest.mark.parametrize("preset", ["octo", "openvla"])
def test_octo_and_openvla_are_within_two_levels_of_dlimp(preset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tf, dlimp = pytest.importorskip("tensorflow"), pytest.importorskip("dlimp.augmentations")
    augment = Augment(preset)
    arguments: dict[str, Any] = {
        "random_resized_crop": {"scale": augment.crop, "ratio": augment.ratio},
        "random_brightness": [augment.brightness[1]],  # type: ignore[index]
        "random_contrast": augment.contrast,
        "random_saturation": augment.saturation,
        "random_hue": [augment.hue[1]],  # type: ignore[index]
    }
    for sample in range(24):
        frame, seed = picture(64, 64, sample), tf.constant([7 * sample + 3, sample * sample + 11])
        _same_numbers(monkeypatch, float(tf.random.stateless_uniform((), seed)))
        expected = dlimp.augment_image(tf.constant(frame), seed, augment_order=list(arguments), **arguments).numpy()
        assert np.abs(augmented(augment, frame, 0).astype(int) - expected).max() <= 2


@pytest.mark.parametrize("moves", [True, False], ids=["exterior", "wrist"])
def test_openpi_is_within_two_levels_of_augmax(moves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    augmax, jax = pytest.importorskip("augmax"), pytest.importorskip("jax")
    jnp = jax.numpy
    numbers: list[Any] = []

    def uniform(key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0) -> Any:
        return minval + (maxval - minval) * jnp.array(numbers.pop(0))

    def bernoulli(key: Any, p: float) -> Any:
        return jnp.array(numbers.pop(0) < p)

    # openpi's call, in openpi/models/model.py.
    operations = [augmax.RandomCrop(212, 212), augmax.Resize(224, 224), augmax.Rotate((-5, 5))] if moves else []
    chain = augmax.Chain(*operations, augmax.ColorJitter(brightness=0.3, contrast=0.4, saturation=0.5))
    for sample in range(8):
        frame = picture(224, 224, sample)
        drawn = dict(zip(DRAWS, uniforms(KEY, np.array([sample]), len(DRAWS))[0].tolist(), strict=True))
        numbers += [0.0, drawn["rotate"], [drawn["crop_y"], drawn["crop_x"]]] if moves else []
        numbers += [drawn[name] for name in ("brightness", "contrast", "hue", "saturation", "colour_probability")]
        with monkeypatch.context() as patch:
            patch.setattr(jax.random, "uniform", uniform)
            patch.setattr(jax.random, "bernoulli", bernoulli)
            expected = chain(jax.random.PRNGKey(0), jnp.asarray(frame, jnp.float32) / 255)
        assert not numbers
        difference = augmented(Augment("openpi"), frame, sample, moves=moves) - 255 * np.asarray(expected)
        assert np.abs(difference).max() <= 0.6


@pytest.mark.parametrize("operation", ["brightness", "contrast", "saturation", "hue", "sharpness", "affine"])
def test_lerobot_is_within_two_levels_of_torchvision(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    names = {"rotate", "translate"} if operation == "affine" else {operation}
    others = {"brightness", "contrast", "saturation", "hue", "sharpness", "rotate", "translate"} - names
    augment = Augment("lerobot", most_operations=6, **dict.fromkeys(others, 0))  # type: ignore[arg-type]
    for sample in range(24):
        frame, number = picture(64, 48, sample), sample / 23
        _same_numbers(monkeypatch, number)
        pixels = torch.from_numpy(frame).permute(2, 0, 1) / 255
        if operation == "affine":
            # torchvision turns the other way, which is the same draw, as the limits are -5 and 5.
            angle, shift = 5 - 10 * number, [round((2 * number - 1) * 0.05 * size) for size in (48, 64)]
            bilinear = functional.InterpolationMode.BILINEAR
            expected = functional.affine(pixels, angle, shift, 1.0, [0.0, 0.0], interpolation=bilinear)
        else:
            least, most = getattr(augment, operation)
            expected = getattr(functional, f"adjust_{operation}")(pixels, least + (most - least) * number)
        difference = augmented(augment, frame, 0) - 255 * expected.permute(1, 2, 0).numpy()
        assert np.abs(difference).max() <= 0.6
