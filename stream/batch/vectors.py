"""Action and state: their dimensions, and the reduction of a window of actions to one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stream.base.errors import ArgumentError
from stream.format.table import Table
from stream.sample.vector import Reduction

_TURNS = ("ee_rotation_quaternion", "ee_pose_matrix")
"""Quantities whose changes are multiplied, not added: neither the sum nor the mean of two of them is a rotation."""
_ANGLES = ("ee_rotation_euler", "ee_rotation_axis_angle", "base_rotation")
"""Angles, whose changes add: exactly about one axis, and about several axes up to the product of the turns.

Positions of angles jump from pi to -pi, and their mean is the opposite direction there.
"""


@dataclass(frozen=True)
class DatasetVector:
    """A vector of a dataset.

    Attributes:
        names: Name of each dimension.
        kinds: Kind of each dimension.
        chosen: Columns of ``steps`` that a caller chose, with the indices of their values; None for the derived column.
        quantities: Quantity of each dimension, such as ``gripper``; empty if unknown.
        units: Unit of each dimension, empty if unknown.
        orders: Order of the numbers of each rotation, such as ``wxyz``; empty if unknown.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    chosen: tuple[tuple[str, tuple[int, ...]], ...] | None = None
    quantities: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of dimensions."""
        return len(self.names)

    def only(self, dim_number: int) -> DatasetVector:
        """Return the vector of one dimension of chosen columns."""
        assert self.chosen is not None, "the derived column is read as a whole"
        column_indices = [(column_name, index) for column_name, indices in self.chosen for index in indices]
        column_name, index = column_indices[dim_number]
        dim_slice = slice(dim_number, dim_number + 1)
        return DatasetVector(
            self.names[dim_slice], self.kinds[dim_slice], ((column_name, (index,)),), self.quantities[dim_slice]
        )

    def take(self, steps: Table, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the chosen columns at n rows of ``steps``, float32 [n, size], and their mask, bool [n, size].

        Values are 0 where the mask is False.
        """
        assert self.chosen is not None, "the derived column is looked up by its location"
        chosen_values = np.empty((len(rows), self.size), np.float32)
        mask = np.ones(chosen_values.shape, bool)
        first_dim = 0
        for column_name, indices in self.chosen:
            values, valid = steps.take(column_name, rows), steps.valid(column_name, rows)
            last_dim = first_dim + len(indices)
            with np.errstate(over="ignore", invalid="ignore"):
                chosen_values[:, first_dim:last_dim] = (values[:, None] if values.ndim == 1 else values)[:, indices]
            if valid is not None:
                chosen_values[~valid, first_dim:last_dim], mask[~valid, first_dim:last_dim] = 0, False
            first_dim = last_dim
        return chosen_values, mask


def reduce_window(window: np.ndarray, steps: np.ndarray, reduction: Reduction, kinds: np.ndarray) -> np.ndarray:
    """Reduce windows of actions to one action each.

    ``first`` takes the action at t. ``mean`` averages the real rows; flags are those of the last real row. ``sum`` adds
    displacements and velocities; all other values are those of the last real row, where the pair ends.

    Args:
        window: float32 [b, W, A], zero beyond ``steps``.
        steps: Real rows of each window, int [b], >= 0.
        reduction: Reduction.
        kinds: Kind of each dimension, int8 [b, A]: 0 displacement or velocity, 1 target or absolute, 2 flag.

    Returns:
        float32 [b, A].
    """
    if reduction == "first":
        return window[:, 0]
    last_actions = np.take_along_axis(window, np.maximum(steps - 1, 0)[:, None, None].astype(np.int64), axis=1)[:, 0]
    summed = window.sum(axis=1, dtype=np.float32)
    if reduction == "mean":
        return np.where(kinds == 2, last_actions, summed / np.maximum(steps, 1)[:, None].astype(np.float32))
    return np.where(kinds == 0, summed, last_actions)


def kind_codes(vector: DatasetVector, num_dims: int) -> np.ndarray:
    """Return the kind of each dimension as ``reduce_window`` takes it, int8 [size], padded with 0."""
    kind_codes = np.zeros(num_dims, np.int8)
    kind_codes[: vector.size] = [{"target": 1, "absolute": 1, "flag": 2}.get(kind, 0) for kind in vector.kinds]
    return kind_codes


def check_reduction(
    reduction: Reduction | None, vector: DatasetVector, control_frequency: float | None, *, dataset: str
) -> None:
    """Refuse a reduction of actions that have no sum or no mean.

    Raises:
        ArgumentError: ``sum`` of changes of quaternions or matrices, or of velocities whose rate is unknown; ``mean``
            of quaternions, matrices or positions of angles.
    """
    if reduction not in ("sum", "mean"):
        return
    changes, positions = ("displacement", "velocity"), ("target", "absolute")
    dimensions = list(zip(vector.names, vector.kinds, vector.quantities, strict=False))
    refused = changes if reduction == "sum" else changes + positions
    if turn_names := [dim_name for dim_name, kind, quantity in dimensions if quantity in _TURNS and kind in refused]:
        raise ArgumentError(
            f"dataset {dataset}: action=Vector(reduce={reduction!r}) would add up quaternions or matrices "
            f"({', '.join(turn_names)}), whose changes are multiplied, not added; take space='eef_delta', reduce=None "
            "or 'first'"
        )
    angle_names = [dim_name for dim_name, kind, quantity in dimensions if quantity in _ANGLES and kind in positions]
    if reduction == "mean" and angle_names:
        raise ArgumentError(
            f"dataset {dataset}: action=Vector(reduce='mean') would average angles that jump from pi to -pi "
            f"({', '.join(angle_names)}); take space='eef_delta', reduce=None or 'first'"
        )
    velocities = [dim_name for dim_name, kind in zip(vector.names, vector.kinds, strict=True) if kind == "velocity"]
    if reduction == "sum" and velocities and control_frequency is None:
        raise ArgumentError(
            f"dataset {dataset}: action=Vector(reduce='sum') would add up velocities ({velocities[0]}), and the "
            "dataset has no fixed rate to turn them into distances; take reduce=None, 'mean' or 'first'"
        )


def sum_scale(vector: DatasetVector, control_frequency: float | None) -> np.ndarray:
    """Return the factor of summed actions, float32 [size]: seconds per step for velocities, else 1."""
    velocities = np.array([kind == "velocity" for kind in vector.kinds], bool)
    return np.where(velocities, np.float32(1 / (control_frequency or 1)), np.float32(1)).astype(np.float32)
