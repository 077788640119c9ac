"""Moving pictures that look like a robot at a table, drawn from a seed.

A `Scene` is one episode: a flat textured world with clutter, a red object that the effector carries about, and any
number of cameras that look at the same world, each from its own place. Everything is a function of the step alone, so
an episode of 30 steps is the beginning of the one of 300. A background that is blue and an object that is red tell
swapped channels. Texture and sensor noise are such that frames compress as those of real datasets do.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from convert.sample.sprites import (
    Sprite,
    draw_arm,
    draw_other_thing,
    draw_red_thing,
    draw_small_things,
    draw_table,
    halvings,
    noise_window,
    pick_thing,
)

Affine = NDArray[np.float64]
"""[2, 3]: columns are the images of the unit vectors and of the origin."""

WORLD_METRES = 0.8
"""Side of the world square, whose own coordinates go from 0 to 1."""
DEPTH_PER_METRE = 1024
"""Depth is a multiple of 1/1024 m: exact in float32 and, as maniskill stores it, in uint16."""

_NEAR = ("wrist", "hand", "gripper", "eye")
_CHANNEL_WORDS = {"image", "rgb", "depth", "segmentation", "with"}


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A sprite in the world at one step: centre and side in world units, angle in radians, height in metres."""

    sprite: Sprite
    centre: tuple[float, float]
    side: float
    angle: float
    height: float = 0.0
    label: int = 0


