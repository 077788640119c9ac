"""The numbers of a generated episode: what the scene's motion is in the words of a dataset's features."""

from __future__ import annotations

import math
import re
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from convert.registry.registry import Part
from convert.sample.scene import Motion, Wave

HORIZON = 10
"""How many steps beyond the last the motion must be known, for actions that are chunks of the future."""

Values = NDArray[np.float64]

_GUESSES: tuple[tuple[str, str, Literal["delta", "velocity", "absolute"]], ...] = (
    (r"terminate", "terminate", "absolute"),
    (r"rel_actions", "other", "delta"),
    (r"action/actions", "other", "absolute"),
    (r"extrinsic|cam2world|ee_states", "ee_pose_matrix", "absolute"),
    (r"world_vector|xyz_residual|displacement_vector", "ee_position", "delta"),
    (r"rotation_delta|angle_residual|vertical_rotation", "ee_rotation_euler", "delta"),
    (r"gripper_velocity", "gripper", "delta"),
    (r"joint\w*_vel|state_velocity", "joint_position", "velocity"),
    (r"joint", "joint_position", "absolute"),
    (r"gripper|closed|_close$", "gripper", "absolute"),
    (r"cartesian_vel|eef_vel", "other", "velocity"),
    (r"cartesian|xyz|translation|pose|position|location", "other", "absolute"),
    (r"axis_angle|rotation|orientation", "ee_rotation_euler", "absolute"),
    (r"action", "other", "delta"),
)
_CONSTANT = re.compile(
    r"bounds|intrinsic|extrinsic|cam2world|base_pose$|_box$|initial_pose|final_pose|orientation_start|_valid|_index$|_id$"
)


