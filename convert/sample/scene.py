"""Moving pictures of a robot at a table, drawn from a seed.

A `Scene` is one episode: a flat textured world with clutter, a red object that the effector carries, and any number of
cameras, each with its own view of the world. Every picture is a function of the step, so an episode of 30 steps is the
beginning of the episode of 300. The blue background and the red object reveal swapped channels. Texture and sensor
noise make frames compress like those of real datasets.
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
    CLUTTER,
    REDS,
    SPRITE_PIXELS,
    THINGS,
    Texture,
    draw_arm,
    draw_table,
    draw_thing,
    halvings,
    noise_window,
    pick,
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

    sprite: Texture
    centre: tuple[float, float]
    side: float
    angle: float
    height: float = 0.0


class Wave:
    """A smooth bounded path: ``size`` values, each the sum of two sinusoids over the step number."""

    def __init__(self, rng: np.random.Generator, size: int, *, amplitude: float, rate: tuple[float, float]) -> None:
        """Draw values that swing by ``amplitude`` about 0 at ``rate`` radians a step (least and most)."""
        self._amplitude = amplitude * np.array([[0.75], [0.25]]) * rng.uniform(0.7, 1.0, (2, size))
        self._rate = rng.uniform(*rate, (2, size)) * np.array([[1.0], [2.3]])
        self._phase = rng.uniform(0, 2 * math.pi, (2, size))

    def at(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values [T, size] at steps [T]."""
        return (self._amplitude * np.sin(steps[:, None, None] * self._rate + self._phase)).sum(axis=1)


@dataclass(frozen=True, kw_only=True)
class Motion:
    """Path of the effector, and of the red object in it, over steps 0 .. T-1.

    Attributes:
        position: [T, 3] metres from the middle of the world (x right, y down, z up).
        angles: [T, 3] radians about the same axes.
        closedness: [T] from 0 (open) to 1.
    """

    position: NDArray[np.float64]
    angles: NDArray[np.float64]
    closedness: NDArray[np.float64]