@dataclass(frozen=True, kw_only=True)
class Wave:
    """A smooth bounded path: per value two sinusoids over the step number."""

    centre: NDArray[np.float64]
    amplitude: NDArray[np.float64]
    rate: NDArray[np.float64]
    phase: NDArray[np.float64]

    @classmethod
    def draw(cls, rng: np.random.Generator, size: int, *, amplitude: float, rate: tuple[float, float]) -> Wave:
        """Draw ``size`` values that swing by ``amplitude`` about 0 at ``rate`` radians a step (least and most)."""
        return cls(
            centre=np.zeros(size),
            amplitude=amplitude * np.array([[0.75], [0.25]]) * rng.uniform(0.7, 1.0, (2, size)),
            rate=rng.uniform(*rate, (2, size)) * np.array([[1.0], [2.3]]),
            phase=rng.uniform(0, 2 * math.pi, (2, size)),
        )

    def at(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values [T, size] at steps [T]."""
        angles = steps[:, None, None] * self.rate + self.phase
        return self.centre + (self.amplitude * np.sin(angles)).sum(axis=1)


@dataclass(frozen=True, kw_only=True)
class Motion:
    """Where the effector, and the red object in it, is at steps 0 .. T-1.

    position [T, 3] metres from the middle of the world (x right, y down, z up), angles [T, 3] radians about the same
    axes, closedness [T] from 0 (open) to 1. delta and spin [T, 3] are what the next step adds to position and angles.
    """

    position: NDArray[np.float64]
    angles: NDArray[np.float64]
    closedness: NDArray[np.float64]
    delta: NDArray[np.float64]
    spin: NDArray[np.float64]


class Scene:
    """The world of one episode.

    thing: what the red object is, a key of `convert.sample.sprites.THINGS`.
    """

    def __init__(self, rng: np.random.Generator, *, pace: float = 1.0) -> None:
        """Draw a world.

        Args:
            rng: everything is drawn from it here; afterwards the scene is deterministic.
            pace: how far the motion goes in one step; about 1 is video, 30 and more are unrelated snapshots.
        """
        self._pace = pace
        self._path = Wave.draw(rng, 3, amplitude=0.17, rate=(0.045, 0.085))
        self._turn = Wave.draw(rng, 3, amplitude=0.5, rate=(0.03, 0.08))
        self._drift = Wave.draw(rng, 2, amplitude=0.02, rate=(0.05, 0.11))
        self._grip = Wave.draw(rng, 1, amplitude=1.0, rate=(0.12, 0.3))
        self._second = Wave.draw(rng, 3, amplitude=0.12, rate=(0.02, 0.06))
        self._second_home = rng.uniform(0.3, 0.7, 2)
        self._view_seed = int(rng.integers(2**32))
        self.thing = pick_thing(rng)
        self._object = draw_red_thing(rng, self.thing)
        self._object_side = float(rng.uniform(0.21, 0.27))
        self._other = draw_other_thing(rng)
        self._arm = draw_arm(rng)
        table = draw_table(rng)
        side = len(table)
        whole = np.array([[1 / side, 0, 0.5 / side], [0, 1 / side, 0.5 / side]])
        for sprite in draw_small_things(rng):
            placed = Placed(
                sprite=sprite,
                centre=(float(rng.uniform(0.08, 0.92)), float(rng.uniform(0.08, 0.92))),
                side=float(rng.uniform(0.08, 0.2)),
                angle=float(rng.uniform(0, 2 * math.pi)),
            )
            _paint(table, placed, whole)
        self._table = halvings(table)
        self._noise = rng.integers(0, 2**31, 64)

    def motion(self, steps: int) -> Motion:
        """The motion over ``steps`` steps."""
        time = np.arange(steps + 1, dtype=np.float64) * self._pace
        position = self._path.at(time) * WORLD_METRES
        position[:, 2] = 0.15 + 0.5 * position[:, 2]
        angles = self._turn.at(time)
        closedness = 1 / (1 + np.exp(-12 * self._grip.at(time)[:-1, 0]))
        return Motion(
            position=position[:-1],
            angles=angles[:-1],
            closedness=closedness,
            delta=np.diff(position, axis=0),
            spin=np.diff(angles, axis=0),
        )

    def colour(self, step: int, camera: str, *, height: int, width: int) -> NDArray[np.uint8]:
        """What ``camera`` sees at ``step``: uint8 [height, width, 3], RGB."""
        view = self._view(camera, step, height, width)
        texture = self._table[_level(len(self._table[0]) * math.hypot(*view[:, 0]), len(self._table))]
        picture: Any = cv2.warpAffine(
            texture,
            _texture_affine(view, len(texture)),
            (width, height),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REFLECT_101,
        )
        for placed in self._placed(step):
            _paint(picture, placed, view)
        return np.asarray(cv2.add(picture, self._grain(step, camera, height, width), dtype=cv2.CV_8U), np.uint8)

    def depth(self, step: int, camera: str, *, height: int, width: int) -> NDArray[np.uint16]:
        """Distance from ``camera`` in 1/1024 m: uint16 [height, width]. The table is tilted, things stand on it."""
        view = self._view(camera, step, height, width)
        across, down = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)
        tilt = 0.25 * view[1] + 0.04 * view[0]
        plane = (0.9 - tilt[2]) - np.float32(tilt[1]) * down[:, None] - np.float32(tilt[0]) * across
        plane = plane.astype(np.float32)
        for placed in self._placed(step):
            if (window := _cast(placed, view, height, width)) is not None:
                plane[window.place] -= window.coverage * np.float32(placed.height)
        units = np.rint(plane * DEPTH_PER_METRE).astype(np.int16) + self._grain(step, camera, height, width)[:, :, 0]
        return np.maximum(units, 1).astype(np.uint16)

    def labels(self, step: int, camera: str, *, height: int, width: int) -> NDArray[np.uint8]:
        """What is where: uint8 [height, width]; 0 is the table, 1 the second object, 2 the red one, 3 the arm."""
        view = self._view(camera, step, height, width)
        labels = np.zeros((height, width), np.uint8)
        for placed in self._placed(step):
            if (window := _cast(placed, view, height, width)) is not None:
                labels[window.place][window.coverage > 0.5] = placed.label
        return labels

    def _placed(self, step: int) -> list[Placed]:
        time = np.array([step * self._pace])
        x, y, z = self._path.at(time)[0]
        yaw = float(self._turn.at(time)[0, 2])
        second = self._second.at(time)[0]
        lift = 1 + 0.5 * z
        centre = (0.5 + x, 0.5 + y)
        other = (float(self._second_home[0] + second[0]), float(self._second_home[1] + second[1]))
        return [
            Placed(sprite=self._other, centre=other, side=0.15, angle=4 * float(second[2]), height=0.06, label=1),
            Placed(
                sprite=self._object,
                centre=centre,
                side=self._object_side * lift,
                angle=yaw,
                height=0.08 + z / 8,
                label=2,
            ),
            Placed(sprite=self._arm, centre=centre, side=0.26 * lift, angle=yaw / 2, height=0.16 + z / 8, label=3),
        ]

    def _view(self, camera: str, step: int, height: int, width: int) -> Affine:
        """The map from pixels of a camera to the world at one step."""
        place = view_name(camera)
        rng = np.random.default_rng([self._view_seed, zlib.crc32(place.encode())])
        time = np.array([step * self._pace])
        drift = self._drift.at(time)[0]
        if any(word in place for word in _NEAR):
            extent, turn = rng.uniform(0.34, 0.4), rng.uniform(-0.4, 0.4)
            middle = 0.5 + self._path.at(time)[0, :2] + rng.uniform(-0.03, 0.03, 2) + drift
        else:
            reach = 1.0 if place else 0.3
            extent, turn = rng.uniform(0.62, 0.76), reach * rng.uniform(-0.35, 0.35)
            middle = 0.5 + reach * rng.uniform(-0.07, 0.07, 2) + drift
        # Wide frames show more of the world, so that the object stays in sight.
        scale = extent / max(height, 0.72 * width)
        turn += float(drift[0])
        across = scale * np.array([math.cos(turn), math.sin(turn)])
        down = scale * np.array([-math.sin(turn), math.cos(turn)])
        corner = middle - across * (width - 1) / 2 - down * (height - 1) / 2
        return np.stack([across, down, corner], axis=1)

    def _grain(self, step: int, camera: str, height: int, width: int) -> NDArray[np.int16]:
        """Sensor noise [height, width, 3] of one frame."""
        draw = int(self._noise[step % len(self._noise)]) + step * 7919 + zlib.crc32(camera.encode())
        return noise_window(draw, height, width)


def view_name(camera: str) -> str:
    """Which camera an image, depth or segmentation feature belongs to; empty for the main one.

    >>> view_name("image_side_1_depth"), view_name("wrist_depth"), view_name("rgb"), view_name("segmentation")
    ('side_1', 'wrist', '', '')
    """
    return "_".join(word for word in camera.rsplit("/", 1)[-1].split("_") if word not in _CHANNEL_WORDS)


@dataclass(frozen=True, kw_only=True)
class _Window:
    """The part of a frame that a sprite touches, and the sprite there: uint8 [h, w, 4]."""

    place: tuple[slice, slice]
    pixels: NDArray[np.uint8]

    @property
    def coverage(self) -> NDArray[np.float32]:
        return cv2.extractChannel(self.pixels, 3) * np.float32(1 / 255)


def _cast(placed: Placed, view: Affine, height: int, width: int) -> _Window | None:
    """Turn a sprite into pixels of a frame; None if it is out of sight."""
    linear = view[:, :2]
    cosine, sine = math.cos(placed.angle) * placed.side, math.sin(placed.angle) * placed.side
    # From the sprite's unit square, centred, to pixels.
    to_pixels = np.linalg.solve(linear, np.array([[cosine, -sine], [sine, cosine]]))
    middle = np.linalg.solve(linear, np.array(placed.centre) - view[:, 2])
    reach = np.abs(to_pixels).sum(axis=1) / 2
    left, top = (max(0, math.floor(edge)) for edge in middle - reach)
    right, bottom = (min(size, math.ceil(edge) + 1) for edge, size in zip(middle + reach, (width, height), strict=True))
    if left >= right or top >= bottom:
        return None
    from_pixels = np.linalg.inv(to_pixels)
    offset = from_pixels @ (np.array([left, top]) - middle) + 0.5
    levels = placed.sprite.levels
    texture = levels[_level(len(levels[0]) * math.hypot(*from_pixels[:, 0]), len(levels))]
    pixels: Any = cv2.warpAffine(
        texture,
        _texture_affine(np.column_stack([from_pixels, offset]), len(texture)),
        (right - left, bottom - top),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )
    return _Window(place=(slice(top, bottom), slice(left, right)), pixels=pixels)


def _paint(picture: NDArray, placed: Placed, view: Affine) -> None:
    """Lay a sprite over a picture, in place."""
    if (window := _cast(placed, view, *picture.shape[:2])) is not None:
        colours, coverage = cv2.cvtColor(window.pixels, cv2.COLOR_RGBA2RGB), window.coverage
        picture[window.place] = cv2.blendLinear(colours, picture[window.place], coverage, 1 - coverage)


def _texture_affine(unit: Affine, pixels: int) -> Affine:
    """From a map into the unit square to one into a texture of ``pixels`` a side, centres of pixels at integers."""
    affine = unit * pixels
    affine[:, 2] -= 0.5
    return affine


def _level(shrinking: float, levels: int) -> int:
    """Which halving of a texture to sample so that a pixel covers about one of its pixels."""
    return min(levels - 1, max(0, round(math.log2(max(shrinking, 1e-6)))))
