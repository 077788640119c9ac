"""The smooth motion of one episode, and the numbers that follow from it in every quantity of the registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from convert.registry.dataset import Gripper, Part
from convert.sample.source import SampleSource

Values = NDArray[np.float64]

_AMPLITUDES = np.repeat([0.14, 0.5, 1.0, 0.3], [3, 3, 7, 6])
"""Reach of position, rotation, joints and base, in metres and radians."""
_HORIZON = 10
"""Steps beyond the last for which the motion must be known, for actions that are chunks of the future."""
_SPEEDS = {
    "ee_linear_velocity": "ee_position",
    "ee_angular_velocity": "ee_rotation_axis_angle",
    "joint_velocity": "joint_position",
}
_AXES = {"x": 0, "y": 1, "z": 2, "roll": 0, "pitch": 1, "yaw": 2, "theta": 2}
"""Column of a value by the last word of its name."""


def draw_wave(
    generator: np.random.Generator, num_values: int, *, rate_range: tuple[float, float]
) -> Callable[[Values], Values]:
    """Return a smooth function of steps [T] with values [T, size] that swing between about -1 and 1.

    Each value is the sum of two sinusoids, of ``rate_range`` radians a step (least and most).
    """
    heights = np.array([[0.75], [0.25]]) * generator.uniform(0.7, 1.0, (2, num_values))
    step_rates = generator.uniform(*rate_range, (2, num_values)) * np.array([[1.0], [2.3]])
    phases = generator.uniform(0, 2 * np.pi, (2, num_values))
    return lambda steps: (heights * np.sin(steps[:, None, None] * step_rates + phases)).sum(axis=1)


class Motion:
    """Pose of the end effector, gripper, joints and base as functions of the step."""

    def __init__(self, generator: np.random.Generator, *, pace: float = 1.0) -> None:
        """Draw a motion; a ``pace`` of 1 is video, of 30 and more unrelated snapshots."""
        self._pace, self._wave = pace, draw_wave(generator, 19, rate_range=(0.04, 0.085))
        self._grip_rate, self._grip_phase = generator.uniform((0.3, 0), (0.5, 2 * np.pi))

    def at(self, step_numbers: Sequence[float]) -> dict[str, Values]:
        """Return the motion at steps [T], in metres and radians.

        The keys are ``position`` [T, 3] (x right, y down, z up), ``rotation`` [T, 3] (rotation vectors), ``joints``
        [T, 7], ``base_motion`` [T, 6], and ``closedness`` [T] of the gripper from 0 to 1.
        """
        motion_time = self._pace * np.asarray(step_numbers, np.float64)
        position, rotation, joints, base_motion = np.split(self._wave(motion_time) * _AMPLITUDES, (3, 6, 13), axis=1)
        # The gripper rests at both ends and moves within two or three steps.
        closedness = np.clip(0.5 + 1.2 * np.sin(self._grip_rate * motion_time + self._grip_phase), 0, 1)
        poses = {"position": position, "rotation": rotation}
        return {**poses, "joints": joints, "base": base_motion, "closedness": closedness}


class Kinematics:
    """The motion over the steps of one episode, in any quantity that the registry knows."""

    def __init__(self, source: SampleSource, motion: Motion, *, num_steps: int, generator: np.random.Generator) -> None:
        """Derive all quantities; ``generator`` gives meaningless values."""
        self._parts, self._hints, self._steps, self._rng = source.parts, source.hints, num_steps, generator
        self._rate = source.spec.control_frequency or 10.0
        latent = motion.at(range(num_steps + _HORIZON + 1))
        self._closedness, vectors = latent["closedness"], latent["rotation"]
        rotations = np.array([cv2.Rodrigues(vector)[0] for vector in vectors])
        turn_matrices = rotations[1:] @ rotations[:-1].swapaxes(1, 2)
        step_turns = np.array([cv2.Rodrigues(turn_matrix)[0].ravel() for turn_matrix in turn_matrices])
        matrices = np.tile(np.eye(4), (len(vectors), 1, 1))
        matrices[:, :3, :3], matrices[:, :3, 3] = rotations, latent["position"]
        self._absolute: dict[str, Values] = {
            "ee_position": latent["position"],
            "ee_rotation_euler": _euler_angles(rotations),
            "ee_rotation_axis_angle": vectors,
            "ee_rotation_quaternion": _quaternions(vectors),
            "ee_pose_matrix": matrices.reshape(-1, 16),
            "joint_position": latent["joints"],
            "base_position": latent["base"][:, :3],
            "base_rotation": latent["base"][:, 3:],
        }
        self._change = {name: np.diff(values, axis=0) for name, values in self._absolute.items()}
        self._change |= {"ee_rotation_axis_angle": step_turns, "ee_rotation_quaternion": _quaternions(step_turns)}
        # About the axes of the base; a wrist that turns about one axis alone adds its angles up.
        self._turns = _euler_angles(turn_matrices)

    def of_feature(self, feature_path: str, num_values: int) -> Values:
        """Return values [T, size] of a feature; columns that belong to no part are meaningless."""
        parts = [part for part in self._parts if part.path == feature_path]
        if "future/" in feature_path and parts:
            return np.hstack([self._part(parts[0], ahead) for ahead in range(num_values // parts[0].dims)])
        values, steps_ahead = self._smooth(num_values), int(feature_path in self._hints["next_step"])
        for part in parts:
            values[:, part.select or range(part.dims)] = self._part(part, steps_ahead)
        return values

    def _smooth(self, num_values: int) -> Values:
        return draw_wave(self._rng, num_values, rate_range=(0.03, 0.15))(np.arange(self._steps, dtype=np.float64))

    def _part(self, part: Part, steps_ahead: int) -> Values:
        """Return the values [T, dims] of a part, ``steps_ahead`` steps early, as absolute targets are."""
        quantity = _SPEEDS.get(part.quantity, part.quantity)
        if quantity == "gripper":
            values = self._gripper(part)
        elif quantity == "terminate" or part.kind == "flag":
            values = np.zeros((self._steps, part.dims))
            values[-1:, 0] = values[:-1, 1:2] = 1
        elif quantity in self._absolute:
            is_change = part.kind not in ("absolute", "target") or part.path in self._hints["of_step"]
            unit_size = (part.scale or 1) / (self._rate if part.kind == "velocity" else 1)
            values = _ordered((self._change if is_change else self._absolute)[quantity] / unit_size, part.order)
            if is_change and quantity == "ee_rotation_euler" and part.dims == 3:
                values = self._turns / unit_size
            names, num_values = part.names or [""] * part.dims, values.shape[1]
            axes = [_AXES.get(name.split("_")[-1], position % num_values) for position, name in enumerate(names)]
            values = values[:, axes]
        else:
            values = self._smooth(part.dims)
        return values[steps_ahead:][: self._steps]

    def _gripper(self, part: Part) -> Values:
        gripper_ends = part.gripper or Gripper(open=1, closed=0)
        values = gripper_ends.open + self._closedness * (gripper_ends.closed - gripper_ends.open)
        change = np.diff(self._closedness)
        is_closing, is_opening = change > 0.05, change < -0.05
        if part.kind == "flag":
            return np.stack([is_closing, is_opening], axis=1)[:, : part.dims].astype(np.float64)
        if part.kind == "velocity":
            values = np.diff(values) * self._rate
        elif part.kind == "displacement":
            values = np.select([is_closing, is_opening], [gripper_ends.closed, gripper_ends.open], 0.0)
        return np.tile(values[:, None], part.dims)


def _ordered(values: Values, component_order: str | None) -> Values:
    """Return quaternions (x, y, z, w) or flattened row-major matrices in the order of a part."""
    if component_order == "column":
        return values.reshape(-1, 4, 4).swapaxes(1, 2).reshape(-1, 16)
    return np.roll(values, 1, axis=1) if component_order == "wxyz" else values


def _quaternions(vectors: Values) -> Values:
    """Return unit quaternions [T, 4] (x, y, z, w) of rotation vectors [T, 3]."""
    half_angles = np.linalg.norm(vectors, axis=1, keepdims=True) / 2
    return np.hstack([vectors * np.sinc(half_angles / np.pi) / 2, np.cos(half_angles)])


def _euler_angles(rotations: Values) -> Values:
    """Return roll, pitch and yaw [T, 3] of rotation matrices [T, 3, 3]: first about x, then y, then z of the base."""
    (xx, *_), (yx, *_), (zx, zy, zz) = rotations.transpose(1, 2, 0)
    return np.stack([np.arctan2(zy, zz), np.arctan2(-zx, np.hypot(zy, zz)), np.arctan2(yx, xx)], axis=1)
