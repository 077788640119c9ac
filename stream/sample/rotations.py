"""Rotations as Euler angles, rotation vectors, quaternions, six numbers of a matrix, or matrices; only numpy."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

Rotation = Literal["euler_xyz", "rotvec", "quat_xyzw", "rot6d_rows", "rot6d_columns"]
ROTATIONS: tuple[Rotation, ...] = get_args(Rotation)
Stored = Literal["euler_xyz", "rotvec", "quat_xyzw", "rot6d_rows", "rot6d_columns", "quat_wxyz", "matrix"]
"""Form of a rotation in a dataset."""
SIZES: dict[Stored, int] = {
    **{"euler_xyz": 3, "rotvec": 3, "quat_xyzw": 4, "quat_wxyz": 4},
    **{"rot6d_rows": 6, "rot6d_columns": 6, "matrix": 9},
}
NAMES: dict[Stored, tuple[str, ...]] = {
    "euler_xyz": ("roll", "pitch", "yaw"),
    "rotvec": ("rx", "ry", "rz"),
    "quat_xyzw": ("qx", "qy", "qz", "qw"),
    "rot6d_rows": ("r00", "r01", "r02", "r10", "r11", "r12"),
    "rot6d_columns": ("r00", "r10", "r20", "r01", "r11", "r21"),
}
"""Names of the dimensions of each form; rRC is the entry in row R and column C."""
_LOCKED = 1e-12
"""Distance of |sin(pitch)| from 1 below which roll and yaw turn about one axis."""


def to_matrix(values: np.ndarray, rotation: Stored) -> np.ndarray:
    """Return rotation matrices, float64 [..., 3, 3].

    Angles are roll, pitch, yaw about fixed axes (``xyz`` of scipy). Quaternions of any length above 0 and either sign
    are the same rotation. Six numbers are made orthogonal by Gram and Schmidt, the first three first.

    Args:
        values: float [..., n].
        rotation: Form of the values; ``rot6d_rows`` are the first two rows of the matrix, ``rot6d_columns`` the first
            two columns.

    >>> (to_matrix(np.array([0.0, 0.0, np.pi / 2]), "euler_xyz").round(3) + 0).tolist()
    [[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    values = np.asarray(values, np.float64)
    if rotation == "matrix":
        return values.reshape(*values.shape[:-1], 3, 3)
    if rotation == "euler_xyz":
        return _matrix_of_euler(values)
    if rotation == "rotvec":
        angle = np.linalg.norm(values, axis=-1, keepdims=True)
        # sin(angle / 2) / angle is 1/2 at 0.
        vector = values * np.sinc(angle / (2 * np.pi)) / 2
        return _matrix_of_quaternion(np.concatenate([vector, np.cos(angle / 2)], axis=-1))
    if rotation in ("quat_xyzw", "quat_wxyz"):
        return _matrix_of_quaternion(values if rotation == "quat_xyzw" else np.roll(values, -1, axis=-1))
    vectors = values.reshape(*values.shape[:-1], 2, 3)
    first = _unit(vectors[..., 0, :])
    second = _unit(vectors[..., 1, :] - (first * vectors[..., 1, :]).sum(axis=-1, keepdims=True) * first)
    matrix = np.stack([first, second, np.cross(first, second)], axis=-2)
    return matrix if rotation == "rot6d_rows" else np.swapaxes(matrix, -1, -2)


def from_matrix(matrices: np.ndarray, rotation: Stored) -> np.ndarray:
    """Return rotations in a form, float64 [..., n]; the inverse of ``to_matrix``.

    Quaternions have w >= 0; rotation vectors are at most pi long. In gimbal lock yaw is 0.

    Args:
        matrices: Rotation matrices, float64 [..., 3, 3].
        rotation: Form of the result.

    >>> from_matrix(np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]]), "rot6d_columns").tolist()
    [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    """
    matrices = np.asarray(matrices, np.float64)
    shape = matrices.shape[:-2]
    if rotation == "matrix":
        return matrices.reshape(*shape, 9)
    if rotation == "rot6d_rows":
        return matrices[..., :2, :].reshape(*shape, 6)
    if rotation == "rot6d_columns":
        return np.swapaxes(matrices[..., :, :2], -1, -2).reshape(*shape, 6)
    if rotation == "euler_xyz":
        return _euler_of_matrix(matrices)
    quaternion = _quaternion_of_matrix(matrices)
    if rotation == "rotvec":
        vector, real = quaternion[..., :3], quaternion[..., 3:]
        length = np.linalg.norm(vector, axis=-1, keepdims=True)
        # The angle over the length is 2 at 0.
        ratio = np.where(length < 1e-12, 2.0, 2 * np.arctan2(length, real) / np.where(length == 0, 1, length))
        return vector * ratio
    return quaternion if rotation == "quat_xyzw" else np.roll(quaternion, 1, axis=-1)


def inverse(matrices: np.ndarray) -> np.ndarray:
    """Return the inverse of rotation matrices [..., 3, 3]."""
    return np.swapaxes(matrices, -1, -2)


def _unit(vectors: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _matrix_of_euler(angles: np.ndarray) -> np.ndarray:
    (cx, cy, cz), (sx, sy, sz) = (np.moveaxis(function(angles), -1, 0) for function in (np.cos, np.sin))
    rows = [
        [cy * cz, sx * sy * cz - cx * sz, cx * sy * cz + sx * sz],
        [cy * sz, sx * sy * sz + cx * cz, cx * sy * sz - sx * cz],
        [-sy, sx * cy, cx * cy],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def _euler_of_matrix(matrix: np.ndarray) -> np.ndarray:
    sin_pitch = np.clip(-matrix[..., 2, 0], -1, 1)
    is_locked = 1 - np.abs(sin_pitch) < _LOCKED
    # The cosine of pitch from two entries is exact near the lock, where arcsin is not.
    pitch = np.arctan2(sin_pitch, np.hypot(matrix[..., 0, 0], matrix[..., 1, 0]))
    sign = np.where(sin_pitch < 0, -1.0, 1.0)
    locked_roll = np.arctan2(sign * matrix[..., 0, 1], sign * matrix[..., 0, 2])
    roll = np.where(is_locked, locked_roll, np.arctan2(matrix[..., 2, 1], matrix[..., 2, 2]))
    yaw = np.where(is_locked, 0.0, np.arctan2(matrix[..., 1, 0], matrix[..., 0, 0]))
    return np.stack([roll, pitch, yaw], axis=-1)


def _matrix_of_quaternion(quaternion: np.ndarray) -> np.ndarray:
    x, y, z, w = np.moveaxis(_unit(quaternion), -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def _quaternion_of_matrix(matrix: np.ndarray) -> np.ndarray:
    """Return unit quaternions x, y, z, w, with w >= 0.

    Four times the outer product of the quaternion with itself is made of the entries; its row with the largest diagonal
    is the quaternion up to its length, exact also at half turns.
    """
    m = matrix
    xy, xz, yz = m[..., 0, 1] + m[..., 1, 0], m[..., 0, 2] + m[..., 2, 0], m[..., 1, 2] + m[..., 2, 1]
    xw, yw, zw = m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]
    a, b, c = m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]
    rows = [
        [1 + a - b - c, xy, xz, xw],
        [xy, 1 - a + b - c, yz, yw],
        [xz, yz, 1 - a - b + c, zw],
        [xw, yw, zw, 1 + a + b + c],
    ]
    product = np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
    largest = np.argmax(np.diagonal(product, axis1=-2, axis2=-1), axis=-1)
    quaternion = _unit(np.take_along_axis(product, largest[..., None, None], axis=-2)[..., 0, :])
    return np.where(quaternion[..., 3:] < 0, -quaternion, quaternion)
