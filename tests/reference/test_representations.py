"""Random vectors, references and representations against a loop over 4x4 matrices with scipy's rotations."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from stream.batch.vectors import DatasetVector
from stream.sample.relative_plan import plan_relative
from stream.sample.rotations import ROTATIONS

pytest.importorskip("scipy")
from scipy.spatial.transform import Rotation as Turn

COUNT = 1000
"""Configurations that are compared."""
STORED = {"euler_xyz": ("ee_rotation_euler", 3), "rotvec": ("ee_rotation_axis_angle", 3), "quat": ("", 4)}
QUATERNION = "ee_rotation_quaternion"


@dataclass
class Part:
    """An arm's pose, joints, a gripper or a flag: its place in the action and in the state."""

    kind: str
    form: str
    action: list[int]
    state: list[int]


def draw_parts(draw: random.Random) -> tuple[list[Part], DatasetVector, DatasetVector]:
    """Return random parts with their dimensions in the action and, in another order, in the state."""
    kinds = draw.choices(["pose", "joints", "gripper", "flag", "position"], k=draw.randrange(1, 5))
    if kinds.count("position") and kinds.count("pose"):
        kinds = [kind for kind in kinds if kind != "position"]
    columns: dict[str, list[list[tuple[str, str, str]]]] = {"action": [], "state": []}
    parts = []
    for number, kind in enumerate(kinds):
        form = draw.choice(["euler_xyz", "rotvec", "quat"])
        quantity = {"euler_xyz": "ee_rotation_euler", "rotvec": "ee_rotation_axis_angle", "quat": QUATERNION}[form]
        layout = {
            "pose": [("ee_position", 3), (quantity, 4 if form == "quat" else 3)],
            "position": [("ee_position", 3)],
            "joints": [("joint_position", draw.randrange(1, 5))],
            "gripper": [("gripper", 1)],
            "flag": [("terminate", 1)],
        }[kind]
        block = [
            (f"{kind}{number}_{q}_{i}", q, "flag" if kind == "flag" else "target") for q, n in layout for i in range(n)
        ]
        columns["action"].append(block)
        if kind != "flag":
            columns["state"].append([(name, q, "absolute") for name, q, _ in block])
        parts.append(Part(kind, form, [], []))
    order = draw.sample(range(len(columns["state"])), len(columns["state"]))
    dims = {}
    for key, blocks in columns.items():
        ordered = blocks if key == "action" else [blocks[number] for number in order]
        flat = [entry for block in ordered for entry in block]
        names, quantities, dim_kinds = (tuple(entry[field] for entry in flat) for field in range(3))
        dims[key] = DatasetVector(names, dim_kinds, quantities=quantities)
    for part, block in zip(parts, columns["action"], strict=True):
        part.action = [dims["action"].names.index(name) for name, *_ in block]
        part.state = [dims["state"].names.index(name) for name, *_ in block if name in dims["state"].names]
    return parts, dims["action"], dims["state"]


def turn_of(values: np.ndarray, form: str) -> Turn:
    if form == "quat":
        return Turn.from_quat(values)
    return Turn.from_rotvec(values) if form == "rotvec" else Turn.from_euler("xyz", values)


def numbers_of(turn: Turn, form: str) -> np.ndarray:
    matrix = turn.as_matrix()
    quaternion = turn.as_quat()
    return {
        "euler_xyz": turn.as_euler("xyz"),
        "rotvec": turn.as_rotvec(),
        "quat": quaternion,
        "quat_xyzw": quaternion,
        "rot6d_rows": matrix[:2].reshape(6),
        "rot6d_columns": matrix[:, :2].T.reshape(6),
    }[form]


def expected_step(part: Part, now: np.ndarray, then: np.ndarray | None, case: dict[str, Any]) -> list[np.ndarray]:
    """Return positions and a rotation of one step, relative to ``then``."""
    if part.kind in ("flag", "gripper"):
        return [now]
    if part.kind != "pose" or case["poses"] == "componentwise":
        values = now if then is None else now - then
        if part.kind == "pose" and case["rotation"] and case["relative_to"] is None:
            return [values[:3], numbers_of(turn_of(values[3:], part.form), case["rotation"])]
        return [values]
    assert then is not None
    turn, base = turn_of(now[3:], part.form), turn_of(then[3:], part.form)
    position, relative = now[:3] - then[:3], turn * base.inv()
    if case["poses"] == "body":
        position, relative = base.inv().apply(position), base.inv() * turn
    return [position, numbers_of(relative, case["rotation"] or part.form)]


