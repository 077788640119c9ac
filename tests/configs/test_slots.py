"""The packaged layouts have the numbers of their models."""

from __future__ import annotations

from typing import Any

import pytest

from stream.batch.vectors import DatasetVector
from stream.sample.relative_plan import ROTATION_QUANTITIES
from stream.sample.rotations import NAMES, Rotation
from stream.sample.slot_layout import packaged_layouts, plan_slots, read_layout

SIZES = {"being_h": 200, "gr00t": 132, "pi": 32, "rdt": 128}


def test_all_layouts_are_known_and_have_their_size_and_a_source() -> None:
    assert {name: read_layout(name).size for name in packaged_layouts()} == SIZES
    assert all("[" in read_layout(name).description for name in SIZES)


def dims(*parts: tuple[str, str, str]) -> DatasetVector:
    """Return a vector of (names, quantity, kind)."""
    flat = [(name, quantity, kind) for names, quantity, kind in parts for name in names.split()]
    names, quantities, kinds = zip(*flat, strict=True)
    return DatasetVector(names, kinds, None, quantities)


def pose(side: str, rotation: Rotation) -> list[tuple[str, str, str]]:
    quantity = next(name for name, form in ROTATION_QUANTITIES.items() if form == rotation)
    turn = " ".join(f"{side}{name}" for name in NAMES[rotation])
    return [(f"{side}x {side}y {side}z", "ee_position", "target"), (turn, quantity, "target")]


def joints(count: int, side: str = "") -> tuple[str, str, str]:
    return (" ".join(f"{side}joint_{number}" for number in range(count)), "joint_position", "target")


LEFT, RIGHT = "left_", "right_"
GRIPPERS = [(f"{side}gripper", "gripper", "target") for side in (LEFT, RIGHT)]
GRIP = ("gripper", "gripper", "target")
CASES: list[tuple[str, list[Any], list[int]]] = [
    # RDT, configs/state_vec.py: an arm without a side is an alias of the right one.
    ("rdt", [joints(7), GRIP], [*range(7), 10]),
    ("rdt", [joints(6, LEFT), joints(6, RIGHT), *GRIPPERS], [*range(50, 56), *range(6), 60, 10]),
    ("rdt", [*pose("", "rot6d_columns"), GRIP], [*range(30, 39), 10]),
    ("rdt", [*pose(LEFT, "rot6d_columns"), *pose(RIGHT, "rot6d_columns")], [*range(80, 89), *range(30, 39)]),
    (
        "rdt",
        [("x y z", "ee_linear_velocity", "velocity"), ("roll pitch yaw", "ee_angular_velocity", "velocity")],
        [*range(39, 45)],
    ),
    (
        "rdt",
        [("left_a left_b", "joint_velocity", "velocity"), ("right_a right_b", "joint_velocity", "velocity")],
        [65, 66, 15, 16],
    ),
    ("rdt", [("y x", "base_position", "velocity"), ("turn", "base_rotation", "velocity")], [101, 100, 102]),
    ("rdt", [("left_a", "gripper", "velocity"), ("right_a", "gripper", "velocity")], [75, 25]),
    # openpi, docs/norm_stats.md: the gripper of one arm follows its joints.
    ("pi", [joints(6), GRIP], [*range(7)]),
    ("pi", [GRIP, joints(7)], [7, *range(7)]),
    ("pi", [joints(6, LEFT), GRIPPERS[0], joints(6, RIGHT), GRIPPERS[1]], [*range(14)]),
    ("pi", [joints(6, RIGHT), *GRIPPERS, joints(6, LEFT)], [*range(7, 13), 6, 13, *range(6)]),
    ("pi", [joints(6, LEFT), ("x y", "base_position", "velocity")], [*range(6), 14, 15]),
    # Being-H, docs/unified_action_space.md.
    ("being_h", [*pose("", "rotvec"), GRIP], [*range(6), 18]),
    ("being_h", [*pose(LEFT, "rotvec"), *pose(RIGHT, "rotvec"), *GRIPPERS], [*range(9, 15), *range(6), 19, 18]),
    ("being_h", [joints(7, LEFT), joints(7, RIGHT)], [*range(57, 64), *range(50, 57)]),
    (
        "being_h",
        [joints(1, LEFT), ("left_hand_thumb right_hand_1 head_yaw waist_yaw torso", "joint_position", "target")],
        [57, 32, 20, 64, 66, 67],
    ),
    ("gr00t", [joints(7), GRIP, ("done", "terminate", "flag")], [*range(9)]),
]


@pytest.mark.parametrize(("name", "parts", "positions"), CASES)
def test_dimensions_are_where_the_model_has_them(name: str, parts: list[Any], positions: list[int]) -> None:
    slots, reasons = plan_slots(dims(*parts), read_layout(name))
    assert (reasons, list(slots.positions), slots.size) == ([], positions, SIZES[name])
