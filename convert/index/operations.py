"""Operations of the mappings to canonical spaces, each over many episodes at once.

An operation takes float32 [rows, dims] and returns as much, or [rows, 3] if it gives Euler angles. Angles are roll,
pitch, yaw about fixed axes (``xyz`` of scipy), as tensorflow_graphics has them, which OpenVLA and Octo use. NaN stays
NaN, and is the result where an operation has no value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from convert.registry.space import MappedVector, OperationName, Term


@dataclass(frozen=True)
class Rows:
    """Rows of complete episodes.

    Attributes:
        first, last: Row of the first and last step of each row's episode, int64 [rows].
        rate: Steps per second.
    """

    first: np.ndarray
    last: np.ndarray
    rate: float | None

    @classmethod
    def of(cls, episode_numbers: np.ndarray, rate: float | None) -> Rows:
        """Return the rows of a column of episode numbers, int [rows]."""
        row_numbers = np.arange(len(episode_numbers))
        is_first = np.r_[True, episode_numbers[1:] != episode_numbers[:-1]][: len(episode_numbers)]
        first_rows = np.maximum.accumulate(np.where(is_first, row_numbers, 0))
        episode_lengths = np.bincount(np.cumsum(is_first) - 1, minlength=0)
        return cls(first_rows, first_rows + np.repeat(episode_lengths, episode_lengths) - 1, rate)


def map_vector(vector: MappedVector, rows: Rows, read_term: Callable[[Term], np.ndarray]) -> np.ndarray:
    """Return the values of a space, float32 [rows, dimensions]; NaN where there is no value.

    ``read_term`` returns the stored values of a term with a path, float32 [rows, dims].
    """
    num_rows = len(rows.first)
    mapped = np.empty((num_rows, len(vector.names)), np.float32)
    first_column = 0
    for term in vector.terms:
        if term.path is None:
            term_values = np.full((num_rows, term.dims), np.nan if term.fill is None else term.fill, np.float32)
        else:
            term_values = read_term(term)
            with np.errstate(over="ignore", invalid="ignore"):
                for operation in term.then:
                    term_values = OPERATIONS[operation.name](term_values, rows, operation.values)
        mapped[:, first_column : first_column + term.size] = term_values
        first_column += term.size
    row_numbers = np.arange(num_rows)
    mapped[(row_numbers < rows.first + vector.drop_first) | (row_numbers > rows.last - vector.drop_last)] = np.nan
    return mapped


def distance(values: np.ndarray, rows: Rows, *, is_change: bool) -> np.ndarray:
    """Return the L2 norm of the values, or of their change to the next step, float32 [rows, 1].

    The last step of an episode has the number of the step before, 0 in an episode of one step. Without values all is
    NaN.
    """
    if not values.shape[1]:
        return np.full((len(values), 1), np.nan, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        differences = _neighbour(values, rows, 1) - values if is_change else values
        norms = np.linalg.norm(differences.astype(np.float64), axis=1).astype(np.float32)
    row_numbers = np.arange(len(values))
    step_norms = norms[np.maximum(np.minimum(row_numbers, rows.last - 1), 0)]
    return np.where(rows.first == rows.last, np.float32(0), step_norms)[:, None]


def _binarize(values: np.ndarray, rows: Rows, _: Sequence[float]) -> np.ndarray:
    """Round to 0 or 1; a value in between takes the next one that is not, else the last of the episode as it is."""
    is_open = values > np.float32(0.95)
    is_decided = is_open | (values < np.float32(0.05))
    row_numbers = np.arange(len(values))[:, None]
    next_decided = np.minimum.accumulate(np.where(is_decided, row_numbers, len(values))[::-1])[::-1]
    next_values = np.take_along_axis(is_open, np.minimum(next_decided, len(values) - 1), axis=0).astype(np.float32)
    return np.where(next_decided <= rows.last[:, None], next_values, values[rows.last])


def _relative_to_absolute(values: np.ndarray, rows: Rows, _: Sequence[float]) -> np.ndarray:
    """Return 1 after an opening (below -0.1) and 0 after a closing (above 0.1).

    Before the first of both the gripper is in the other state; without any it is open.
    """
    change = np.where(values < np.float32(-0.1), 1, np.where(values > np.float32(0.1), -1, 0))
    row_numbers = np.arange(len(values))[:, None]
    next_row = np.minimum.accumulate(np.where(change, row_numbers, len(values))[::-1])[::-1][rows.first]
    first_change = np.take_along_axis(change, np.minimum(next_row, len(values) - 1), axis=0)
    state_before = np.where(next_row <= rows.last[:, None], -first_change, 1)
    latest_row = np.maximum.accumulate(np.where(change, row_numbers, -1))
    latest_change = np.take_along_axis(change, np.maximum(latest_row, 0), axis=0)
    return (np.where(latest_row >= rows.first[:, None], latest_change, state_before) / 2 + 0.5).astype(np.float32)


def _fraction(values: np.ndarray, rows: Rows, range_ends: Sequence[float]) -> np.ndarray:
    closed_end, open_end = range_ends
    return np.clip((values - np.float32(closed_end)) / np.float32(open_end - closed_end), 0, 1)


def _per_step(values: np.ndarray, rows: Rows, _: Sequence[float]) -> np.ndarray:
    assert rows.rate is not None, "checked when the registry is read"
    return values / np.float32(rows.rate)


def _neighbour(values: np.ndarray, rows: Rows, distance: int) -> np.ndarray:
    """Return the values of another step of the same episode, NaN beyond its ends."""
    row_numbers = np.arange(len(values)) + distance
    is_inside = (row_numbers >= rows.first) & (row_numbers <= rows.last)
    neighbours = np.where(is_inside[:, None], values[np.where(is_inside, row_numbers, 0)], np.float32(np.nan))
    return neighbours.astype(values.dtype)


def _turned(values: np.ndarray, rows: Rows, _: Sequence[float]) -> np.ndarray:
    """Return the rotation from each step to the next, about the fixed axes: next = turn x this."""
    next_matrices = _matrix_of_euler(_neighbour(values, rows, 1))
    return _euler_of_matrix(next_matrices @ np.swapaxes(_matrix_of_euler(values), 1, 2))


def _matrix_of_euler(angles: np.ndarray) -> np.ndarray:
    (cx, cy, cz), (sx, sy, sz) = np.cos(angles.astype(np.float64)).T, np.sin(angles.astype(np.float64)).T
    entries = [
        [cy * cz, sx * sy * cz - cx * sz, cx * sy * cz + sx * sz],
        [cy * sz, sx * sy * sz + cx * cz, cx * sy * sz - sx * cz],
        [-sy, sx * cy, cx * cy],
    ]
    return np.moveaxis(np.array(entries), 2, 0)


def _euler_of_matrix(matrix: np.ndarray) -> np.ndarray:
    """Return the angles of rotation matrices [rows, 3, 3]; in gimbal lock yaw is 0."""
    sin_down = np.clip(matrix[:, 2, 0], -1, 1)
    down_sign = np.where(sin_down < 0, -1, 1).astype(matrix.dtype)
    is_locked = 1 - np.abs(sin_down) < 1e-6
    locked_roll = np.arctan2(-down_sign * matrix[:, 0, 1], -down_sign * matrix[:, 0, 2])
    roll = np.where(is_locked, locked_roll, np.arctan2(matrix[:, 2, 1], matrix[:, 2, 2]))
    pitch = np.where(is_locked, -down_sign * (np.pi / 2), -np.arcsin(sin_down))
    yaw = np.where(is_locked, 0, np.arctan2(matrix[:, 1, 0], matrix[:, 0, 0]))
    angles = np.stack([roll, pitch, yaw], axis=1).astype(np.float32)
    angles[np.isnan(matrix).any(axis=(1, 2))] = np.nan
    return angles


def _euler_of_quaternion(
    values: np.ndarray, rows: Rows, _: Sequence[float], *, component_order: Sequence[int]
) -> np.ndarray:
    """Return the angles of unit quaternions, with the entries of the matrix in float32 as the references have them."""
    x, y, z, w = (values[:, component] for component in component_order)
    tx, ty, tz = 2 * x, 2 * y, 2 * z
    entries = [
        [1 - (ty * y + tz * z), ty * x - tz * w, tz * x + ty * w],
        [ty * x + tz * w, 1 - (tx * x + tz * z), tz * y - tx * w],
        [tz * x - ty * w, tz * y + tx * w, 1 - (tx * x + ty * y)],
    ]
    return _euler_of_matrix(np.moveaxis(np.array(entries, np.float64), 2, 0))


def _euler_of_axis_angle(values: np.ndarray, rows: Rows, _: Sequence[float]) -> np.ndarray:
    rotation_vector = values.astype(np.float64)
    rotation_angle = np.sqrt((rotation_vector**2).sum(axis=1, keepdims=True))
    # sin(angle / 2) / angle is 1/2 at 0.
    factor = np.sinc(rotation_angle / (2 * np.pi)) / 2
    quaternion = np.hstack([rotation_vector * factor, np.cos(rotation_angle / 2)])
    return _euler_of_quaternion(quaternion, rows, (), component_order=(0, 1, 2, 3))


OPERATIONS: dict[OperationName, Callable[[np.ndarray, Rows, Sequence[float]], np.ndarray]] = {
    "invert": lambda values, rows, _: 1 - values,
    "clip": lambda values, rows, _: np.clip(values, 0, 1),
    "binarize": _binarize,
    "relative_to_absolute": _relative_to_absolute,
    "fraction": _fraction,
    "scale": lambda values, rows, factor: values * np.float32(factor[0]),
    "per_step": _per_step,
    "reached": lambda values, rows, _: _neighbour(values, rows, 1) - values,
    "since_last": lambda values, rows, _: values - _neighbour(values, rows, -1),
    "turned": _turned,
    "axis_angle": _euler_of_axis_angle,
    "quaternion_xyzw": partial(_euler_of_quaternion, component_order=(0, 1, 2, 3)),
    "quaternion_wxyz": partial(_euler_of_quaternion, component_order=(1, 2, 3, 0)),
    "matrix": lambda values, rows, _: _euler_of_matrix(values.reshape(-1, 3, 3).astype(np.float64)),
}
"""Operations by the names of the registry. ``fraction`` goes from closed, 0, to open, 1."""