class Kinematics:
    """One episode's motion as end-effector poses, joints and gripper, in any quantity that the registry knows."""

    def __init__(self, motion: Motion, *, steps: int, rng: np.random.Generator, rate: float) -> None:
        """Derive the rest of the robot from the motion of its effector.

        Args:
            motion: of at least ``steps + HORIZON + 1`` steps.
            steps: of the episode.
            rng: draws the joints' geometry and what has no meaning.
            rate: steps per second; velocities are changes times it.
        """
        self._steps = steps
        self._rate = rate
        self._rng = rng
        pose = np.concatenate([motion.position, motion.angles], axis=1)
        joints = rng.uniform(-1, 1, 7) + pose @ rng.normal(0, 0.9, (6, 7))
        self._absolute: dict[str, Values] = {
            "ee_position": motion.position,
            "ee_rotation_euler": motion.angles,
            "ee_rotation_axis_angle": motion.angles,
            "ee_rotation_quaternion": quaternions(motion.angles),
            "ee_pose_matrix": pose_matrices(motion.position, motion.angles).reshape(-1, 16),
            "joint_position": joints,
            "base_position": 0.1 * motion.position,
            "base_rotation": 0.1 * motion.angles,
            "object": pose,
            "other": pose,
        }
        change = {name: np.diff(values, axis=0) for name, values in self._absolute.items()}
        change["ee_rotation_quaternion"] = quaternions(motion.spin)
        self._change = change
        self._speed = {
            "ee_linear_velocity": change["ee_position"] * rate,
            "ee_angular_velocity": change["ee_rotation_euler"] * rate,
            "joint_velocity": change["joint_position"] * rate,
        }
        self._closedness = motion.closedness[:, None]

    def of_parts(self, path: str, size: int, parts: list[Part], *, ahead: int = 0) -> Values:
        """Values [T, size] of a feature of which the registry names parts; the rest is smooth and meaningless.

        ``ahead``: by how many steps the values are early, as absolute targets are.
        """
        if "future/" in path:
            return self._part(path, size, parts[0], ahead)
        values = self.smooth(size)
        for part in parts:
            values[:, part.select or range(part.dims)] = self._part(path, part.dims, part, ahead)
        return values

    def of_name(self, path: str, size: int, *, ahead: int = 0) -> Values:
        """Values [T, size] of a feature that the registry does not know, by what its name says."""
        if size in (9, 16) and re.search(r"intrinsic", path):
            return np.tile(np.array([286.0, 0, 128, 0, 286, 128, 0, 0, 1])[:size], (self._steps, 1))
        for pattern, quantity, mode in _GUESSES:
            if re.search(pattern, path):
                values = self._part(path, size, Part(path=path, dims=size, quantity=quantity, mode=mode), ahead)
                break
        else:
            values = self.smooth(size)
        return np.repeat(values[:1], len(values), axis=0) if _CONSTANT.search(path) else values

    def smooth(self, size: int) -> Values:
        """Values [T, size] that swing between about -1 and 1."""
        wave = Wave.draw(self._rng, size, amplitude=1.0, rate=(0.03, 0.15))
        return wave.at(np.arange(self._steps, dtype=np.float64))

    def _part(self, path: str, dims: int, part: Part, ahead: int) -> Values:
        if part.quantity == "terminate" or part.mode == "flag":
            return self._flags(dims)
        if part.quantity == "gripper":
            values = self._gripper(part)
        elif part.quantity in self._speed:
            values = self._speed[part.quantity]
        elif part.quantity not in self._absolute:
            return self.smooth(dims)
        elif part.mode == "absolute":
            values = self._absolute[part.quantity]
            if part.quantity in ("other", "object") and dims == 7:
                values = np.concatenate([values[:, :3], self._absolute["ee_rotation_quaternion"]], axis=1)
        else:
            values = self._change[part.quantity] * (self._rate if part.mode == "velocity" else 1)
        width = values.shape[1]
        if "future/" in path and dims % width == 0 and dims // width <= HORIZON:
            values = np.concatenate([values[later : later + self._steps] for later in range(dims // width)], axis=1)
        values = values[ahead : ahead + self._steps, :dims]
        if values.shape[1] < dims:
            values = np.concatenate([values, self.smooth(dims - values.shape[1])], axis=1)
        return values

    def _gripper(self, part: Part) -> Values:
        opened, closed = (part.gripper.open, part.gripper.closed) if part.gripper else (0.0, 1.0)
        if part.mode == "absolute":
            return opened + self._closedness * (closed - opened)
        change = np.diff(self._closedness, axis=0)
        return np.where(change > 0.05, closed, np.where(change < -0.05, opened, 0.0))

    def _flags(self, dims: int) -> Values:
        """The first is set in the last step, the second in all others, as rt1's ``terminate_episode`` has it."""
        flags = np.zeros((self._steps, dims))
        flags[-1:, 0] = 1
        if dims > 1:
            flags[:-1, 1] = 1
        return flags


def quaternions(angles: Values) -> Values:
    """Quaternions [T, 4] (x, y, z, w) of roll, pitch and yaw [T, 3]."""
    cosines, sines = np.cos(angles.T / 2), np.sin(angles.T / 2)
    (roll_c, pitch_c, yaw_c), (roll_s, pitch_s, yaw_s) = cosines, sines
    return np.stack(
        [
            roll_s * pitch_c * yaw_c - roll_c * pitch_s * yaw_s,
            roll_c * pitch_s * yaw_c + roll_s * pitch_c * yaw_s,
            roll_c * pitch_c * yaw_s - roll_s * pitch_s * yaw_c,
            roll_c * pitch_c * yaw_c + roll_s * pitch_s * yaw_s,
        ],
        axis=1,
    )


def pose_matrices(position: Values, angles: Values) -> Values:
    """Homogeneous [T, 4, 4] of positions and roll, pitch, yaw; the translation is in the last column."""
    x, y, z, w = quaternions(angles).T
    matrices = np.zeros((len(angles), 4, 4))
    matrices[:, :3, :3] = np.stack(
        [
            np.stack([1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)], axis=1),
            np.stack([2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)], axis=1),
            np.stack([2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)], axis=1),
        ],
        axis=1,
    )
    matrices[:, :3, 3] = position
    matrices[:, 3, 3] = 1
    return matrices


def embed_text(text: str, size: int) -> NDArray[np.float32]:
    """A unit vector that only depends on the text, in the place of a sentence encoder's."""
    vector = np.random.default_rng(list(text.encode())).standard_normal(size)
    return (vector / math.sqrt(float(vector @ vector))).astype(np.float32)
