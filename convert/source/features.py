"""A feature of a source: its name, level, shape and dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

STEPS = "steps"


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature.

    Attributes:
        path: ``steps/`` and the name for a feature of steps, the name alone for one of the episode. In TFDS the names
            of its tree with ``/`` between; keys may contain ``/`` and spaces themselves.
        level: One value per step, or one per episode.
        shape: Shape of one value; None where a dimension is not fixed.
        dtype: Name of numpy's, or ``string``. It is the type of the column.
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


SUCCESS = Feature(path="success", kind="tensor", level="episode", shape=(), dtype="bool")
"""The column of ``episodes``; null where nobody knows."""
