"""A feature of a source: its name, level, shape and dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

STEPS = "steps"


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature.

    Attributes:
        path: ``steps/`` and the name for a feature of steps, the name alone for one of the episode. In TFDS the names
            of its tree with ``/`` between; keys may contain ``/`` and spaces themselves.
        level: One value per step, or one per episode.
        shape: Shape of one value; None where a dimension is not fixed.
        dtype: Name of numpy's, or ``string``.
        encoding: Encoding of tensors; ``bytes`` and ``zlib`` store each value as one byte string.
        sequences: Declared length of each ``Sequence`` around the value, outermost first, None where it varies.
    """

    path: str
    kind: Literal["tensor", "image"]
    level: Literal["step", "episode"]
    shape: tuple[int | None, ...]
    dtype: str
    encoding: Literal["none", "bytes", "zlib"] = "none"
    sequences: tuple[int | None, ...] = ()

    @property
    def name(self) -> str:
        """The path below ``steps``, or the whole path of an episode feature: the name of its column."""
        return self.path.removeprefix(STEPS + "/") if self.level == "step" else self.path

    @property
    def size(self) -> int | None:
        """Count of numbers in one value, None if it varies."""
        return math.prod(dim for dim in self.shape if dim is not None) if None not in self.shape else None


def storage_dtype(feature: Feature) -> np.dtype:
    """Return the dtype of a feature's column.

    float64 becomes float32 unless it is stored as encoded bytes, because a record holds floats in 32 bits anyway.
    """
    dtype = np.dtype(feature.dtype)
    return np.dtype(np.float32) if dtype == np.float64 and feature.encoding == "none" else dtype
