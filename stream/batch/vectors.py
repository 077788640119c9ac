"""Action and state: their dimensions, and the reduction of a window of actions to one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from stream.base.errors import ArgumentError
from stream.format.table import Table

Reduction = Literal["window", "sum", "mean", "first"]
REDUCTIONS: tuple[Reduction, ...] = ("window", "sum", "mean", "first")
_TURNS = ("ee_rotation_quaternion", "ee_pose_matrix")
"""Quantities whose changes are multiplied, not added: neither the sum nor the mean of two of them is a rotation."""
_ANGLES = ("ee_rotation_euler", "ee_rotation_axis_angle", "base_rotation")
"""Angles, whose changes add: exactly about one axis, and about several axes up to the product of the turns.

Positions of angles jump from pi to -pi, and their mean is the opposite direction there.
"""


@dataclass(frozen=True)
class Vector:
    """A vector of a dataset.

    Attributes:
        names: Name of each dimension.
        kinds: Kind of each dimension.
        chosen: Columns of ``steps`` that a caller chose, with the indices of their values; None for the derived column.
        quantities: Quantity of each dimension, such as ``gripper``; empty if unknown.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    chosen: tuple[tuple[str, tuple[int, ...]], ...] | None = None
    quantities: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of dimensions."""
        return len(self.names)

    def only(self, dim: int) -> Vector:
        """Return the vector of one dimension of chosen columns."""
        assert self.chosen is not None, "the derived column is read as a whole"
        places = [(column, index) for column, indices in self.chosen for index in indices]
        column, index = places[dim]
        one = slice(dim, dim + 1)
        return Vector(self.names[one], self.kinds[one], ((column, (index,)),), self.quantities[one])

    def take(self, steps: Table, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the chosen columns at some rows of ``steps``, and the mask of their values.

        Args:
            steps: Table ``steps``.
            rows: int64 [n].

        Returns:
            float32 [n, size], 0 where a row has no value; bool [n, size].
        """
        assert self.chosen is not None, "the derived column is looked up by its location"
        found = np.empty((len(rows), self.size), np.float32)
        mask = np.ones(found.shape, bool)
        start = 0
        for column, indices in self.chosen:
            values, valid = steps.take(column, rows), steps.valid(column, rows)
            stop = start + len(indices)
            with np.errstate(over="ignore", invalid="ignore"):
                found[:, start:stop] = (values[:, None] if values.ndim == 1 else values)[:, indices]
            if valid is not None:
                found[~valid, start:stop], mask[~valid, start:stop] = 0, False
            start = stop
        return found, mask


def reduce_window(window: np.ndarray, steps: np.ndarray, how: Reduction, kinds: np.ndarray) -> np.ndarray:
    """Reduce windows of actions to one action each.

    ``first`` takes the action at t. ``mean`` averages the real rows; flags are those of the last real row. ``sum`` adds
    displacements and velocities; all other values are those of the last real row, where the pair ends.

    Args:
        window: float32 [b, W, A], zero beyond ``steps``.
        steps: Real rows of each window, int [b], >= 0.
        how: Reduction.
        kinds: Kind of each dimension, int8 [b, A]: 0 displacement or velocity, 1 target or absolute, 2 flag.

    Returns:
        float32 [b, A].
    """
    if how == "first":
        return window[:, 0]
    last = np.take_along_axis(window, np.maximum(steps - 1, 0)[:, None, None].astype(np.int64), axis=1)[:, 0]
    total = window.sum(axis=1, dtype=np.float32)
    if how == "mean":
        return np.where(kinds == 2, last, total / np.maximum(steps, 1)[:, None].astype(np.float32))
    return np.where(kinds == 0, total, last)


def kind_codes(vector: Vector, size: int) -> np.ndarray:
    """Return the kind of each dimension as ``reduce_window`` takes it, int8 [size], padded with 0."""
    codes = np.zeros(size, np.int8)
    codes[: vector.size] = [{"target": 1, "absolute": 1, "flag": 2}.get(kind, 0) for kind in vector.kinds]
    return codes


def check_reduction(how: Reduction, vector: Vector, control_frequency: float | None, *, dataset: str) -> None:
    """Refuse a reduction of actions that have no sum or no mean.

    Args:
        how: Reduction.
        vector: Action of the dataset.
        control_frequency: Steps per second, None if the dataset has no fixed rate.
        dataset: Name of the dataset, for messages.

    Raises:
        ArgumentError: ``sum`` of changes of quaternions or matrices, or of velocities whose rate is unknown; ``mean``
            of quaternions, matrices or positions of angles.
    """
    if how not in ("sum", "mean"):
        return
    changes, positions = ("displacement", "velocity"), ("target", "absolute")
    dims = list(zip(vector.names, vector.kinds, vector.quantities, strict=False))
    refused = changes if how == "sum" else changes + positions
    if turns := [name for name, kind, what in dims if what in _TURNS and kind in refused]:
        raise ArgumentError(
            f"dataset {dataset}: action={how!r} would add up quaternions or matrices ({', '.join(turns)}), whose "
            "changes are multiplied, not added; take action_space='eef_delta', or 'window' or 'first'"
        )
    angles = [name for name, kind, what in dims if what in _ANGLES and kind in positions]
    if how == "mean" and angles:
        raise ArgumentError(
            f"dataset {dataset}: action='mean' would average angles that jump from pi to -pi ({', '.join(angles)}); "
            "take action_space='eef_delta', or 'window' or 'first'"
        )
    velocities = [name for name, kind in zip(vector.names, vector.kinds, strict=True) if kind == "velocity"]
    if how == "sum" and velocities and control_frequency is None:
        raise ArgumentError(
            f"dataset {dataset}: action='sum' would add up velocities ({velocities[0]}), and the dataset has no fixed "
            "rate to turn them into distances; take 'window', 'mean' or 'first'"
        )


def sum_scale(vector: Vector, control_frequency: float | None) -> np.ndarray:
    """Return the factor of summed actions, float32 [size]: seconds per step for velocities, else 1."""
    velocities = np.array([kind == "velocity" for kind in vector.kinds], bool)
    return np.where(velocities, np.float32(1 / (control_frequency or 1)), np.float32(1)).astype(np.float32)
