"""Augmentation of frames on the host, with OpenCV."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from stream.base.errors import ArgumentError
from stream.base.extras import imports_of
from stream.batch.pictures.augmentation import Amounts, Augmentation
from stream.batch.pictures.colours import LUMA, Pixels, augment_pixels, source_indices
from stream.sample.augment import NEUTRAL


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


def move_depth(depth: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return depth, uint16 [H, W], by the nearest source pixel; 0 beyond the edge, as where nothing was measured."""
    height, width = depth.shape
    row, column, exists = source_indices(matrix, height, width, np)
    rows, columns = (index.clip(0, limit - 1).astype(np.int64) for index, limit in ((row, height), (column, width)))
    return np.where(exists, depth[rows, columns], np.uint16(0))
