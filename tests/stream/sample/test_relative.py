"""Relative chunks against golden values, a loop over 4x4 matrices, and themselves backwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stream.base.errors import ArgumentError
from stream.batch.vectors import DatasetVector
from stream.sample.relative import RelativeVector
from stream.sample.relative_plan import plan_relative
from stream.sample.rotations import ROTATIONS, SIZES, from_matrix, to_matrix


def vector(kind: str, *parts: tuple[str, int]) -> DatasetVector:
    names = tuple(f"{quantity}_{number}" for quantity, size in parts for number in range(size))
    quantities = tuple(quantity for quantity, size in parts for _ in range(size))
    return DatasetVector(names, (kind,) * len(names), quantities=quantities)


POSE = (("ee_position", 3), ("ee_rotation_euler", 3), ("gripper", 1))
JOINTS = (("joint_position", 6), ("gripper", 1))


def plan(parts: Any, state: Any = None, **options: Any) -> RelativeVector:
    options = {"relative_to": "state", "context": "demo: action", **options}
    return plan_relative(vector("target", *parts), vector("absolute", *(state or parts)), **options)


def euler(matrix: np.ndarray) -> np.ndarray:
    return from_matrix(matrix, "euler_xyz")


GOLDEN_0 = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1.0]])
GOLDEN_1 = np.array([[1, 0, 0], [0, 0, -1], [0, 1, 0.0]])


@pytest.mark.parametrize(
    ("poses", "rotation", "expected"),
    [
        ("body", "rot6d_rows", [0, -1, 0, 0, 0, -1, -1, 0, 0]),
        ("body", "rot6d_columns", [0, -1, 0, 0, -1, 0, 0, 0, 1]),
        ("world", "rot6d_rows", [1, 0, 0, 0, 1, 0, 0, 0, -1]),
    ],
)
def test_the_golden_pose(poses: Any, rotation: Any, expected: list[float]) -> None:
    """Poses (Rz 90, [1, 2, 3]) and (Rx 90, [2, 2, 3])."""
    relative = plan(POSE, poses=poses, rotation=rotation)
    state = np.array([[1, 2, 3, *euler(GOLDEN_0), 0.5]], np.float32)
    action = np.array([[[2, 2, 3, *euler(GOLDEN_1), 0.25]]], np.float32)
    values, mask = relative.forward(action, np.ones(action.shape, bool), state, np.ones(state.shape, bool))
    np.testing.assert_allclose(values[0, 0], [*expected, 0.25], atol=1e-6)
    assert mask.all()
    np.testing.assert_allclose(relative.backward(values, state), action, atol=1e-6)


def random_vectors(generator: np.random.Generator, form: Any, *shape: int) -> np.ndarray:
    turns = from_matrix(to_matrix(generator.normal(size=(*shape, 4)), "quat_xyzw"), form)
    return np.concatenate([generator.normal(size=(*shape, 3)), turns, generator.random((*shape, 1))], axis=-1)


@pytest.mark.parametrize("relative_to", ["state", "previous"])
@pytest.mark.parametrize("poses", ["body", "world"])
@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("stored", ["euler_xyz", "quat_xyzw"])
def test_poses_are_those_of_a_loop_over_matrices(relative_to: Any, poses: str, rotation: Any, stored: Any) -> None:
    generator = np.random.default_rng(3)
    quantity = {"euler_xyz": "ee_rotation_euler", "quat_xyzw": "ee_rotation_quaternion"}[stored]
    parts = (("ee_position", 3), (quantity, SIZES[stored]), ("gripper", 1))
    relative = plan(parts, POSE, relative_to=relative_to, poses=poses, rotation=rotation)
    action = random_vectors(generator, stored, 20, 4).astype(np.float32)
    state = random_vectors(generator, "euler_xyz", 20).astype(np.float32)
    values, mask = relative.forward(action, np.ones(action.shape, bool), state, np.ones(state.shape, bool))
    assert mask.all() and values.shape[-1] == 4 + SIZES[rotation] == len(relative.names)
    for row in range(20):
        position, turn = state[row, :3], to_matrix(state[row, 3:6], "euler_xyz")
        for step in range(4):
            next_position, next_turn = action[row, step, :3], to_matrix(action[row, step, 3:-1], stored)
            expected, expected_turn = next_position - position, next_turn @ turn.T
            if poses == "body":
                expected, expected_turn = turn.T @ expected, turn.T @ next_turn
            np.testing.assert_allclose(values[row, step, :3], expected, atol=1e-5)
            np.testing.assert_allclose(to_matrix(values[row, step, 3:-1], rotation), expected_turn, atol=1e-5)
            if relative_to == "previous":
                position, turn = next_position, next_turn
    assert np.array_equal(values[..., -1], action[..., -1])
    back = relative.backward(values.astype(np.float64), state)
    np.testing.assert_allclose(back[..., :3], action[..., :3], atol=1e-5)
    np.testing.assert_allclose(to_matrix(back[..., 3:-1], stored), to_matrix(action[..., 3:-1], stored), atol=1e-5)


def test_joints_are_subtracted_in_float32_as_openpi_and_lerobot_do() -> None:
    generator = np.random.default_rng(0)
    action, state = generator.normal(size=(50, 8, 7)).astype(np.float32), generator.normal(size=(50, 7)).astype("f4")
    values, _ = plan(JOINTS).forward(action, np.ones(action.shape, bool), state, np.ones(state.shape, bool))
    expected = action.copy()
    expected[..., :6] -= state[:, None, :6]
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("relative_to", ["state", "first", "previous"])
def test_what_is_not_there_is_masked_and_0(relative_to: Any) -> None:
    generator = np.random.default_rng(0)
    action, state = generator.normal(size=(3, 4, 7)).astype(np.float32), generator.normal(size=(3, 7)).astype("f4")
    mask, state_mask = np.ones(action.shape, bool), np.ones(state.shape, bool)
    mask[0, 2:], mask[1, 1, 4], state_mask[2, 3] = False, False, False
    relative = plan(POSE, relative_to=relative_to, poses="body", rotation="rot6d_rows")
    values, valid = relative.forward(action, mask, state, state_mask)
    assert not values[~valid].any()
    assert valid[0, :2].all() and not valid[0, 2:].any()
    assert not valid[1, 1, :9].any() and valid[1, 1, 9] and valid[1, 2, 9]
    assert valid[1, 2, :9].all() == (relative_to != "previous")
    assert valid[2, 0, :9].any() == (relative_to == "first") and valid[2, :, 9].all()


def test_two_arms_are_each_relative_to_their_own() -> None:
    parts = (*POSE, *POSE)
    generator = np.random.default_rng(0)
    state = np.concatenate([random_vectors(generator, "euler_xyz", 1) for _ in range(2)], axis=-1).astype(np.float32)
    values, _ = plan(parts, poses="body", rotation="rotvec").forward(
        state[:, None], np.ones((1, 1, 14), bool), state, np.ones((1, 14), bool)
    )
    np.testing.assert_allclose(values[0, 0], [*[0] * 6, state[0, 6], *[0] * 6, state[0, 13]], atol=1e-6)


def test_a_gripper_of_unknown_quantity_stays_absolute_by_its_name() -> None:
    """Columns that a caller chose have no quantities."""
    names = ("arm/joint[0]", "arm/joint[1]", "arm/gripper_position[0]")
    dims = DatasetVector(names, ("absolute",) * 3, quantities=("",) * 3)
    values = np.array([[[1, 2, 0.5]]], np.float32)
    state, masks = np.array([[1, 1, 1]], np.float32), (np.ones((1, 1, 3), bool), np.ones((1, 3), bool))
    for absolute, expected in ((("gripper",), [0, 1, 0.5]), ((), [0, 1, -0.5]), (("joint[0]",), [1, 1, -0.5])):
        conversion = plan_relative(dims, dims, relative_to="state", absolute=absolute, context="demo")
        relative, _ = conversion.forward(values, masks[0], state, masks[1])
        assert relative.ravel().tolist() == expected


def test_a_reference_to_itself_is_nothing_and_a_turned_base_changes_only_world() -> None:
    generator = np.random.default_rng(1)
    base = to_matrix(generator.normal(size=4), "quat_xyzw")
    action, state = random_vectors(generator, "euler_xyz", 5, 3), random_vectors(generator, "euler_xyz", 5)

    def turned(values: np.ndarray) -> np.ndarray:
        turns = euler(base @ to_matrix(values[..., 3:6], "euler_xyz"))
        return np.concatenate([values[..., :3] @ base.T, turns, values[..., 6:]], axis=-1)

    for poses, is_same in (("body", True), ("world", False)):
        relative = plan(POSE, poses=poses, rotation="rot6d_rows")
        results = [
            relative.forward(a, np.ones(a.shape, bool), s, np.ones(s.shape, bool))[0]
            for a, s in ((action, state), (turned(action), turned(state)))
        ]
        assert np.allclose(results[0], results[1], atol=1e-5) == is_same


@pytest.mark.parametrize(
    ("action", "state", "options", "message"),
    [
        (JOINTS, POSE, {}, "no counterpart of joint_position_0 .joint_position. in the state, which has ee_position_0"),
        (POSE, JOINTS, {"poses": "body"}, "no counterpart of ee_position_0|no counterpart of ee_rotation_euler_0"),
        ((("ee_rotation_quaternion", 4),), None, {}, "cannot be subtracted; take poses='body'"),
        (POSE, None, {"poses": "body", "absolute": ["ee_position"]}, "are both absolute, or none of them"),
    ],
)
def test_what_does_not_fit_names_both_sides(action: Any, state: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        plan(action, state, **options)


def test_actions_that_are_relative_already_and_other_units_are_refused() -> None:
    deltas = vector("displacement", *POSE)
    with pytest.raises(ArgumentError, match="ee_position_0 is a displacement, so it is relative already"):
        plan_relative(deltas, vector("absolute", *POSE), relative_to="state", context="demo")
    action, state = vector("target", *JOINTS), vector("absolute", *JOINTS)
    seven = DatasetVector(
        tuple(f"q{number}" for number in range(7)), ("absolute",) * 7, quantities=("joint_position",) * 7
    )
    with pytest.raises(ArgumentError, match=r"no counterpart of joint_position_0 .* in the state, which has q0"):
        plan_relative(action, seven, relative_to="state", context="demo")
    units = [replace(dims, units=(unit,) * 7) for dims, unit in ((action, "deg"), (state, "rad"))]
    with pytest.raises(ArgumentError, match="joint_position_0 is in deg, joint_position_0 of the state in rad"):
        plan_relative(units[0], units[1], relative_to="state", context="demo")