def same(part: Part, actual: np.ndarray, expected: list[np.ndarray], form: str) -> bool:
    """Return whether numbers are equal, rotations by what they are."""
    if len(expected) == 1:
        return bool(np.allclose(actual, expected[0], atol=2e-5))
    position, rotation = actual[:3], actual[3:]
    if form in ("rot6d_rows", "rot6d_columns"):
        is_same = np.allclose(rotation, expected[1], atol=2e-5)
    else:
        short = "quat" if form == "quat_xyzw" else form
        is_same = np.allclose(turn_of(rotation, short).as_matrix(), turn_of(expected[1], short).as_matrix(), atol=2e-5)
    return bool(is_same and np.allclose(position, expected[0], atol=2e-5))


def test_random_representations_are_those_of_a_loop() -> None:
    compared = 0
    for number in range(COUNT):
        draw, generator = random.Random(number), np.random.default_rng(number)
        parts, action_dims, state_dims = draw_parts(draw)
        relative_to = draw.choice([None, "state", "state", "first", "previous"])
        poses = "componentwise" if relative_to is None else draw.choice(["componentwise", "body", "world"])
        if poses == "body" and any(part.kind == "position" for part in parts):
            poses = "world"  # a position without a rotation has no frame of a tool
        rotation = draw.choice([None, *ROTATIONS]) if poses != "componentwise" or relative_to is None else None
        case = {"relative_to": relative_to, "poses": poses, "rotation": rotation}
        if relative_to and poses == "componentwise" and any(p.kind == "pose" and p.form == "quat" for p in parts):
            continue
        relative = plan_relative(action_dims, state_dims, **case, context=f"configuration {number}")  # type: ignore[arg-type]
        steps = draw.randrange(1, 5)
        actions = generator.normal(size=(3, steps, len(action_dims.names))).astype(np.float32)
        states = generator.normal(size=(3, len(state_dims.names))).astype(np.float32)
        mask = np.broadcast_to(generator.random((3, steps, 1)) < 0.9, actions.shape)
        values, valid = relative.forward(actions, mask, states, np.ones(states.shape, bool))
        first = 0
        for part in parts:
            pieces = None
            for row in range(3):
                for step in range(steps):
                    now = actions[row, step, part.action].astype(np.float64)
                    then, then_valid = None, True
                    if relative_to == "first":
                        then, then_valid = actions[row, 0, part.action].astype(np.float64), bool(mask[row, 0, 0])
                    elif relative_to == "previous" and step:
                        then, then_valid = (
                            actions[row, step - 1, part.action].astype(np.float64),
                            bool(mask[row, step - 1, 0]),
                        )
                    elif relative_to and part.state:
                        then = states[row, part.state].astype(np.float64)
                    is_kept = part.kind in ("flag", "gripper")
                    pieces = expected_step(part, now, then, case)
                    size = sum(map(len, pieces))
                    part_values = values[row, step, first : first + size]
                    is_valid = bool(mask[row, step, 0]) and (then_valid or is_kept)
                    assert valid[row, step, first : first + size].tolist() == [is_valid] * size, (number, part)
                    form = rotation or {"quat": "quat_xyzw"}.get(part.form, part.form)
                    expected = pieces if is_valid else [np.zeros(size)]
                    assert same(part, part_values, expected, form), (number, part, part_values, expected)
                    compared += 1
            assert pieces is not None
            first += sum(map(len, pieces))
        assert first == len(relative.names) == values.shape[-1]
        if mask.all():
            reference = actions[:, 0] if relative_to == "first" else states
            back = relative.backward(values.astype(np.float64), reference)
            again, _ = relative.forward(back, mask, states, np.ones(states.shape, bool))
            np.testing.assert_allclose(again, values, atol=2e-4)
    assert compared > COUNT * 5
