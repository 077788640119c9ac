"""Textures of the sample's pictures: the table, the things on it, the arm and the sensor noise."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Texture = tuple[NDArray[np.uint8], ...]
"""Square picture and its halvings down to 16 pixels, to sample small pictures from without aliasing."""

TABLE_PIXELS = 1024
SPRITE_PIXELS = 256
THINGS = {"block": (6.0, 0.0), "disc": (2.0, 0.0), "pillow": (3.0, 0.0), "star": (2.0, 0.12)}
"""Outlines: the power of a superellipse, and the depth of its lobes."""

RED = 100
"""Red exceeds blue by more than this on the red object only; blue nowhere exceeds red by as much."""
REDS = np.array([(200, 58, 36), (206, 72, 34), (188, 42, 44)], np.float32)
CLUTTER = np.array(
    [(70, 140, 84), (176, 168, 110), (92, 92, 100), (84, 118, 156), (176, 170, 160), (96, 150, 160)], np.float32
)
_BLUES = np.array([(62, 88, 132), (104, 126, 158), (84, 112, 150), (120, 138, 164)], np.float32)


def pick(rng: np.random.Generator, choices: Sequence[Any] | NDArray) -> Any:
    """Return one of the choices."""
    return choices[int(rng.integers(len(choices)))]


def draw_table(rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return the blue table, uint8 [1024, 1024, 3]: patches of two blues, light at all scales, scratches."""
    side = TABLE_PIXELS
    first, second = _BLUES[rng.permutation(len(_BLUES))[:2]]
    share = 1 / (1 + np.exp(-2.5 * _octaves(rng, side // 4, first=4, fall=0.4, last=64)))
    base = first + share * (second - first) + 6 * _octaves(rng, side // 4, first=4, fall=0.6, channels=3)
    scratches = np.full((side, side), 128, np.uint8)
    for _ in range(int(rng.integers(10, 18))):
        ends = rng.integers(-100, side + 100, (2, 2)).tolist()
        tone = 128 + int(rng.integers(-30, 31))
        cv2.line(scratches, ends[0], ends[1], tone, int(rng.integers(2, 9)), cv2.LINE_AA)
    light = 33 * _octaves(rng, side, first=4, fall=0.8)[:, :, 0] + scratches - 128
    return np.asarray(cv2.add(cv2.resize(base, (side, side)), cv2.merge([light] * 3), dtype=cv2.CV_8U), np.uint8)


def draw_thing(rng: np.random.Generator, colour: NDArray, thing: str, side: int = SPRITE_PIXELS) -> Texture:
    """Return a thing of a colour as RGBA with a shadow; ``thing`` is a key of `THINGS`."""
    shading, solid, coverage = _thing_shape(thing, side)
    line = np.linspace(-1.3, 1.3, side, dtype=np.float32)
    stripes = np.sin(line * np.float32(rng.uniform(4, 14)) + line[:, None] * np.float32(rng.uniform(-6, 6)))
    light = shading + np.float32(rng.choice([0.0, 16.0, 26.0])) * np.sign(stripes)
    light += 30 * _octaves(rng, side, first=4, fall=0.82)[:, :, 0]
    return _clothe(colour + light[:, :, None], solid, coverage)


def draw_arm(rng: np.random.Generator) -> Texture:
    """Return a grey arm, as RGBA with a shadow, that comes in from above and ends in two fingers."""
    light, solid, coverage = _arm_shape()
    grain = 28 * _octaves(rng, SPRITE_PIXELS, first=8, fall=0.8)
    return _clothe(np.array([92, 98, 106], np.float32) + (grain + light[:, :, None]), solid, coverage)


def halvings(texture: NDArray) -> Texture:
    """Return a square picture and its halvings."""
    levels = [texture]
    while len(levels[-1]) > 16:
        side = len(levels[-1]) // 2
        levels.append(cv2.resize(levels[-1], (side, side), interpolation=cv2.INTER_AREA))
    return tuple(levels)


def noise_window(draw: int, height: int, width: int) -> NDArray[np.int16]:
    """Return sensor noise int16 [height, width, 3]; ``draw`` chooses its position in one fixed field."""
    field = _noise_field(max(height, 600), max(width, 800))
    top = draw % (field.shape[0] - height + 1)
    left = draw // 1009 % (field.shape[1] - width + 1)
    return field[top : top + height, left : left + width]


@functools.lru_cache(maxsize=2)
def _noise_field(height: int, width: int) -> NDArray[np.int16]:
    """Return rounded Gaussian noise, mostly of brightness; twice as large as the frames, so that windows differ."""
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((2 * height, 2 * width, 1), np.float32)
    own = rng.standard_normal((2 * height, 2 * width, 3), np.float32)
    return np.rint(1.3 * shared + 0.8 * own).astype(np.int16)


_Shape = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8]]
"""Shading, share of the thing in a pixel, and coverage by the thing or its shadow; [N, N] each."""


@functools.cache
def _thing_shape(thing: str, side: int) -> _Shape:
    """Return a thing lit from the upper left."""
    line = np.linspace(-1.3, 1.3, side, dtype=np.float32)
    down, across = line[:, None], line[None, :]
    power, lobes = THINGS[thing]
    outline = (np.abs(across) ** power + np.abs(down / 0.85) ** power) ** (1 / power)
    outline -= lobes * np.cos(5 * np.arctan2(down, across))
    light = 24 * (0.5 - np.hypot(across, down)) - 16 * (across + down) - 40 * np.exp(-(((outline - 0.92) / 0.07) ** 2))
    return _cast_shadow(np.clip((0.92 - outline) * side / 8, 0, 1), light)


@functools.cache
def _arm_shape() -> _Shape:
    side, middle = SPRITE_PIXELS, SPRITE_PIXELS // 2
    mask = np.zeros((side, side), np.uint8)
    bars = ((-22, -middle, 22, -40), (-52, -58, 52, -34), (-52, -40, -36, 34), (36, -40, 52, 34))
    for left, top, right, bottom in bars:
        cv2.rectangle(mask, (middle + left, middle + top), (middle + right, middle + bottom), 255, -1)
    inside = cv2.GaussianBlur(mask, (0, 0), 1.5).astype(np.float32) / np.float32(255)
    return _cast_shadow(inside, 40 * cv2.GaussianBlur(inside, (0, 0), 6))


def _cast_shadow(inside: NDArray, light: NDArray) -> _Shape:
    side = len(inside)
    shadow = 0.5 * np.roll(cv2.GaussianBlur(inside, (0, 0), side / 36), (side // 28, side // 28), axis=(0, 1))
    margin = side // 20
    shadow[:margin] = shadow[-2:] = shadow[:, :margin] = shadow[:, -2:] = 0
    coverage = inside + shadow * (1 - inside)
    solid = (inside / np.maximum(coverage, 1e-4)).astype(np.float32)
    return light.astype(np.float32), solid, np.rint(255 * coverage).astype(np.uint8)


def _clothe(skin: NDArray, solid: NDArray, coverage: NDArray) -> Texture:
    shadow = np.array([14, 18, 26], np.float32)
    texture = np.empty((*coverage.shape, 4), np.uint8)
    texture[:, :, :3] = (np.clip(skin, 4, 250) - shadow) * solid[:, :, None] + shadow
    texture[:, :, 3] = coverage
    return halvings(texture)


def _octaves(
    rng: np.random.Generator, side: int, *, first: int, fall: float, channels: int = 1, last: int = 0
) -> NDArray[np.float32]:
    """Return noise of unit spread with all scales from ``first`` cells a side to single pixels (or ``last`` cells)."""
    noise = np.zeros((first, first, channels), np.float32)
    amplitude, power, cells = 1.0, 0.0, first
    while True:
        if cells <= (last or side):
            # Windows of one fixed field: new normal noise would take most of the time.
            field = _normal_field()
            corners = rng.integers(0, len(field) - cells + 1, (channels, 2)).tolist()
            fresh = [field[top : top + cells, left : left + cells] for top, left in corners]
            noise += np.float32(amplitude) * np.stack(fresh, axis=2)
            power += amplitude**2
        if cells >= side:
            return noise / np.float32(math.sqrt(power))
        cells *= 2
        noise = np.asarray(cv2.resize(noise, (cells, cells)), np.float32).reshape(cells, cells, channels)
        amplitude *= fall


@functools.cache
def _normal_field() -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal((2 * TABLE_PIXELS, 2 * TABLE_PIXELS), np.float32)
