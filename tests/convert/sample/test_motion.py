"""Numbers of generated episodes are a plausible motion in the conventions of the registry."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from convert.registry.dataset import Gripper, Part
from convert.sample.motion import Kinematics, Motion
from convert.sample.source import SampleSource
from tests.fixtures.datasets.sampled import NAMES, REGISTRY

STEPS = 60
VIDEOS = [name for name in NAMES if "unrelated" not in (REGISTRY.dataset(name).warning or "")]
PARTS = [(name, part) for name in VIDEOS for part in (*REGISTRY.dataset(name).action, *REGISTRY.dataset(name).state)]


@cache
def source(name: str) -> SampleSource:
    return SampleSource(REGISTRY.dataset(name))


@cache
def kinematics(name: str) -> Kinematics:
    rng = np.random.default_rng(7)
    return Kinematics(source(name), Motion(rng), num_steps=STEPS, generator=rng)


def values_of(name: str, part: Part) -> np.ndarray:
    """The values [T, dims] of a part in one episode, in metres and radians."""
    size = next(feature.size for feature in source(name).features if feature.path == f"steps/{part.path}")
    return (part.scale or 1) * kinematics(name).of_feature(part.path, size or 1)[:, part.select or range(part.dims)]


def with_quantity(*quantities: str, kinds: tuple[str, ...] = ("absolute", "target")) -> pytest.MarkDecorator:
    actual = [(name, part) for name, part in PARTS if part.quantity in quantities and part.kind in kinds]
    return pytest.mark.parametrize(("name", "part"), actual, ids=[f"{name}-{part.path}" for name, part in actual])


@with_quantity("ee_position", "base_position")
def test_positions_move_smoothly_within_a_metre(name: str, part: Part) -> None:
    values = values_of(name, part)
    assert np.abs(values).max() < 0.5
    assert 0 < np.abs(np.diff(values, axis=0)).max() < 0.05


@with_quantity("ee_rotation_euler", "ee_rotation_axis_angle", "base_rotation")
def test_angles_stay_within_half_a_turn(name: str, part: Part) -> None:
    values = values_of(name, part)
    assert np.abs(values).max() < np.pi
    assert 0 < np.abs(np.diff(values, axis=0)).max() < 0.2


@with_quantity("ee_rotation_quaternion")
def test_quaternions_have_unit_norm_and_do_not_jump(name: str, part: Part) -> None:
    values = values_of(name, part)
    np.testing.assert_allclose(np.linalg.norm(values, axis=1), 1)
    assert np.abs(np.diff(values, axis=0)).max() < 0.1


@with_quantity("ee_pose_matrix")
def test_rotation_matrices_are_orthonormal(name: str, part: Part) -> None:
    poses = values_of(name, part).reshape(STEPS, 4, 4)
    poses = poses.swapaxes(1, 2) if part.order == "column" else poses
    assert (poses[:, 3] == [0, 0, 0, 1]).all()
    rotations = poses[:, :3, :3]
    np.testing.assert_allclose(rotations @ rotations.swapaxes(1, 2), np.tile(np.eye(3), (STEPS, 1, 1)), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(rotations), 1)
    assert np.abs(poses[:, :3, 3]).max() < 0.5


@with_quantity("gripper")
def test_grippers_open_and_close_between_the_values_of_the_registry(name: str, part: Part) -> None:
    values = values_of(name, part)
    ends = sorted((part.gripper.open, part.gripper.closed)) if part.gripper else [0, 1]
    assert [values.min(), values.max()] == ends


@with_quantity("gripper", kinds=("displacement",))
def test_relative_grippers_rest_between_commands_to_open_and_to_close(name: str, part: Part) -> None:
    values = values_of(name, part)[:, 0]
    ends = part.gripper or Gripper(open=1, closed=0)
    assert set(values) == {ends.open, 0, ends.closed}
    assert (values[:-2] == 0)[(values[1:-1] == 0) & (values[2:] == 0)].any()


def pose_of(name: str, quantity: str) -> Part | None:
    """The part of the state with a pose."""
    parts = [part for part in REGISTRY.dataset(name).state if (part.quantity, part.kind) == (quantity, "absolute")]
    return parts[0] if parts else None


def step_of(name: str, part: Part) -> np.ndarray:
    """The displacement [T, dims] of one step in metres or radians that an action means."""
    spec = REGISTRY.dataset(name)
    return values_of(name, part) / (spec.control_frequency or 1 if part.kind == "velocity" else 1)


@pytest.mark.parametrize("kind", ["displacement", "velocity"])
@pytest.mark.parametrize(
    ("change", "pose"),
    [
        ("ee_position", "ee_position"),
        ("ee_linear_velocity", "ee_position"),
        ("ee_rotation_euler", "ee_rotation_euler"),
        ("ee_angular_velocity", "ee_rotation_euler"),
        ("ee_rotation_axis_angle", "ee_rotation_axis_angle"),
    ],
)
def test_displacements_are_differences_of_poses(kind: str, change: str, pose: str) -> None:
    for name in VIDEOS:
        state = pose_of(name, pose)
        actions = [part for part in REGISTRY.dataset(name).action if (part.quantity, part.kind) == (change, kind)]
        # Some datasets name the axes in another order, and some have a part of them.
        if state is not None and actions and actions[0].dims == state.dims and "order" not in (actions[0].note or ""):
            actual, expected = step_of(name, actions[0])[:-1], np.diff(values_of(name, state), axis=0)
            np.testing.assert_allclose(actual, expected, atol=0.02 if "rotation" in pose else 1e-12)


def test_snapshots_are_far_apart() -> None:
    motions = [Motion(np.random.default_rng(2), pace=pace).at(range(20))["position"] for pace in (1.0, 37.0)]
    video, snapshots = (np.abs(np.diff(position, axis=0)).mean() for position in motions)
    assert snapshots > 5 * video
