"""Methods of normalising: our own, and the formulas of public trainers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stream.format.names import VectorName
from stream.statistics.affine import Affine
from stream.statistics.vectors import VectorStatistics

MethodName = Literal["mean_std", "q01_q99", "min_max", "openpi_pi0", "openpi_pi05", "openvla", "octo"]
_SMALL = 1e-8
"""Least half of a range that counts as varying."""


@dataclass(frozen=True)
class Method:
    """Formula of a dimension, and its exceptions.

    Mean and deviation give ``(value - mean) / (std + epsilon)``, a range gives
    ``2 * (value - low) / (high - low + epsilon) - 1``.

    Attributes:
        numbers: Names of the two statistics.
        epsilon: Number that is added to the divisor.
        clip: Largest magnitude of a normalised value, 0 for none.
        constants: Treatment of dimensions that do not vary: ``keep`` their values, and those of flags; make them
            ``zero``; or ``scale`` them like any other.
        grippers: Vectors whose gripper keeps its values by default.
    """

    numbers: tuple[str, str]
    epsilon: float = 0.0
    clip: float = 0.0
    constants: Literal["keep", "zero", "scale"] = "keep"
    grippers: tuple[VectorName, ...] = ("action", "state")

    @property
    def is_range(self) -> bool:
        """Return whether the method takes a range, not mean and deviation."""
        return self.numbers[1] != "std"

    def pair(self, statistics: VectorStatistics) -> tuple[np.ndarray, np.ndarray]:
        """Return the two statistics, float64 [dims] or [W, dims] each."""
        first, second = (getattr(statistics, name) for name in self.numbers)
        return first, second

    def mask(self, statistics: VectorStatistics, *, kept_dims: np.ndarray, flag_dims: np.ndarray) -> np.ndarray:
        """Return which dimensions change, a mask bool [dims], as both arguments; dimensions without values do not."""
        subtrahend, divisor, becomes_zero = self._parts(statistics)
        changes = ~kept_dims | becomes_zero
        if self.constants == "keep":
            changes = ~kept_dims & ~flag_dims & (divisor > _SMALL)
        return np.asarray(changes & np.isfinite(subtrahend) & np.isfinite(divisor))

    def fill(self, table: Affine, dataset_row: int, statistics: VectorStatistics, *, clip: float) -> None:
        """Write the map of one dataset into its row of a table, for the dimensions in the mask of its statistics."""
        # Statistics of each step are [W, dims], like their part of the row.
        part: Any = (dataset_row, *map(slice, statistics.mask.shape))
        changed = np.nonzero(statistics.mask)
        subtrahend, divisor, becomes_zero = (numbers[changed] for numbers in self._parts(statistics))
        table.centre[part][changed] = subtrahend
        table.scale[part][changed] = ~becomes_zero / np.where(becomes_zero, 1, divisor)
        table.shift[part][changed] = -1.0 * (~becomes_zero & self.is_range)
        if clip:
            table.low[part][changed], table.high[part][changed] = -clip, clip

    def _parts(self, statistics: VectorStatistics) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the subtrahend and the divisor, float64 [dims], and which dimensions become 0, bool [dims]."""
        first, second = self.pair(statistics)
        divisor = (second - first + self.epsilon) / 2 if self.is_range else second + self.epsilon
        return first, divisor, (statistics.min == statistics.max) & (self.constants == "zero")


METHODS: dict[str, Method] = {
    "mean_std": Method(("mean", "std")),
    "q01_q99": Method(("q01", "q99"), clip=1.0),
    "min_max": Method(("min", "max"), clip=1.0),
    # openpi, src/openpi/transforms.py: pi0; pi0.5 and pi0-FAST.
    "openpi_pi0": Method(("mean", "std"), epsilon=1e-6, constants="scale", grippers=()),
    "openpi_pi05": Method(("q01", "q99"), epsilon=1e-6, constants="scale", grippers=()),
    # OpenVLA, prismatic/vla/datasets/rlds/utils/data_utils.py. Octo, octo/data/utils/data_utils.py.
    "openvla": Method(("q01", "q99"), epsilon=1e-8, clip=1.0, constants="zero", grippers=("action",)),
    "octo": Method(("mean", "std"), epsilon=1e-8, constants="scale", grippers=("action",)),
}
