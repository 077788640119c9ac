"""Augmentation of frames: amounts drawn for each sample, the formulas, and their application on the host."""

from __future__ import annotations

import abc
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stream.base.errors import ArgumentError
from stream.base.extras import imports_of
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
LUMA = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in torchvision's grey."""


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


class HostPixels(Pixels):
    """Operations on one frame, float32 [H, W, 3], with OpenCV.

    Each thread has buffers, as new memory costs more than most operations.

    Raises:
        ArgumentError: OpenCV is older than version 5.
        ModuleNotFoundError: OpenCV is not installed.
    """

    xp = np
    turn = 360.0

    def __init__(self) -> None:
        with imports_of("augment", by="Frames(augment=...)"):
            import cv2
        if int(cv2.__version__.partition(".")[0]) < 5:
            raise ArgumentError(
                f"Frames(augment=...) needs OpenCV 5, as {cv2.__version__} rounds positions to 1/32 of a pixel; "
                "install pairstream[augment], or take to_device(..., augment='device')"
            )
        self._cv2 = cv2
        self._buffers = threading.local()

    def load(self, frame: np.ndarray) -> np.ndarray:
        """Return a frame, uint8 [H, W, 3], as float32 in [0, 1]."""
        return np.multiply(frame, np.float32(1 / 255), out=self._buffer("first", frame.shape))

    def save(self, frames: np.ndarray, frame: np.ndarray) -> None:
        """Write the levels of ``frames`` into a frame, rounded."""
        frame[...] = self._cv2.convertScaleAbs(frames, self._buffer("levels", frame.shape, dtype=np.uint8), alpha=255.0)

    def _buffer(
        self, name: str, shape: Sequence[int], used: np.ndarray | None = None, *, dtype: Any = np.float32
    ) -> np.ndarray:
        """Return a buffer of this thread, other than the used one."""
        buffers: dict[Any, np.ndarray] = vars(self._buffers)
        first, second = (name, *shape), (name, *shape, "second")
        buffer_key = first if used is None or buffers.get(first) is not used else second
        if buffer_key not in buffers:
            buffers[buffer_key] = np.empty(shape, dtype)
        return buffers[buffer_key]

    def clip(self, frames: np.ndarray) -> np.ndarray:
        """Return the frame limited to [0, 1], in place."""
        return np.clip(frames, 0, 1, out=frames)

    def scale(self, frames: np.ndarray, factor: float, shift: float) -> np.ndarray:
        """Return the frame times a factor plus a shift, in place."""
        if factor != 1:
            np.multiply(frames, np.float32(factor), out=frames)
        return np.add(frames, np.float32(shift), out=frames) if shift else frames

    def scale_about_means(self, frames: np.ndarray, factor: float) -> np.ndarray:
        """Return the frame with other distances from the mean of each channel."""
        return self._transform(frames, factor * np.eye(3), (1 - factor) * np.array(self._cv2.mean(frames)[:3]))

    def scale_about_grey_mean(self, frames: np.ndarray, factor: float) -> np.ndarray:
        """Return the frame with other distances from the mean of the grey."""
        grey = float(np.dot(self._cv2.mean(frames)[:3], LUMA))
        return self._transform(frames, factor * np.eye(3), (1 - factor) * np.full(3, grey))

    def scale_about_grey(self, frames: np.ndarray, factor: float) -> np.ndarray:
        """Return the frame with other distances of each pixel from its grey."""
        return self._transform(frames, factor * np.eye(3) + (1 - factor) * np.array([LUMA] * 3), np.zeros(3))

    def _transform(self, frames: np.ndarray, matrix: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """Return a linear function of the three channels of each pixel."""
        coefficients = np.column_stack([matrix, shift]).astype(np.float32)
        return np.asarray(self._cv2.transform(frames, coefficients, self._buffer("first", frames.shape, frames)))

    def blend_with_blur(self, frames: np.ndarray, factor: float) -> np.ndarray:
        """Return the frame with other distances of each pixel from the blur."""
        kernel = np.full((3, 3), (1 - factor) / 13)
        kernel[1, 1] = factor + (1 - factor) * 5 / 13
        blended = self._cv2.filter2D(frames, -1, kernel, self._buffer("first", frames.shape, frames))
        # The blur leaves the edges.
        for edge in (np.s_[:1], np.s_[-1:], np.s_[:, :1], np.s_[:, -1:]):
            blended[edge] = frames[edge]
        return np.asarray(blended)

    def split(self, frames: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return hue in degrees, saturation and value, [H, W] each."""
        cylinder = self._cv2.cvtColor(frames, self._cv2.COLOR_RGB2HSV, self._buffer("first", frames.shape, frames))
        channels = [self._buffer(f"channel_{number}", frames.shape[:2]) for number in range(3)]
        hue, saturation, value = self._cv2.split(cylinder, channels)
        return np.asarray(hue), np.asarray(saturation), np.asarray(value)

    def merge(self, hue: np.ndarray, saturation: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return the frame of a hue, saturation and value."""
        # OpenCV takes a hue from 0 to 360.
        hue = hue - 360 * np.floor(hue * (1 / 360))
        merged = self._cv2.merge([hue, saturation, value], self._buffer("first", (*hue.shape, 3)))
        return np.asarray(
            self._cv2.cvtColor(merged, self._cv2.COLOR_HSV2RGB, self._buffer("first", merged.shape, merged))
        )

    def warp(self, frames: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the frame resampled, black beyond its edge."""
        cv2 = self._cv2
        # OpenCV takes half of the time for four channels as for three.
        shape = (*frames.shape[:2], 4)
        source, moved = self._buffer("four_channels", shape), self._buffer("moved", shape)
        cv2.cvtColor(frames, cv2.COLOR_RGB2RGBA, source)
        cv2.warpAffine(source, matrix, shape[1::-1], moved, flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)
        return np.asarray(cv2.cvtColor(moved, cv2.COLOR_RGBA2RGB, self._buffer("first", frames.shape)))


class HostAugmenter:
    """Augmenter of frames on the host; one for each process, safe to use from several threads."""

    def __init__(self, augmentation: Augmentation) -> None:
        self._augmentation = augmentation
        self._neutral = NEUTRAL[str(augmentation.augment.library)]
        self._pixels = HostPixels()

    def draw(self, samples: np.ndarray) -> list[Amounts]:
        """Return the amounts of each camera."""
        return [self._augmentation.draw(camera, samples) for camera in range(len(self._augmentation.keys))]

    def apply(self, frame: np.ndarray, amounts: Amounts, row: int) -> None:
        """Augment a frame in place.

        Args:
            frame: uint8 [H, W, 3], or of depth uint16 [H, W].
            amounts: Amounts of its camera.
            row: Number of the sample among the amounts.
        """
        matrix = None if amounts.matrices is None else amounts.matrices[row]
        if matrix is not None and np.array_equal(matrix, np.eye(2, 3)):
            matrix = None
        if frame.ndim == 2:
            if matrix is not None:
                frame[...] = move_depth(frame, matrix)
            return
        colours = {
            name: value for name, values in amounts.colours.items() if self._changes(name, value := float(values[row]))
        }
        if (matrix is None and not colours) or not (frame[0].any() or frame.any()):
            return
        pixels = self._pixels
        pixels.save(augment_pixels(self._augmentation.augment, pixels.load(frame), matrix, colours, pixels), frame)

    def _changes(self, name: str, amount: float) -> bool:
        # The slope of augmax's contrast is 1 where its amount is 0.
        is_slope = self._augmentation.augment.library == "augmax" and name == "contrast"
        return amount != (1.0 if is_slope else self._neutral[name])


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


def move_depth(depth: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return depth, uint16 [H, W], by the nearest source pixel; 0 beyond the edge, as where nothing was measured."""
    height, width = depth.shape
    row, column, exists = source_indices(matrix, height, width, np)
    rows, columns = (index.clip(0, limit - 1).astype(np.int64) for index, limit in ((row, height), (column, width)))
    return np.where(exists, depth[rows, columns], np.uint16(0))
