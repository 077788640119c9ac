"""Moving pictures of a robot at a table, drawn from a seed.

A `Scene` is one episode: a flat textured world with clutter, a red object that the arm carries, and any number of
cameras, each with its own view of the world. Every picture is a function of the step. The blue background and the red
object reveal swapped channels. Texture of all scales and sensor noise make frames compress like those of real datasets.
"""

from __future__ import annotations

import functools
import math
import re
import zlib

import cv2
import numpy as np
from numpy.typing import NDArray

from convert.sample.motion import Motion

Points = NDArray[np.float64]
Picture = NDArray[np.uint8]

THINGS = {"block": (6.0, 0.0), "disc": (2.0, 0.0), "pillow": (3.0, 0.0), "star": (2.0, 0.2)}
"""Outlines: the power of a superellipse, and the depth of its lobes."""

_BLUES = [(62, 88, 132), (104, 126, 158), (84, 112, 150), (120, 138, 164)]
_CLUTTER = [(70, 140, 84), (176, 168, 110), (92, 92, 100), (84, 118, 156), (176, 170, 160), (96, 150, 160)]
_REDS = [(200, 58, 36), (206, 72, 34), (188, 42, 44)]
_HALF_ARM = np.array([(-0.12, -2), (-0.12, -0.2), (-0.45, -0.2), (-0.45, 0.3), (-0.35, 0.3), (-0.35, -0.05)])
_ARM = np.concatenate([_HALF_ARM, _HALF_ARM[::-1] * (-1, 1)])
"""Outline of a bar that comes in from above and ends in two fingers."""
_TEXTURE_METRES, _TEXTURE_PIXELS = 1.6, 2048

cv2.setNumThreads(1)
cv2.ipp.setUseIPP(False)


class Scene:
    """The world of one episode; ``thing`` is the kind of its red object, a key of `THINGS`."""

    def __init__(self, generator: np.random.Generator, *, pace: float = 1.0) -> None:
        """Draw a world; ``pace`` is that of its ``motion``."""
        self.motion = Motion(generator, pace=pace)
        self.thing, self._side = str(generator.choice(list(THINGS))), float(generator.uniform(0.15, 0.2))
        self._seed, self._origin = int(generator.integers(2**31)), generator.uniform(0, _TEXTURE_METRES, 2)
        outlines = map(_outline, generator.choice(list(THINGS), len(_CLUTTER)))
        self._clutter = [generator.uniform(0.05, 0.1) * line + generator.uniform(-0.35, 0.35, 2) for line in outlines]
        colours = [generator.choice(_BLUES), *generator.permutation(_CLUTTER), generator.choice(_REDS), (92, 98, 106)]
        self._palette = np.resize(np.array(colours, np.uint8), (256, 1, 3))

    def colour(self, step: int, camera: str, *, height: int, width: int) -> Picture:
        """Return the picture of ``camera`` at ``step``: uint8 [height, width, 3], RGB."""
        colours = cv2.applyColorMap(self.labels(step, camera, height=height, width=width), self._palette)
        linear, corner = self._view(step, camera, height, width)
        # In this halving of the texture a pixel covers about one pixel.
        halving = math.log2(max(1, math.hypot(*linear[0]) * _TEXTURE_PIXELS / _TEXTURE_METRES))
        texture = _texture()[min(4, round(halving))]
        affine = np.column_stack([linear, corner + self._origin]) * len(texture) / _TEXTURE_METRES
        warp_flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        brightness = cv2.warpAffine(texture, affine, (width, height), flags=warp_flags, borderMode=cv2.BORDER_WRAP)
        cv2.setRNGSeed(zlib.crc32(f"{self._seed} {camera} {step}".encode()) >> 1)
        noise = cv2.randn(np.empty((height, width), np.int16), np.zeros(1), np.full(1, 1.8))
        brightness = cv2.merge([cv2.add(brightness, noise)] * 3)
        return np.asarray(cv2.add(cv2.blur(colours, (3, 3)), brightness, dtype=cv2.CV_8U), np.uint8)

    def labels(self, step: int, camera: str, *, height: int, width: int) -> Picture:
        """Return uint8 [height, width]: 0 is the table, 1 to 6 clutter, 7 the red object, 8 the arm."""
        latent = self.motion.at([step])
        middle, yaw_angle = latent["position"][0, :2], latent["rotation"][0, 2]
        thing = self._side * _outline(self.thing) @ _turn(yaw_angle).T + middle
        arm = 0.2 * _ARM @ _turn(yaw_angle / 2).T + middle
        linear, corner = self._view(step, camera, height, width)
        labels = np.zeros((height, width), np.uint8)
        for label_number, outline in enumerate([*self._clutter, thing, arm], 1):
            corners = np.rint((outline - corner) @ np.linalg.inv(linear).T).astype(np.int32)
            cv2.fillPoly(labels, [corners], label_number)
        return labels

    def _view(self, step: int, camera: str, height: int, width: int) -> tuple[Points, Points]:
        """Return the map [2, 2] from pixels of a camera to metres of the world at one step, and the first pixel [2]."""
        # Colour, depth and labels of a camera share their view; the main camera has no name.
        view_name = re.sub("image|rgb|depth|segmentation|with|_", "", camera.rsplit("/", 1)[-1])
        generator = np.random.default_rng([self._seed, zlib.crc32(view_name.encode())])
        extent, view_turn = generator.uniform(0.5, 0.6), generator.uniform(-0.35, 0.35)
        middle = generator.uniform(-0.05, 0.05, 2)
        if re.search("wrist|hand|gripper|eye", view_name):
            extent, middle = 0.55 * extent, middle / 2 + self.motion.at([step])["position"][0, :2]
        # Wide frames show more of the world, so that the object stays in sight.
        linear = extent / max(height, 0.72 * width) * _turn(view_turn if view_name else 0.3 * view_turn)
        return linear, middle - linear @ (np.array([width, height]) - 1) / 2


def _turn(angle: float) -> Points:
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def _outline(thing: str) -> Points:
    """Return corners [80, 2] of a thing in a square from -0.5 to 0.5."""
    exponent, lobes = THINGS[thing]
    angles = np.linspace(0, 2 * math.pi, 80)
    across, down = np.cos(angles), np.sin(angles)
    power = (abs(across) ** exponent + abs(down) ** exponent) ** (1 / exponent)
    radius = 0.42 * (1 + lobes * np.cos(5 * angles)) / power
    return np.stack([radius * across, 0.85 * radius * down], axis=1)


@functools.cache
def _texture() -> list[NDArray[np.int16]]:
    """Return periodic noise with all scales, of which larger ones are stronger, [2048, 2048], and four halvings."""
    num_pixels = _TEXTURE_PIXELS
    frequency = np.hypot(np.fft.fftfreq(num_pixels)[:, None], np.fft.rfftfreq(num_pixels)).clip(4 / num_pixels)
    white_spectrum = np.random.default_rng(1).standard_normal((num_pixels, num_pixels), np.float32)
    noise = np.fft.irfft2(np.fft.rfft2(white_spectrum) / frequency**1.5)
    noise *= 34 / noise.std()
    sides = [num_pixels >> halvings for halvings in range(5)]
    textures = [cv2.resize(noise, (side, side), interpolation=cv2.INTER_AREA) for side in sides]
    return [np.rint(texture).astype(np.int16) for texture in textures]