class Scene:
    """The world of one episode; ``thing`` is the kind of its red object, a key of `convert.sample.sprites.THINGS`."""

    def __init__(self, rng: np.random.Generator, *, pace: float = 1.0) -> None:
        """Draw a world.

        Args:
            rng: Source of all random choices; afterwards the scene is deterministic.
            pace: Speed of the motion: about 1 is video, 30 and more are unrelated snapshots.
        """
        self._pace = pace
        self._path = Wave(rng, 3, amplitude=0.17, rate=(0.045, 0.085))
        self._turn = Wave(rng, 3, amplitude=0.5, rate=(0.03, 0.08))
        self._drift = Wave(rng, 2, amplitude=0.02, rate=(0.05, 0.11))
        self._grip = Wave(rng, 1, amplitude=1.0, rate=(0.12, 0.3))
        self._second = Wave(rng, 3, amplitude=0.12, rate=(0.02, 0.06))
        self._second_home = rng.uniform(0.3, 0.7, 2)
        self._view_seed = int(rng.integers(2**32))
        things = list(THINGS)
        self.thing: str = pick(rng, things)
        self._object = draw_thing(rng, pick(rng, REDS), self.thing)
        self._object_side = float(rng.uniform(0.21, 0.27))
        self._other = draw_thing(rng, pick(rng, CLUTTER), pick(rng, things))
        self._arm = draw_arm(rng)
        table = draw_table(rng)
        side = len(table)
        world = np.array([[1 / side, 0, 0.5 / side], [0, 1 / side, 0.5 / side]])
        colours = rng.permutation(CLUTTER)
        for sprite in [draw_thing(rng, colour, pick(rng, things), SPRITE_PIXELS // 2) for colour in colours]:
            x, y, extent, angle = rng.uniform((0.08, 0.08, 0.08, 0), (0.92, 0.92, 0.2, 2 * math.pi)).tolist()
            _paint(table, Placed(sprite=sprite, centre=(x, y), side=extent, angle=angle), world)
        self._table = halvings(table)
        self._noise = rng.integers(0, 2**31, 64)

    def motion(self, steps: int) -> Motion:
        """Return the motion over ``steps`` steps."""
        time = np.arange(steps, dtype=np.float64) * self._pace
        position = self._path.at(time) * WORLD_METRES
        position[:, 2] = 0.15 + 0.5 * position[:, 2]
        closedness = 1 / (1 + np.exp(-12 * self._grip.at(time)[:, 0]))
        return Motion(position=position, angles=self._turn.at(time), closedness=closedness)

    def colour(self, step: int, camera: str, *, height: int, width: int) -> NDArray[np.uint8]:
        """Return the picture of ``camera`` at ``step``: uint8 [height, width, 3], RGB."""
        view = self._view(camera, step, height, width)
        picture = _warp(self._table, view, width, height, border=cv2.BORDER_REFLECT_101)
        for placed in self._placed(step):
            _paint(picture, placed, view)
        return np.asarray(cv2.add(picture, self._grain(step, camera, height, width), dtype=cv2.CV_8U), np.uint8)

    def depth(self, step: int, camera: str, *, height: int, width: int) -> NDArray[np.uint16]:
        """Return the distance from ``camera`` in 1/1024 m: uint16 [height, width]; things stand on a tilted table."""
        view = self._view(camera, step, height, width)
        tilt = 0.25 * view[1] + 0.04 * view[0]
        plane = 0.9 - tilt[2] - tilt[1] * np.arange(height)[:, None] - tilt[0] * np.arange(width)
        heights = np.array([0.0, *(placed.height for placed in self._placed(step))])
        plane -= heights[self.labels(step, camera, height=height, width=width)]
        units = np.rint(plane * DEPTH_PER_METRE) + self._grain(step, camera, height, width)[:, :, 0]
        return np.maximum(units, 1).astype(np.uint16)

    def labels(self, step: int, camera: str, *, height: int, width: int) -> NDArray[np.uint8]:
        """Return uint8 [height, width]: 0 is the table, 1 the second object, 2 the red one, 3 the arm."""
        view = self._view(camera, step, height, width)
        labels = np.zeros((height, width), np.uint8)
        for label, placed in enumerate(self._placed(step), 1):
            if (window := _project(placed, view, height, width)) is not None:
                place, _, coverage = window
                labels[place][coverage > 0.5] = label
        return labels

    def _placed(self, step: int) -> list[Placed]:
        time = np.array([step * self._pace])
        x, y, z = self._path.at(time)[0]
        yaw = float(self._turn.at(time)[0, 2])
        second_x, second_y, spin = self._second.at(time)[0]
        lift, high = 1 + 0.5 * z, z / 8
        centre, side = (0.5 + x, 0.5 + y), self._object_side * lift
        other = (float(self._second_home[0] + second_x), float(self._second_home[1] + second_y))
        return [
            Placed(sprite=self._other, centre=other, side=0.15, angle=4 * float(spin), height=0.06),
            Placed(sprite=self._object, centre=centre, side=side, angle=yaw, height=0.08 + high),
            Placed(sprite=self._arm, centre=centre, side=0.26 * lift, angle=yaw / 2, height=0.16 + high),
        ]

    def _view(self, camera: str, step: int, height: int, width: int) -> Affine:
        """Return the map from pixels of a camera to the world at one step."""
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
        """Return sensor noise [height, width, 3] of one frame."""
        draw = int(self._noise[step % len(self._noise)]) + step * 7919 + zlib.crc32(camera.encode())
        return noise_window(draw, height, width)


def view_name(camera: str) -> str:
    """Return the camera that an image, depth or segmentation feature belongs to; empty for the main one.

    >>> view_name("image_side_1_depth"), view_name("wrist_depth"), view_name("rgb"), view_name("segmentation")
    ('side_1', 'wrist', '', '')
    """
    return "_".join(word for word in camera.rsplit("/", 1)[-1].split("_") if word not in _CHANNEL_WORDS)


_Window = tuple[tuple[slice, slice], NDArray[np.uint8], NDArray[np.float32]]
"""Part of a frame that a sprite touches, and the sprite's colours and coverage in it."""


def _project(placed: Placed, view: Affine, height: int, width: int) -> _Window | None:
    """Return a sprite as pixels of a frame, None if it is out of sight."""
    linear = view[:, :2]
    cosine, sine = math.cos(placed.angle) * placed.side, math.sin(placed.angle) * placed.side
    # From the sprite's centred unit square to pixels.
    to_pixels = np.linalg.solve(linear, np.array([[cosine, -sine], [sine, cosine]]))
    middle = np.linalg.solve(linear, np.array(placed.centre) - view[:, 2])
    reach = np.abs(to_pixels).sum(axis=1) / 2
    left, top = (max(0, math.floor(edge)) for edge in middle - reach)
    right, bottom = (min(size, math.ceil(edge) + 1) for edge, size in zip(middle + reach, (width, height), strict=True))
    if left >= right or top >= bottom:
        return None
    from_pixels = np.linalg.inv(to_pixels)
    offset = from_pixels @ (np.array([left, top]) - middle) + 0.5
    unit = np.column_stack([from_pixels, offset])
    pixels = _warp(placed.sprite, unit, right - left, bottom - top, border=cv2.BORDER_REPLICATE)
    coverage = cv2.extractChannel(pixels, 3) * np.float32(1 / 255)
    return (slice(top, bottom), slice(left, right)), cv2.cvtColor(pixels, cv2.COLOR_RGBA2RGB), coverage


def _paint(picture: NDArray, placed: Placed, view: Affine) -> None:
    """Draw a sprite over a picture, in place."""
    if (window := _project(placed, view, *picture.shape[:2])) is not None:
        place, colours, coverage = window
        picture[place] = cv2.blendLinear(colours, picture[place], coverage, 1 - coverage)


def _warp(texture: Texture, unit: Affine, width: int, height: int, *, border: int) -> Any:
    """Return ``height`` x ``width`` pixels of a texture; ``unit`` maps pixels into the texture's unit square."""
    shrinking = len(texture[0]) * math.hypot(*unit[:, 0])
    # The halving in which a pixel covers about one pixel.
    level = texture[min(len(texture) - 1, max(0, round(math.log2(max(shrinking, 1e-6)))))]
    affine = unit * len(level)
    affine[:, 2] -= 0.5
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(level, affine, (width, height), flags=flags, borderMode=border)
