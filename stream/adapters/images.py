"""Frames at the size that a trainer takes, resized as it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from stream.storage.arguments import check_whole
from stream.storage.errors import ArgumentError

if TYPE_CHECKING:
    from stream.batch.spec import Batch


def check_size(name: str, size: Any) -> tuple[int, int]:
    """Return a size as (height, width); raise ArgumentError if it is not two whole numbers of at least 1.

    >>> check_size("image_size", [224, 224])
    (224, 224)
    """
    try:
        height, width = (check_whole(name, each, least=1) for each in size)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name}={size!r:.100}; expected (height, width) in pixels") from None
    return height, width


def resize(frames: np.ndarray, size: tuple[int, int], method: Image.Resampling) -> np.ndarray:
    """Return frames of a size, uint8 [..., height, width, 3]; the aspect ratio is not kept.

    Args:
        frames: uint8 [..., H, W, 3]. Frames of this size are returned as they are.
        size: (height, width) in pixels.
        method: Filter of Pillow.
    """
    return _each(frames, size, lambda image: image.resize(size[::-1], method))


def resize_with_pad(frames: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return frames of a size with their aspect ratio and black borders, bitwise as openpi's ``image_tools``.

    Args:
        frames: uint8 [..., H, W, 3]. Frames of this size are returned as they are.
        size: (height, width) in pixels.
    """
    height, width = size
    ratio = max(frames.shape[-2] / width, frames.shape[-3] / height)
    inner = (int(frames.shape[-2] / ratio), int(frames.shape[-3] / ratio))

    def fit(image: Image.Image) -> Image.Image:
        padded = Image.new("RGB", (width, height))
        padded.paste(
            image.resize(inner, Image.Resampling.BILINEAR), ((width - inner[0]) // 2, (height - inner[1]) // 2)
        )
        return padded

    return _each(frames, size, fit)


def as_float(frames: np.ndarray) -> np.ndarray:
    """Return frames with values from 0 to 1 and the channels first, float32 [..., 3, H, W]."""
    return np.moveaxis(frames, -1, -3).astype(np.float32, order="C") / np.float32(255)


@dataclass(frozen=True)
class BlackCameras:
    """Cameras that no dataset of a mixture stores: ``names``, with frames of one black pixel, and mask False."""

    names: tuple[str, ...]

    def map(self, batch: Batch) -> Batch:
        """Return the batch with these cameras."""
        mask = np.zeros_like(next(value for key, value in batch.items() if key.startswith("frames_mask/")))
        frames = {f"frames/{name}": np.zeros((*mask.shape, 1, 1, 3), np.uint8) for name in self.names}
        return {**batch, **frames, **{f"frames_mask/{name}": mask for name in self.names}}


def _each(frames: np.ndarray, size: tuple[int, int], change: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    if frames.shape[-3:-1] == size:
        return frames
    flat = frames.reshape(-1, *frames.shape[-3:])
    out = np.zeros((len(flat), *size, 3), np.uint8)
    for source, target in zip(flat, out, strict=True):
        if source.any():  # a camera that a dataset lacks is black at any size
            target[...] = np.asarray(change(Image.fromarray(source)))
    return out.reshape(*frames.shape[:-3], *size, 3)
