"""Relative vectors of doubtful data: rotations that are none, infinities, orders, matrices, and wrong calls."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from stream.base.errors import ArgumentError
from stream.batch.vectors import DatasetVector
from stream.sample.relative_plan import plan_relative


def describe(*parts: tuple[str, int], order: str = "") -> DatasetVector:
    quantities = tuple(quantity for quantity, count in parts for _ in range(count))
    names = tuple(f"{quantity}_{number}" for number, quantity in enumerate(quantities))
    return DatasetVector(names, ("absolute",) * len(names), quantities=quantities, orders=(order,) * len(names))


def plan(dims: DatasetVector, **options: Any) -> Any:
    return plan_relative(dims, dims, **{"relative_to": "state", "context": "demo", **options})


QUATERNION = describe(("ee_position", 3), ("ee_rotation_quaternion", 4), ("gripper", 1))


@pytest.mark.parametrize("poses", ["body", "world"])
@pytest.mark.parametrize("is_state", [False, True])
def test_a_pose_whose_rotation_is_none_is_masked(poses: str, is_state: bool) -> None:
    """A quaternion of zeros is what a recorder writes where it has no pose."""
    action = np.tile(np.array([1, 2, 3, 0, 0, 0, 1, 0.5], np.float32), (1, 2, 1))
    state = action[:, 0].copy()
    (state if is_state else action[:, 1])[..., 3:7] = 0
    masks = np.ones(action.shape, bool), np.ones(state.shape, bool)
    values, mask = plan(QUATERNION, poses=poses).forward(action, masks[0], state, masks[1])
    assert np.isfinite(values).all()
    assert mask[0, :, :7].any(axis=1).tolist() == [not is_state, False] and mask[..., 7].all()


def test_infinities_are_no_warnings() -> None:
    dims = describe(("joint_position", 1), ("ee_position", 3), ("ee_rotation_euler", 3))
    action = np.zeros((1, 2, 7), np.float32)
    action[0, 1] = np.inf
    state, masks = np.full((1, 7), np.inf, np.float32), (np.ones((1, 2, 7), bool), np.ones((1, 7), bool))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for poses in ("componentwise", "body"):
            values, _ = plan(dims, poses=poses).forward(action, masks[0], state, masks[1])
            assert np.isneginf(values[0, 0, 0]) and np.isnan(values[0, 1, 0])


@pytest.mark.parametrize(
    ("dims", "options", "message"),
    [
        (describe(("ee_pose_matrix", 16)), {}, "ee_pose_matrix_0 is of a matrix, whose numbers cannot be subtracted"),
        (describe(("ee_position", 3)), {"poses": "body"}, "ee_position_0, .* no rotation .* poses='world'"),
        (describe(("ee_rotation_euler", 3), order="XYZ"), {"poses": "body"}, "the order of .* is XYZ; expected xyz"),
        (describe(("ee_rotation_quaternion", 4), order="unknown"), {"poses": "world"}, "is unknown; expected xyzw or"),
        (
            describe(("", 6)),
            {"poses": "body"},
            r"poses='body' finds no rotation, as the quantity of _0, _1, .*'quantity'",
        ),
        (describe(("other", 3)), {"relative_to": None, "rotation": "rotvec"}, "rotation='rotvec' finds no rotation"),
        (describe(("ee_rotation_euler", 3), order="ZYX"), {"relative_to": None, "rotation": "rotvec"}, "is ZYX"),
    ],
)
def test_what_has_no_sound_difference_is_refused(dims: DatasetVector, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        plan(dims, **options)


def test_positions_without_a_rotation_have_a_difference_in_the_base() -> None:
    dims = describe(("ee_position", 3))
    for poses in ("componentwise", "world"):
        conversion = plan(dims, poses=poses)
        state, action = np.ones((1, 3), np.float32), np.full((1, 1, 3), 3, np.float32)
        values, _ = conversion.forward(action, np.ones(action.shape, bool), state, np.ones(state.shape, bool))
        assert values.tolist() == [[[2, 2, 2]]]


@pytest.mark.parametrize(
    ("values", "reference", "message"),
    [
        (np.zeros(3), np.zeros(3), r"values of shape \[3\]; expected \[..., W, 3\]"),
        (np.zeros((4, 2)), np.zeros(3), r"values of shape \[4, 2\]; expected \[..., W, 3\]"),
        (np.zeros((4, 3)), np.zeros(2), r"a state of shape \[2\]; expected \[..., dims\] of at least 3"),
        (np.zeros((4, 3)), np.zeros((2, 3)), r"a state of shape \[2, 3\]; expected .*one state for each chunk"),
    ],
)
def test_a_state_or_chunk_of_another_shape_is_an_error(values: Any, reference: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        plan(describe(("joint_position", 3))).backward(values, reference)


@pytest.mark.parametrize("quantity", ["", "other"])
def test_a_gripper_of_a_lerobot_dataset_stays_absolute_without_a_declaration(quantity: str) -> None:
    dims = DatasetVector(("shoulder_pan.pos", "gripper.pos"), ("absolute",) * 2, quantities=(quantity,) * 2)
    ones = np.ones((1, 1, 2), np.float32)
    values, _ = plan(dims).forward(3 * ones, ones > 0, ones[0], ones[0] > 0)
    assert values.tolist() == [[[2, 3]]]
