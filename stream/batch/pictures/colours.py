"""Formulas of augmentation, for frames on the host or on a device."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

from stream.sample.augment import Augment

LUMA = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in torchvision's grey."""


class Pixels(abc.ABC):
    """Operations on arrays of pixels, on the host or on a device. They may write into the array that they get.

    Attributes:
        xp: Module with ``where``.
        turn: A full turn of the hue.
    """

    xp: Any
    turn: float

    @abc.abstractmethod
    def clip(self, frames: Any) -> Any:
        """Return frames limited to [0, 1]."""

    @abc.abstractmethod
    def scale(self, frames: Any, factor: Any, shift: Any) -> Any:
        """Return frames times a factor plus a shift."""

    @abc.abstractmethod
    def scale_about_means(self, frames: Any, factor: Any) -> Any:
        """Return frames with other distances from the mean of each channel."""

    @abc.abstractmethod
    def scale_about_grey_mean(self, frames: Any, factor: Any) -> Any:
        """Return frames with other distances from the mean of torchvision's grey."""

    @abc.abstractmethod
    def scale_about_grey(self, frames: Any, factor: Any) -> Any:
        """Return frames with other distances of each pixel from torchvision's grey."""

    @abc.abstractmethod
    def blend_with_blur(self, frames: Any, factor: Any) -> Any:
        """Return frames with other distances of each pixel from torchvision's blur, which leaves the edges."""

    @abc.abstractmethod
    def split(self, frames: Any) -> tuple[Any, Any, Any]:
        """Return hue, saturation and value."""

    @abc.abstractmethod
    def merge(self, hue: Any, saturation: Any, value: Any) -> Any:
        """Return the frames of a hue, saturation and value; the hue may be beyond a turn."""

    @abc.abstractmethod
    def warp(self, frames: Any, matrices: Any) -> Any:
        """Return frames resampled, black beyond their edge."""


def augment_pixels(augment: Augment, frames: Any, matrices: Any, colours: Mapping[str, Any], pixels: Pixels) -> Any:
    """Return frames after all operations.

    Args:
        augment: Operations, and their order.
        frames: float32 in [0, 1], one frame [H, W, 3] or several [n, H, W, 3]; they may be overwritten.
        matrices: Source of each pixel, float64 [2, 3] or [n, 2, 3]; None if no pixel is moved.
        colours: Amount by operation; a number, or for several frames [n, 1, 1, 1].
        pixels: Operations on these arrays.
    """
    if matrices is not None and augment.geometry == "first":
        frames = pixels.warp(frames, matrices)
    frames = adjust_colours(str(augment.library), frames, colours, pixels)
    if matrices is not None and augment.geometry == "last":
        frames = pixels.warp(frames, matrices)
    return frames


def adjust_colours(library: str, frames: Any, amounts: Mapping[str, Any], pixels: Pixels) -> Any:
    """Return frames with other colours, by the formulas of a library.

    Args:
        library: ``torchvision``, ``tensorflow`` or ``augmax``.
        frames: float32 in [0, 1], one frame [H, W, 3] or several [n, H, W, 3]; they may be overwritten.
        amounts: Amount by operation; a number, or for several frames [n, 1, 1, 1].
        pixels: Operations on these arrays.
    """
    if not amounts:
        return frames
    return {"torchvision": _torchvision, "tensorflow": _tensorflow, "augmax": _augmax}[library](frames, amounts, pixels)


def _torchvision(frames: Any, amounts: Mapping[str, Any], pixels: Pixels) -> Any:
    if (factor := amounts.get("brightness")) is not None:
        frames = pixels.clip(pixels.scale(frames, factor, 0.0))
    if (factor := amounts.get("contrast")) is not None:
        frames = pixels.clip(pixels.scale_about_grey_mean(frames, factor))
    if (factor := amounts.get("saturation")) is not None:
        frames = pixels.clip(pixels.scale_about_grey(frames, factor))
    if (turns := amounts.get("hue")) is not None:
        hue, saturation, value = pixels.split(frames)
        frames = pixels.merge(hue + turns * pixels.turn, saturation, value)
    if (factor := amounts.get("sharpness")) is not None:
        frames = pixels.clip(pixels.blend_with_blur(frames, factor))
    return frames


def _tensorflow(frames: Any, amounts: Mapping[str, Any], pixels: Pixels) -> Any:
    if (shift := amounts.get("brightness")) is not None:
        frames = pixels.clip(pixels.scale(frames, 1.0, shift))
    if (factor := amounts.get("contrast")) is not None:
        frames = pixels.clip(pixels.scale_about_means(frames, factor))
    factor, turns = amounts.get("saturation"), amounts.get("hue")
    if factor is not None or turns is not None:
        hue, saturation, value = pixels.split(frames)
        saturation = saturation if factor is None else pixels.clip(saturation * factor)
        frames = pixels.merge(hue if turns is None else hue + turns * pixels.turn, saturation, value)
    return frames


def _augmax(frames: Any, amounts: Mapping[str, Any], pixels: Pixels) -> Any:
    hue, saturation, value = pixels.split(frames)
    if (shift := amounts.get("brightness")) is not None:
        # Darker is a factor; brighter is the same factor of the distance to white.
        value = value * (1 - abs(shift)) + (shift + abs(shift)) / 2
    if (slope := amounts.get("contrast")) is not None:
        low = slope / (2 * (1 + slope))
        high_or_middle = pixels.xp.where(value > 1 - low, value / slope + 1 - 1 / slope, slope * (value - 0.5) + 0.5)
        value = pixels.xp.where(value < low, value / slope, high_or_middle)
    if (turns := amounts.get("hue")) is not None:
        hue = hue + turns * pixels.turn
    return pixels.merge(hue, saturation, value)


def source_indices(matrix: Any, height: int, width: int, xp: Any) -> tuple[Any, Any, Any]:
    """Return row and column of the nearest source pixel of each pixel, int64 [height, width], and which exist.

    Args:
        matrix: float64 [2, 3].
        height, width: Size of the frame.
        xp: numpy, jax.numpy or torch, which give the same indices.
    """
    # torch makes a tensor on the device of the matrix.
    device = {"device": matrix.device} if xp.__name__ == "torch" else {}
    rows, columns = xp.arange(height, **device)[:, None], xp.arange(width, **device)[None, :]
    column, row = (
        xp.floor(matrix[axis, 0] * columns + matrix[axis, 1] * rows + (matrix[axis, 2] + 0.5)) for axis in (0, 1)
    )
    exists = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return row, column, exists
