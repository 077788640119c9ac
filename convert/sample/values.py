"""Numbers of a generated episode: the scene's motion in the quantities of a dataset's features."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convert.registry.registry import Part
from convert.sample.scene import Motion, Wave

HORIZON = 10
"""Steps beyond the last for which the motion must be known, for actions that are chunks of the future."""

Values = NDArray[np.float64]

_SPEEDS = {
    "ee_linear_velocity": "ee_position",
    "ee_angular_velocity": "ee_rotation_euler",
    "joint_velocity": "joint_position",
}


class Kinematics:
    """Motion of one episode as end-effector poses, joints and gripper, in any quantity that the registry knows."""

    def __init__(self, motion: Motion, *, steps: int, rng: np.random.Generator, rate: float) -> None:
        """Derive the rest of the robot from the motion of its effector.

        Args:
            motion: Motion of at least ``steps + HORIZON + 1`` steps.
            steps: Length of the episode.
            rng: Source of the joints' geometry and of meaningless values.
            rate: Steps per second; velocities are changes times the rate.
        """
        self._steps, self._rate, self._rng = steps, rate, rng
        pose = np.concatenate([motion.position, motion.angles], axis=1)
        joints = rng.uniform(-1, 1, 7) + pose @ rng.normal(0, 0.9, (6, 7))
        self._absolute: dict[str, Values] = {
            "ee_position": motion.position,
            "ee_rotation_euler": motion.angles,
            "ee_rotation_axis_angle": motion.angles,
            "ee_rotation_quaternion": _quaternions(motion.angles),
            "ee_pose_matrix": _pose_matrices(motion.position, motion.angles).reshape(-1, 16),
            "joint_position": joints,
            "base_position": 0.1 * motion.position,
            "base_rotation": 0.1 * motion.angles,
            "object": pose,
            "other": pose,
        }
        change = {name: np.diff(values, axis=0) for name, values in self._absolute.items()}
        change["ee_rotation_quaternion"] = _quaternions(change["ee_rotation_euler"])
        self._change = change
        self._closedness = motion.closedness[:, None]

    def of_parts(self, path: str, size: int, parts: list[Part], *, ahead: int = 0) -> Values:
        """Return values [T, size] of a feature whose parts the registry names; other columns are meaningless.

        ``ahead`` is the number of steps by which the values are early, as absolute targets are.
        """
        if "future/" in path:
            return self._part(path, size, parts[0], ahead)
        values = self.smooth(size)
        for part in parts:
            values[:, part.select or range(part.dims)] = self._part(path, part.dims, part, ahead)
        return values

    def of_name(self, path: str, size: int, hints: Mapping[str, Any], *, ahead: int = 0) -> Values:
        """Return values [T, size] of a feature unknown to the registry, guessed by its name."""
        if size in (9, 16) and "intrinsic" in path:
            return np.tile(np.array([286.0, 0, 128, 0, 286, 128, 0, 0, 1])[:size], (self._steps, 1))
        for pattern, quantity, kind in hints["guesses"]:
            if re.search(pattern, path):
                values = self._part(path, size, Part(path=path, dims=size, quantity=quantity, kind=kind), ahead)
                break
        else:
            values = self.smooth(size)
        return np.repeat(values[:1], len(values), axis=0) if re.search(hints["constant"], path) else values

    def smooth(self, size: int) -> Values:
        """Return values [T, size] that swing between about -1 and 1."""
        wave = Wave(self._rng, size, amplitude=1.0, rate=(0.03, 0.15))
        return wave.at(np.arange(self._steps, dtype=np.float64))

    def _part(self, path: str, dims: int, part: Part, ahead: int) -> Values:
        if part.quantity == "terminate" or part.kind == "flag":
            return self._flags(dims)
        if part.quantity == "gripper":
            values = self._gripper(part)
        elif part.quantity in _SPEEDS:
            values = self._change[_SPEEDS[part.quantity]] * self._rate
        elif part.quantity not in self._absolute:
            return self.smooth(dims)
        elif part.kind in ("absolute", "target"):
            values = self._absolute[part.quantity]
            if part.quantity in ("other", "object") and dims == 7:
                values = np.concatenate([values[:, :3], self._absolute["ee_rotation_quaternion"]], axis=1)
        else:
            values = self._change[part.quantity] * (self._rate if part.kind == "velocity" else 1)
        width = values.shape[1]
        if "future/" in path and dims % width == 0 and dims // width <= HORIZON:
            values = np.concatenate([values[later : later + self._steps] for later in range(dims // width)], axis=1)
        values = values[ahead : ahead + self._steps, :dims]
        if values.shape[1] < dims:
            values = np.concatenate([values, self.smooth(dims - values.shape[1])], axis=1)
        return values

    def _gripper(self, part: Part) -> Values:
        opened, closed = (part.gripper.open, part.gripper.closed) if part.gripper else (0.0, 1.0)
        if part.kind in ("absolute", "target"):
            return opened + self._closedness * (closed - opened)
        change = np.diff(self._closedness, axis=0)
        return np.where(change > 0.05, closed, np.where(change < -0.05, opened, 0.0))

    def _flags(self, dims: int) -> Values:
        """Return flags as in rt1's ``terminate_episode``: the first is 1 in the last step, the second in all others."""
        flags = np.zeros((self._steps, dims))
        flags[-1:, 0] = 1
        if dims > 1:
            flags[:-1, 1] = 1
        return flags


def _quaternions(angles: Values) -> Values:
    """Return quaternions [T, 4] (x, y, z, w) of roll, pitch and yaw [T, 3]."""
    roll_c, pitch_c, yaw_c = np.cos(angles.T / 2)
    roll_s, pitch_s, yaw_s = np.sin(angles.T / 2)
    return np.stack(
        [
            roll_s * pitch_c * yaw_c - roll_c * pitch_s * yaw_s,
            roll_c * pitch_s * yaw_c + roll_s * pitch_c * yaw_s,
            roll_c * pitch_c * yaw_s - roll_s * pitch_s * yaw_c,
            roll_c * pitch_c * yaw_c + roll_s * pitch_s * yaw_s,
        ],
        axis=1,
    )


def _pose_matrices(position: Values, angles: Values) -> Values:
    """Return homogeneous matrices [T, 4, 4] of positions and roll, pitch, yaw; the last column is the translation."""
    x, y, z, w = _quaternions(angles).T
    rotation = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    matrices = np.zeros((len(angles), 4, 4))
    matrices[:, :3, :3] = np.moveaxis(np.array(rotation), 2, 0)
    matrices[:, :3, 3] = position
    matrices[:, 3, 3] = 1
    return matrices


def embed_text(text: str, size: int) -> NDArray[np.float32]:
    """Return a unit vector that depends only on the text, instead of a sentence encoder's."""
    vector = np.random.default_rng(list(text.encode())).standard_normal(size)
    return (vector / math.sqrt(float(vector @ vector))).astype(np.float32)
