"""Methods of normalising: our own, and the formulas of public trainers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stream.format.names import VectorName
from stream.sample.slots import Slots
from stream.statistics.affine import Affine
from stream.statistics.vectors import VectorStatistics

MethodName = Literal["mean_std", "q01_q99", "min_max", "openpi_pi0", "openpi_pi05", "openvla", "octo", "gr00t", "umi"]
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
            ``zero``; ``centre`` them, which subtracts the least value; or ``scale`` them like any other.
        constant_range: Largest range of a dimension that does not vary, and its share of the least value that is added;
            not for ``keep``.
        grippers: Vectors whose gripper keeps its values by default.
        kept: Names or quantities of other dimensions that keep their values by default.
    """

    numbers: tuple[str, str]
    epsilon: float = 0.0
    clip: float = 0.0
    constants: Literal["keep", "zero", "centre", "scale"] = "keep"
    constant_range: tuple[float, float] = (0.0, 0.0)
    grippers: tuple[VectorName, ...] = ("action", "state")
    kept: tuple[str, ...] = ()

    @property
    def is_range(self) -> bool:
        """Return whether the method takes a range, not mean and deviation."""
        return self.numbers[1] != "std"

    def kept_patterns(self, vector_key: VectorName) -> tuple[str, ...]:
        """Return the names or quantities of dimensions of a vector that keep their values by default."""
        return (*("gripper",) * (vector_key in self.grippers), *self.kept)

    def pair(self, statistics: VectorStatistics) -> tuple[np.ndarray, np.ndarray]:
        """Return the two statistics, float64 [dims] or [W, dims] each."""
        first, second = (getattr(statistics, name) for name in self.numbers)
        return first, second

    def mask(self, statistics: VectorStatistics, *, kept_dims: np.ndarray, flag_dims: np.ndarray) -> np.ndarray:
        """Return which dimensions change, a mask bool [dims], as both arguments; dimensions without values do not."""
        subtrahend, divisor, is_constant = self._parts(statistics)
        changes = ~kept_dims | (is_constant & (self.constants == "zero"))
        if self.constants == "keep":
            changes = ~kept_dims & ~flag_dims & (divisor > _SMALL)
        return np.asarray(changes & np.isfinite(subtrahend) & np.isfinite(divisor))

    def fill(
        self, table: Affine, dataset_row: int, statistics: VectorStatistics, *, clip: float, slots: Slots | None = None
    ) -> None:
        """Write the map of one dataset into its row of a table, for the dimensions in the mask of its statistics."""
        # Statistics of each step are [W, dims], and so is the row.
        changed = np.nonzero(statistics.mask if slots is None else statistics.mask & (slots.indices >= 0))
        subtrahend, divisor, is_constant = (numbers[changed] for numbers in self._parts(statistics))
        positions = changed[-1] if slots is None else slots.indices[changed[-1]]
        cells: Any = (dataset_row, *changed[:-1], positions)
        table.centre[cells] = subtrahend
        constant_scale = 1.0 if self.constants == "centre" else 0.0
        table.scale[cells] = np.where(is_constant, constant_scale, 1 / np.where(is_constant, 1, divisor))
        table.shift[cells] = -1.0 * (~is_constant & self.is_range)
        if clip:
            table.low[cells], table.high[cells] = -clip, clip

    def _parts(self, statistics: VectorStatistics) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the subtrahend and the divisor, float64 [dims], and which dimensions are constant, bool [dims]."""
        first, second = self.pair(statistics)
        divisor = (second - first + self.epsilon) / 2 if self.is_range else second + self.epsilon
        absolute, share = self.constant_range
        largest = absolute + share * np.abs(statistics.min)
        has_rule = self.constants in ("zero", "centre")
        return first, divisor, (statistics.max - statistics.min <= largest) & has_rule


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
    # GR00T, gr00t/data/utils.py and state_action_processor.py: constant as in numpy.isclose.
    "gr00t": Method(("min", "max"), clip=1.0, constants="zero", constant_range=(1e-8, 1e-5), grippers=()),
    # UMI, diffusion_policy/common/normalize_util.py.
    "umi": Method(("min", "max"), constants="centre", constant_range=(1e-7, 0.0), grippers=(), kept=("ee_rotation_*",)),
}
