"""Layout of the arrays of a batch in one block of memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

ALIGN = 64
IMAGE_SHIFT = 16
"""Offset of images from a multiple of 64 bytes: libjpeg-turbo writes aligned lines past the caches, more slowly."""
Fields = Mapping[str, tuple[str, tuple[int, ...]]]


class Layout:
    """Offsets of the arrays of a batch. Arrays start at multiples of 64 bytes, images ``IMAGE_SHIFT`` bytes later.

    >>> layout = Layout({"a": ("u1", (3,)), "b": ("i8", ()), "c": ("u1", (2, 2, 3))}, num_rows=2)
    >>> layout.offsets, layout.nbytes
    ({'a': 0, 'b': 64, 'c': 144}, 168)

    Args:
        fields: dtype and shape of one row, by name of the array.
        rows: Rows of the batch.
        header: Bytes in front of the arrays.

    Attributes:
        nbytes: Bytes of header and arrays.
        offsets: Byte offset of each array.
        kinds: dtype and shape of each array.
        images: Names of the arrays of images, the large ones.
    """

    def __init__(self, fields: Fields, *, num_rows: int, header: int = 0) -> None:
        self.nbytes = header
        self.offsets: dict[str, int] = {}
        self.images: set[str] = set()
        self.kinds: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        for name, (dtype_name, shape) in fields.items():
            dtype = np.dtype(dtype_name)
            array_start = aligned(self.nbytes)
            if dtype == np.uint8 and len(shape) >= 3:
                self.images.add(name)
                array_start += IMAGE_SHIFT
            self.offsets[name] = array_start
            self.kinds[name] = dtype, (num_rows, *shape)
            self.nbytes = array_start + num_rows * math.prod(shape) * dtype.itemsize

    def arrays(self, buffer: Any, num_rows: int | None = None) -> dict[str, np.ndarray]:
        """Return the arrays over a buffer, or their first rows, without a copy; each keeps the buffer alive."""
        return {
            name: np.ndarray(shape if num_rows is None else (num_rows, *shape[1:]), dtype, buffer, self.offsets[name])
            for name, (dtype, shape) in self.kinds.items()
        }


def aligned(offset: int) -> int:
    """Return the next multiple of ``ALIGN``.

    >>> aligned(64), aligned(65)
    (64, 128)
    """
    return -(-offset // ALIGN) * ALIGN


def empty_array(num_rows: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of ``num_rows`` rows, not initialised, aligned as in a ``Layout``."""
    layout = Layout({"": (dtype, shape)}, num_rows=num_rows)
    memory = np.empty(layout.nbytes + ALIGN, np.uint8)
    return layout.arrays(memory[-memory.ctypes.data % ALIGN :])[""]
