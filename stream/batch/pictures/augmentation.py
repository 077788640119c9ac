"""Augmentation of frames: the amounts that are drawn for each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stream.base.random_numbers import make_key, uniforms
from stream.batch.cameras import LoadedCamera
from stream.sample.augment import NEUTRAL, Augment

DRAWS = (
    *("crop", "ratio", "crop_y", "crop_x", "rotate", "translate_y", "translate_x"),
    *("brightness", "contrast", "saturation", "hue", "sharpness", "colour_probability"),
    *("order_1", "order_2", "order_3", "order_4", "order_5", "order_6"),
)
"""Random numbers of a sample, in order. A new operation appends its own, so that others keep theirs."""
_SEPARATE = DRAWS.index("colour_probability")
"""First number that ``correlated`` does not replace."""


class Amounts(NamedTuple):
    """Drawn amounts of n samples, of one camera.

    Attributes:
        matrices: Position in the frame, (x, y) in pixels, of each pixel (x, y, 1) of the new frame, float64 [n, 2, 3];
            None if no pixel is moved.
        colours: Amount of each operation on colours, float64 [n], in order. The contrast of ``augmax`` is a slope.
    """

    matrices: np.ndarray | None
    colours: dict[str, np.ndarray]


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of the cameras of a batch.

    Attributes:
        augment: Operations.
        moves: Whether a camera gets the geometric operations, by camera.
        keys: Key of the random numbers, by camera; cameras with the same key share their draw.
        shapes: (height, width) of the frames in pixels, by camera.
    """

    augment: Augment
    moves: tuple[bool, ...]
    keys: tuple[int, ...]
    shapes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, augment: Augment | None, cameras: Sequence[LoadedCamera], *, seed: int) -> Augmentation | None:
        """Return the augmentation of some cameras, or None if no operation changes anything."""
        if augment is None or not augment.operations:
            return None
        moves = tuple(augment.has_geometry and not _is_excluded(camera, augment.without_geometry) for camera in cameras)
        keys = tuple(
            make_key(seed, "augment", "moved" if is_moved else "fixed")
            if augment.share_cameras
            else make_key(seed, "augment", "camera", camera.suffix)
            for camera, is_moved in zip(cameras, moves, strict=True)
        )
        return cls(augment, moves, keys, tuple(camera.shape for camera in cameras))

    def draw(self, camera: int, samples: np.ndarray) -> Amounts:
        """Return the amounts of a camera's frames.

        Args:
            camera: Number of the camera.
            samples: Numbers of the samples, int64 [n].
        """
        augment = self.augment
        numbers = uniforms(self.keys[camera], samples, len(DRAWS))
        if augment.correlated:
            numbers[:, :_SEPARATE] = numbers[:, :1]
        drawn = dict(zip(DRAWS, numbers.T, strict=True))
        applied = _applied(augment, numbers)
        matrices = None
        if self.moves[camera]:
            matrices = _matrices(augment, drawn, self.shapes[camera])
            matrices[~applied["geometry"]] = np.eye(2, 3)
        colours = {}
        for name, limits in augment.colours.items():
            amounts = np.where(applied[name], _between(limits, drawn[name]), NEUTRAL[str(augment.library)][name])
            is_slope = augment.library == "augmax" and name == "contrast"
            colours[name] = np.where(amounts == 0, 1, np.tan((amounts + 1) * (np.pi / 4))) if is_slope else amounts
        return Amounts(matrices, colours)


def _is_excluded(camera: LoadedCamera, texts: Sequence[str] | None) -> bool:
    names = [camera.suffix.removeprefix("/")]
    names += [name for sources in camera.sources for source in sources for name in source.keys]
    return any(text in name for text in texts or () for name in names)


def _applied(augment: Augment, numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Return which samples get an operation, bool [n], by operation."""
    operations = augment.operations
    has_colours = numbers[:, _SEPARATE] < augment.colour_probability
    applied = {name: np.ones(len(numbers), bool) if name == "geometry" else has_colours for name in operations}
    if augment.most_operations is None:
        return applied
    # The operations with the smallest numbers are those that are drawn.
    ranks = numbers[:, _SEPARATE + 1 :][:, : len(operations)].argsort(axis=1).argsort(axis=1)
    return {
        name: applied[name] & (ranks[:, position] < augment.most_operations) for position, name in enumerate(operations)
    }


def _between(limits: Sequence[float], numbers: np.ndarray) -> np.ndarray:
    least, most = limits
    return least + (most - least) * numbers


def _matrices(augment: Augment, drawn: Mapping[str, np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """Return the matrix of each sample that finds the source of each pixel, float64 [n, 2, 3]."""
    limits = {name: getattr(augment, name) for name in ("crop", "ratio", "rotate")}
    area = _between(limits["crop"], drawn["crop"])
    ratio = np.exp(_between(np.log(limits["ratio"]), drawn["ratio"]))
    share = np.stack([np.sqrt(area * ratio), np.sqrt(area / ratio)], axis=1).clip(0, 1)
    size = np.array([shape[1], shape[0]], np.float64)
    margin = size - 1
    if augment.library == "augmax":
        # It crops whole pixels, and its crop may begin half of a pixel beyond the centre of the first.
        share = np.floor(size * share + 1e-6) / size
        margin = size
    position = np.stack([drawn["crop_x"], drawn["crop_y"]], axis=1)
    offset = (2 * position - 1) * margin * (1 - share) / 2
    angle = np.deg2rad(_between(limits["rotate"], drawn["rotate"]))
    rotation = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], axis=1).reshape(-1, 2, 2)
    shift = np.stack([drawn["translate_x"], drawn["translate_y"]], axis=1)
    shift = np.rint((2 * shift - 1) * augment.translate * size)
    centre = (size - 1) / 2
    linear = share[:, :, None] * rotation
    constant = centre + offset - np.einsum("nij,nj->ni", linear, centre + shift)
    return np.concatenate([linear, constant[:, :, None]], axis=2)
