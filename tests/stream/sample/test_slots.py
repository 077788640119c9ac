"""Layouts of vectors: which dimension goes to which slot, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Vector
from stream.batch.vectors import DatasetVector
from stream.sample.relative_plan import plan_relative
from stream.sample.slot_layout import Layout, plan_slots, read_layout
from stream.sample.slots import Slots, SlotWriter

ARM = {"first": 0, "length": 7, "quantity": "joint_position", "side": ["right", "single"]}


def vector(*parts: tuple[str, ...]) -> DatasetVector:
    """Return a vector of (names, quantity, kind, unit) each; kind and unit may be left out."""
    names: list[str] = []
    texts: list[tuple[str, ...]] = []
    for dim_names, *described in parts:
        names += dim_names.split()
        texts += [(*described, *("", "target", "")[len(described) :])] * len(dim_names.split())
    quantities, kinds, units = zip(*texts, strict=True)
    return DatasetVector(tuple(names), kinds, None, quantities, units)


def plan(dims: DatasetVector, slots: dict[str, Any], *, size: int = 20, **options: Any) -> tuple[list[int], list[str]]:
    planned, reasons = plan_slots(dims, Layout.model_validate({"size": size, "slots": slots}), **options)
    return list(planned.positions), reasons


def test_an_arm_without_a_side_goes_to_the_slot_of_a_single_arm() -> None:
    slots = {"right": ARM, "left": {**ARM, "first": 10, "side": "left"}}
    one_arm = vector(("j1 j2 j3", "joint_position"))
    two_arms = vector(("left_j1 left_j2", "joint_position"), ("right_j1 right_j2", "joint_position"))
    assert plan(one_arm, slots) == ([0, 1, 2], [])
    assert plan(two_arms, slots) == ([10, 11, 0, 1], [])
    torso = vector(("left_j1", "joint_position"), ("lift", "joint_position"))
    positions, (reason,) = plan(torso, slots)
    assert positions == [10, -1]
    assert reason.startswith("lift (joint_position, target): ")
    assert reason.endswith("the slots of this quantity have other names, or other sides: right, single, left")


def test_names_of_a_slot_choose_the_number_and_order_does_so_for_all_of_them() -> None:
    slots = {"position": {"first": 4, "quantity": "ee_position", "names": ["x", "y", "z"]}}
    assert plan(vector(("arm_z arm_y", "ee_position")), slots) == ([6, 5], [])
    assert plan(vector(("a b c", "ee_position")), slots) == ([4, 5, 6], [])
    positions, reasons = plan(vector(("a b", "ee_position")), slots)
    assert positions == [-1, -1]
    assert reasons == ["a, b (ee_position, target): 2 numbers for slot position, which has 3 x, y, z"]


def test_the_first_slot_that_takes_a_dimension_has_it() -> None:
    slots = {"hand": {**ARM, "first": 12, "length": 2, "match": ["*finger*"]}, "arm": ARM}
    assert plan(vector(("j1 Finger_1 j2", "joint_position")), slots) == ([0, 12, 1], [])


def test_quantities_of_a_slot_follow_in_its_order() -> None:
    slots = {"arm": {**ARM, "length": 4, "quantity": ["joint_position", "gripper"]}}
    assert plan(vector(("g", "gripper"), ("j1 j2", "joint_position")), slots) == ([2, 0, 1], [])


def test_too_many_dimensions_of_a_slot_have_none() -> None:
    positions, (reason,) = plan(
        vector(("a b c", "gripper")), {"grip": {"first": 3, "length": 2, "quantity": "gripper"}}
    )
    assert positions == [-1] * 3 and "3 numbers for slot grip, which has 2" in reason


def test_two_slots_do_not_share_a_number_in_one_dataset() -> None:
    slots = {"arm": ARM, "grip": {"first": 2, "quantity": "gripper"}}
    assert plan(vector(("j1 j2", "joint_position"), ("g", "gripper")), slots) == ([0, 1, 2], [])
    positions, (reason,) = plan(vector(("j1 j2 j3", "joint_position"), ("g", "gripper")), slots)
    assert (
        positions == [0, 1, 2, -1] and reason == "g (gripper, target): numbers of slot grip are taken by another slot"
    )


@pytest.mark.parametrize(
    ("unit", "keep", "reason"),
    [
        ("rad", False, None),
        ("", False, None),
        ("unknown", True, None),
        ("unknown", False, "the unit is unknown, slot arm has rad; take on_unknown_units='keep'"),
        ("deg", True, "the unit is deg, slot arm has rad"),
    ],
)
def test_a_slot_takes_its_own_unit(unit: str, keep: bool, reason: str | None) -> None:
    dims = vector(("j1", "joint_position", "target", unit))
    positions, reasons = plan(dims, {"arm": {**ARM, "unit": "rad"}}, keeps_unknown_units=keep)
    assert positions == [0 if reason is None else -1]
    assert reasons == ([] if reason is None else [f"j1 (joint_position, target): {reason}"])


def test_displacements_do_not_go_where_positions_go_but_relative_positions_do() -> None:
    slots = {"p": {"first": 0, "quantity": "ee_position", "kind": ["absolute", "target"], "names": ["x", "y", "z"]}}
    _, (reason,) = plan(vector(("x y z", "ee_position", "displacement")), slots)
    assert (
        reason == "x, y, z (ee_position, displacement): the slots of this quantity take only absolute and target values"
    )
    action, state = vector(("x y z", "ee_position")), vector(("x y z", "ee_position", "absolute"))
    conversion = plan_relative(action, state, relative_to="state", context="")
    dims = DatasetVector(conversion.names, conversion.kinds, None, conversion.quantities, conversion.units)
    assert set(dims.kinds) == {"displacement"}
    assert plan(dims, slots, conversion=conversion) == ([0, 1, 2], [])


@pytest.mark.parametrize(
    ("quantity", "orders", "reason"),
    [
        ("ee_rotation_rot6d_rows", (), "the layout has rotations as quat_xyzw; take rotation='quat_xyzw'"),
        ("ee_rotation_quaternion", (), None),
        ("ee_rotation_quaternion", ("wxyz",) * 4, "the layout has rotations as quat_xyzw; take rotation='quat_xyzw'"),
    ],
)
def test_a_rotation_needs_the_form_of_the_layout(quantity: str, orders: tuple[str, ...], reason: str | None) -> None:
    names = ("a", "b", "c", "d")
    dims = DatasetVector(names, ("target",) * 4, None, (quantity,) * 4, ("",) * 4, orders)
    positions, reasons = plan(dims, {"turn": {"first": 2, "rotation": "quat_xyzw"}})
    assert positions == ([-1] * 4 if reason else [2, 3, 4, 5])
    assert [line.partition(": ")[2] for line in reasons] == ([reason] if reason else [])


def test_a_reserved_slot_takes_nothing() -> None:
    positions, _ = plan(vector(("a", "other"), ("b", "")), {"reserved": {"first": 0, "length": 5}})
    assert positions == [-1, -1]


def test_a_width_keeps_the_order_and_a_wider_vector_is_named_with_both() -> None:
    dims = vector(("a b c", "other"))
    assert plan_slots(dims, read_layout(5)) == (Slots(5, (0, 1, 2), is_padding=True), [])
    assert plan_slots(dims, read_layout(2))[1] == ["3 numbers: a, b, c"]


@pytest.mark.parametrize(
    ("slots", "says"),
    [
        ("rtd", "slots='rtd'; expected a width such as 32, .* did you mean 'rdt'?"),
        (0, "slots=0"),
        (5000, "slots=5000; at most 4,096"),
        (True, "slots=True; expected a width"),
        (2.5, "slots=2.5; expected a width"),
        ("none.yaml", r"slots: none.yaml: cannot be read \(No such file or directory\)"),
        ({"slots": {}}, "slots: size: Field required"),
        ({"size": 4, "slot": {}}, "slots: unknown key 'slot'; did you mean 'slots'?"),
        (
            {"size": 4, "slots": {"a": {"first": 0, "lenght": 2}}},
            "slots.a: unknown key 'lenght'; did you mean 'length'?",
        ),
        ({"size": 4, "slots": {"a": {"first": 3, "length": 2}}}, "slot a ends at 5, the layout has 4 numbers"),
        ({"size": 9, "slots": {"a": {"first": 0, "quantity": "griper"}}}, "found 'griper'; did you mean 'gripper'?"),
        ({"size": 9, "slots": {"a": {"first": 0, "rotation": "rot6d"}}}, "slots.a.rotation: "),
        ({"size": 9, "slots": {"a": {"first": 0, "side": "middle"}}}, "slots.a.side.0: "),
        ({"size": 9, "slots": {"a": {"first": 0, "rotation": "rotvec", "length": 4}}}, "length 4, and rotation has 3"),
        ({"size": 9, "slots": {"a": {"first": 0, "names": ["x"], "length": 4}}}, "length 4, and names has 1 numbers"),
    ],
)
def test_a_wrong_layout_is_one_error_with_its_fault(slots: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        Vector(slots=slots)


def test_a_file_is_kept_as_its_content(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("size: 9\nslots:\n  grip: {first: 8, quantity: gripper, side: [left, single]}\n")
    mapping = {"size": 9, "slots": {"grip": {"first": 8, "quantity": ["gripper"], "side": ["left", "single"]}}}
    from_file = Vector(slots=str(path))
    assert from_file == Vector(slots=path) == Vector(slots=mapping)
    path.unlink()
    assert Vector.of("action", from_file.to_json()) == from_file
    assert eval(repr(from_file)) == from_file
    assert read_layout(from_file.slots).slots["grip"].first == 8
    path.write_text("size: [")
    with pytest.raises(ArgumentError, match=r"slots: .*mine.yaml: not a YAML file"):
        Vector(slots=path)


def test_vectors_of_several_members_are_written_into_their_slots() -> None:
    for positions in ([(2, 0), (1, -1)], [(0, 1), (0,)]):
        by_member = [Slots(4, each) for each in positions]
        writer = SlotWriter({"state": by_member})
        arrays = {"state": np.full((3, 5, 4), 9, np.float32), "state_mask": np.ones((3, 5, 4), bool)}
        opened = writer.open(arrays)
        assert opened["state"].shape == (3, 5, 2)
        members = np.array([1, 0, 1])
        opened["state"][:] = np.arange(30).reshape(3, 5, 2) + 1
        opened["state_mask"][:] = True
        for row, member in enumerate(members):
            opened["state"][row, :, len(positions[member]) :] = 0
            opened["state_mask"][row, :, len(positions[member]) :] = False
        writer.write(opened, arrays, members)
        for row, member in enumerate(members):
            expected, mask = np.zeros((5, 4)), np.zeros((5, 4), bool)
            for dim, position in enumerate(positions[member]):
                if position >= 0:
                    expected[:, position], mask[:, position] = opened["state"][row, :, dim], True
            np.testing.assert_array_equal(arrays["state"][row], expected)
            np.testing.assert_array_equal(arrays["state_mask"][row], mask)
            taken = by_member[member].take(arrays["state"][row])
            kept = [position >= 0 for position in positions[member]]
            np.testing.assert_array_equal(taken[:, kept], opened["state"][row][:, : len(kept)][:, kept])
