"""Layout of the arrays of a batch in one piece of memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

ALIGN = 64
IMAGE_SHIFT = 16
"""Offset of images from a multiple of 64 bytes. libjpeg-turbo writes lines that begin at a multiple of 32 bytes past
the caches, which is slower."""
Fields = Mapping[str, tuple[str, tuple[int, ...]]]


class Layout:
    """Where the arrays of a batch of ``rows`` rows lie in a slot, one behind the other, each aligned to 64 bytes but
    images, which lie ``IMAGE_SHIFT`` bytes behind.

    >>> layout = Layout({"a": ("u1", (3,)), "b": ("i8", ()), "c": ("u1", (2, 2, 3))}, rows=2)
    >>> layout.offsets, layout.nbytes
    ({'a': 0, 'b': 64, 'c': 144}, 168)
    """

    def __init__(self, fields: Fields, *, rows: int) -> None:
        self.nbytes = 0
        self._arrays: list[tuple[str, tuple[int, ...], np.dtype, int]] = []
        for name, (kind, shape) in fields.items():
            dtype = np.dtype(kind)
            start = -(-self.nbytes // ALIGN) * ALIGN
            if dtype == np.uint8 and len(shape) >= 3:
                start += IMAGE_SHIFT
            self._arrays.append((name, (rows, *shape), dtype, start))
            self.nbytes = start + rows * math.prod(shape) * dtype.itemsize

    @property
    def offsets(self) -> dict[str, int]:
        """Where each array begins."""
        return {name: start for name, _, _, start in self._arrays}

    def arrays(self, buffer: Any, *, base: int = 0) -> dict[str, np.ndarray]:
        """Return the arrays over a buffer, without a copy; each keeps the buffer alive."""
        return {name: np.ndarray(shape, dtype, buffer, base + start) for name, shape, dtype, start in self._arrays}


def empty_array(rows: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Make an array of ``rows`` rows, not initialised, that lies as ``Layout`` has it."""
    layout = Layout({"": (dtype, shape)}, rows=rows)
    memory = np.empty(layout.nbytes + ALIGN, np.uint8)
    return layout.arrays(memory, base=-memory.ctypes.data % ALIGN)[""]
