"""Methods of normalising: our own, and the formulas of public trainers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from stream.format.names import VectorName
from stream.statistics.affine import Affine
from stream.statistics.vectors import VectorStatistics

MethodName = Literal["mean_std", "q01_q99", "min_max", "openpi_pi0", "openpi_pi05", "openvla", "octo"]
_SMALL = 1e-8
"""Least half of a range that counts as varying."""


@dataclass(frozen=True)
class Method:
    """The formula of a dimension and its exceptions.

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

    def pair(self, found: VectorStatistics) -> tuple[np.ndarray, np.ndarray]:
        """Return the two statistics, float64 [dims] each."""
        first, second = (getattr(found, name) for name in self.numbers)
        return first, second

    def mask(self, found: VectorStatistics, *, left: np.ndarray, flags: np.ndarray) -> np.ndarray:
        """Return which dimensions change, bool [dims]; a dimension without values keeps them.

        Args:
            found: Statistics.
            left: Dimensions that keep their values, bool [dims].
            flags: Dimensions that are flags, bool [dims].
        """
        first, width, zero = self._parts(found)
        chosen = ~left & ~flags & (width > _SMALL) if self.constants == "keep" else ~left | zero
        return np.asarray(chosen & np.isfinite(first) & np.isfinite(width))

    def fill(self, table: Affine, row: int, found: VectorStatistics, *, clip: float) -> None:
        """Write the map of one dataset into its row of a table.

        Args:
            table: Table.
            row: Number of the dataset.
            found: Statistics, whose mask says which dimensions change.
            clip: Largest magnitude, 0 for none.
        """
        dims = np.flatnonzero(found.mask)
        first, width, zero = (part[dims] for part in self._parts(found))
        table.centre[row, dims] = first
        table.scale[row, dims] = ~zero / np.where(zero, 1, width)
        table.shift[row, dims] = -1.0 * (~zero & self.is_range)
        if clip:
            table.low[row, dims], table.high[row, dims] = -clip, clip

    def _parts(self, found: VectorStatistics) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the subtrahend and the divisor, float64 [dims], and which dimensions become 0, bool [dims]."""
        first, second = self.pair(found)
        width = (second - first + self.epsilon) / 2 if self.is_range else second + self.epsilon
        return first, width, (found.min == found.max) & (self.constants == "zero")


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
