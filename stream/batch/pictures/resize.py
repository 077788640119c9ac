"""Frames at another size than the stored one, resized when they are decoded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stream.sample.frames import ImageFilter, ImageFit

_PILLOW = {"area": "BOX", "lanczos": "LANCZOS", "bilinear": "BILINEAR"}


@dataclass(frozen=True)
class Resize:
    """Rule for frames of another size.

    Attributes:
        fit: ``stretch`` changes the aspect ratio; ``pad`` keeps it and adds black borders, as openpi's ``image_tools``.
        filter: Filter of Pillow, with antialiasing. Depth takes the nearest value, whatever the filter.
    """

    fit: ImageFit
    filter: ImageFilter

    def apply(self, frame: np.ndarray, out: np.ndarray) -> None:
        """Write a frame at the size of ``out``.

        Args:
            frame: uint8 [H, W, 3], or of depth uint16 [H, W].
            out: An array of the same type, [height, width, 3] or [height, width].
        """
        (height, width), (old_height, old_width) = out.shape[:2], frame.shape[:2]
        if self.fit == "pad" and (height, width) != (old_height, old_width):
            shrink_ratio = max(old_width / width, old_height / height)
            inner_height, inner_width = max(1, int(old_height / shrink_ratio)), max(1, int(old_width / shrink_ratio))
            top, left = (height - inner_height) // 2, (width - inner_width) // 2
            out[...] = 0
            out = out[top : top + inner_height, left : left + inner_width]
        if out.shape == frame.shape:
            out[...] = frame
        elif frame.ndim == 2:
            out[...] = frame[_nearest(out.shape[0], frame.shape[0])[:, None], _nearest(out.shape[1], frame.shape[1])]
        else:
            # Imported here, so that processes that do not resize run without it.
            from PIL import Image

            pillow_image = Image.fromarray(frame)
            out[...] = pillow_image.resize(out.shape[1::-1], Image.Resampling[_PILLOW[self.filter]])


def _nearest(new_size: int, old_size: int) -> np.ndarray:
    """Return the old index below the middle of each new pixel, int64 [new_size]."""
    return np.asarray((2 * np.arange(new_size) + 1) * old_size // (2 * new_size))
