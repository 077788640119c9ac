"""Random bodies, representations, layouts, paddings and groups of statistics against loops with numpy and scipy."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Vector, make_loader
from tests.stream.index_root import read_table, write_dataset

pytest.importorskip("scipy")
from scipy.spatial.transform import Rotation as Turn

SHORT, LONG = 40, 1000
"""Configurations that `make test` and `make test-all` compare."""
ROBOTS = {"a": "franka", "b": "franka", "c": "ur5", "d": None}
DIMS = 40
"""Columns of the action and of the state of each dataset."""
QUANTITIES = {
    "euler_xyz": "ee_rotation_euler",
    "rotvec": "ee_rotation_axis_angle",
    "quat_xyzw": "ee_rotation_quaternion",
}
SIZES = {"euler_xyz": 3, "rotvec": 3, "quat_xyzw": 4, "rot6d_rows": 6, "rot6d_columns": 6}
JOINTS = 6
"""Most joints of an arm."""


@dataclass
class Part:
    """A pose, joints, a gripper or a flag of one side: its columns of the action and of the state."""

    kind: str
    side: str
    form: str
    names: list[str]
    quantities: list[str]
    action: list[int]
    state: list[int]

    @property
    def role(self) -> str:
        return "left" if self.side == "left_" else "right"


@dataclass
class Case:
    """Arguments of a loader, and what they mean."""

    parts: dict[str, list[Part]]
    vector: dict[str, Any]
    state_order: dict[str, list[Part]]
    normalize: dict[str, Any]
    weights: dict[str, int]
    layout: Any
    places: dict[tuple[str, str], int] = field(default_factory=dict)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bodies")
    lengths = {"a": [[5, 2], [4]], "b": [[6, 3]], "c": [[4, 4], [3]], "d": [[7]]}
    for name, shards in lengths.items():
        folder = write_dataset(root, name, {"train": shards}, offset=1, action=["target"] * DIMS, state=DIMS)
        manifest = folder / "dataset.json"
        content = json.loads(manifest.read_text())
        content["spec"]["robot"], content["checksum"] = ROBOTS[name], "0" * 64
        unsigned = json.dumps(content).encode()
        manifest.write_bytes(unsigned.replace(b"0" * 64, hashlib.sha256(unsigned).hexdigest().encode()))
    return root


def draw_parts(draw: random.Random, form: str | None) -> list[Part]:
    columns = {key: draw.sample(range(DIMS), DIMS) for key in ("action", "state")}
    parts = []
    for side in draw.choice([[""], ["left_", "right_"], ["right_", "left_"], ["left_"]]):
        for kind in draw.sample(["pose", "joints", "gripper", "flag"], draw.randrange(1, 5)):
            own_form, count = form or draw.choice(list(QUANTITIES)), draw.randrange(1, JOINTS + 1)
            names, quantities = {
                "pose": (
                    ["x", "y", "z", *(f"turn{number}" for number in range(SIZES[own_form]))],
                    ["ee_position"] * 3 + [QUANTITIES[own_form]] * SIZES[own_form],
                ),
                "joints": ([f"joint{number}" for number in range(count)], ["joint_position"] * count),
                "gripper": (["gripper"], ["gripper"]),
                "flag": (["flag"], ["terminate"]),
            }[kind]
            size = len(names)
            taken = {key: [columns[key].pop() for _ in range(size)] for key in columns}
            parts.append(Part(kind, side, own_form, [side + name for name in names], quantities, **taken))
    draw.shuffle(parts)
    return parts


def draw_case(number: int) -> Case:
    draw = random.Random(number)
    relative_to = draw.choice([None, None, "state", "state", "first", "previous"])
    poses = draw.choice(["componentwise", "body", "world"]) if relative_to else "componentwise"
    rotation = draw.choice([None, *SIZES]) if poses != "componentwise" or relative_to is None else None
    form = draw.choice(["euler_xyz", "rotvec"]) if relative_to and poses == "componentwise" else None
    names = draw.sample(list(ROBOTS), draw.randrange(1, 5))
    parts = {name: draw_parts(draw, form) for name in names}
    if draw.random() < 0.3:  # the same body in all datasets
        parts = dict.fromkeys(names, parts[names[0]])
    converts = bool(relative_to or rotation)
    vector = {
        **{"relative_to": relative_to, "poses": poses, "rotation": rotation, "steps": draw.randrange(1, 5)},
        **{"start": draw.choice([0, 0, -1]), "per_step": converts and draw.random() < 0.3},
    }
    per = draw.choice(["dataset", "robot", "control", "mixture"])
    methods = ["mean_std", "min_max"] if per == "mixture" else ["mean_std", "min_max", "q01_q99"]
    normalize: dict[str, Any] = {
        **{"method": draw.choice(methods), "per": per, "leave": [], "clip": draw.choice([False, None])},
        "tails": draw.choice(["real", "complete", "repeat"]) if converts else "real",
    }
    state_order = {name: draw.sample(parts[name], len(parts[name])) for name in names}
    weights = {name: draw.choice([1, 2, 5]) for name in names}
    case = Case(parts, vector, state_order, normalize, weights, None)
    if draw.random() < 0.3:
        case.layout = max(sum(map(size_of(case), own)) for own in parts.values()) + draw.randrange(4)
    else:
        draw_layout(draw, case)
    return case


def size_of(case: Case) -> Any:
    """Return a function that gives the dimensions of a part in batches."""

    def size(part: Part) -> int:
        return 3 + SIZES[case.vector["rotation"] or part.form] if part.kind == "pose" else len(part.names)

    return size


def draw_layout(draw: random.Random, case: Case) -> None:
    """Draw a layout with slots in any order and with gaps; some are missing."""
    rotation = case.vector["rotation"]
    forms = [rotation] if rotation else list(QUANTITIES)
    slots: dict[str, dict[str, Any]] = {}
    for role, side in (("left", "left"), ("right", ["right", "single"])):
        contents: dict[str, dict[str, Any]] = {
            "position": {"quantity": "ee_position", "length": 3} | draw.choice([{}, {"names": ["x", "y", "z"]}]),
            "joints": {"quantity": ["joint_position"], "length": JOINTS},
            "gripper": {"quantity": "gripper"},
            "flag": {"match": [f"{role}_flag", *(["flag"] if role == "right" else [])]},
            **{form: {"rotation": form} for form in forms},
        }
        for kind, content in contents.items():
            slots[f"{role} {kind}"] = {**content} if kind == "flag" else {**content, "side": side}
    first = draw.randrange(3)
    chosen: dict[str, Any] = {}
    for name in draw.sample(list(slots), len(slots)):
        if draw.random() < 0.12:
            continue
        role, kind = name.split()
        case.places[role, kind] = first
        chosen[name] = {**slots[name], "first": first}
        first += slots[name].get("length") or SIZES.get(kind, 1)
        first += draw.choice([0, 0, 2])
    case.layout = {"size": first + draw.randrange(3) + 1, "slots": chosen}


def positions_of(case: Case, name: str) -> list[int]:
    """Return the position of each dimension of a dataset in its layout, -1 for none."""
    size = size_of(case)
    if isinstance(case.layout, int):
        return list(range(sum(map(size, case.parts[name]))))
    positions = []
    for part in case.parts[name]:
        pieces = [(part.kind, size(part))]
        if part.kind == "pose":
            pieces = [("position", 3), (case.vector["rotation"] or part.form, size(part) - 3)]
        for kind, count in pieces:
            first = case.places.get((part.role, kind))
            positions += [-1] * count if first is None else list(range(first, first + count))
    return positions


def turn_of(values: np.ndarray, form: str) -> Turn:
    flat = values.reshape(-1, values.shape[-1])
    if form == "quat_xyzw":
        return Turn.from_quat(flat)
    return Turn.from_rotvec(flat) if form == "rotvec" else Turn.from_euler("xyz", flat)


def numbers_of(turn: Turn, form: str) -> np.ndarray:
    if form == "rot6d_rows":
        return turn.as_matrix()[:, :2].reshape(-1, 6)
    if form == "rot6d_columns":
        return turn.as_matrix()[:, :, :2].transpose(0, 2, 1).reshape(-1, 6)
    if form == "quat_xyzw":
        return turn.as_quat(canonical=True)
    return turn.as_rotvec() if form == "rotvec" else turn.as_euler("xyz")


def represent(case: Case, part: Part, window: np.ndarray, inside: np.ndarray, state: np.ndarray) -> Any:
    """Return a part of windows [n, W, size] as the batch has it, and the mask of its steps [n, W]."""
    vector = case.vector
    relative_to, poses, rotation = vector["relative_to"], vector["poses"], vector["rotation"]
    then, valid = None, inside
    if relative_to and part.kind in ("pose", "joints"):
        if relative_to == "first":
            then, then_valid = np.repeat(window[:, :1], window.shape[1], axis=1), inside[:, :1]
        elif relative_to == "state":
            then, then_valid = np.repeat(state[:, None], window.shape[1], axis=1), np.array(True)
        else:
            then = np.concatenate([state[:, None], window[:, :-1]], axis=1)
            then_valid = np.concatenate([np.ones((len(window), 1), bool), inside[:, :-1]], axis=1)
        valid = inside & then_valid
    is_composed = part.kind == "pose" and (rotation is not None if relative_to is None else poses != "componentwise")
    if not is_composed:
        return (window if then is None else window - then), valid
    turn, position = turn_of(window[..., 3:], part.form), window[..., :3]
    if then is not None:
        base = turn_of(then[..., 3:], part.form)
        position = (position - then[..., :3]).reshape(-1, 3)
        if poses == "body":
            position, turn = base.inv().apply(position), base.inv() * turn
        else:
            turn = turn * base.inv()
        position = position.reshape(*window.shape[:2], 3)
    numbers = numbers_of(turn, rotation or part.form)
    return np.concatenate([position, numbers.reshape(*window.shape[:2], -1)], axis=2), valid


def windows_of(case: Case, steps: dict[str, np.ndarray], name: str, rows: np.ndarray, *, repeats: bool) -> Any:
    """Return the chunks of rows of a dataset in its own dimensions, [n, W, D], and their mask."""
    offsets = case.vector["start"] + np.arange(case.vector["steps"])
    wanted = steps["step"][rows][:, None] + offsets
    last = steps["num_steps"][rows][:, None] - 1
    inside = (wanted >= 0) & (wanted <= last)
    window_rows = rows[:, None] + np.clip(wanted, 0, last) - steps["step"][rows][:, None]
    if repeats:
        # A chunk without any step of the episode has nothing to repeat.
        inside = np.broadcast_to(inside.any(axis=1, keepdims=True), inside.shape)
    values, masks = [], []
    for part in case.parts[name]:
        window, state = steps["action"][window_rows][..., part.action], steps["state"][rows][:, part.state]
        part_values, valid = represent(case, part, window, inside, state)
        values.append(part_values)
        masks.append(np.broadcast_to(valid[..., None], part_values.shape))
    return np.concatenate(values, axis=2), np.concatenate(masks, axis=2)


def statistics_of(case: Case, data: dict[str, Any]) -> dict[str, tuple[np.ndarray, np.ndarray]] | str:
    """Return the two numbers of each dimension of each dataset, [D] or [W, D], or the error of unlike groups."""
    is_converted = bool(case.vector["relative_to"] or case.vector["rotation"])
    per, method, tails = (case.normalize[key] for key in ("per", "method", "tails"))
    groups: dict[Any, list[str]] = {}
    for name, parts in case.parts.items():
        robot = ROBOTS[name] or name
        control = frozenset(part.kind for part in parts) - {"gripper", "flag"}
        groups.setdefault({"dataset": name, "robot": robot, "control": (robot, control), "mixture": 0}[per], []).append(
            name
        )
    total = sum(case.weights.values())
    result = {}
    for group in groups.values():
        if isinstance(case.layout, int) and len({str([p.names for p in case.parts[n]]) for n in group}) > 1:
            return "take one space for all, a layout with named slots"
        pools: dict[Any, list[tuple[np.ndarray, float]]] = {}
        for name in group:
            steps = data[name]
            rows = np.arange(len(steps["step"]))
            if is_converted:
                values, mask = windows_of(case, steps, name, rows, repeats=tails == "repeat")
                if tails == "complete":
                    first = steps["step"] + case.vector["start"]
                    fits = (first >= 0) & (first + case.vector["steps"] <= steps["num_steps"])
                    mask = mask & fits[:, None, None]
            else:
                columns = [steps["action"][:, part.action] for part in case.parts[name]]
                values = np.concatenate(columns, axis=1)[:, None]
                mask = np.ones(values.shape, bool)
            weight = case.weights[name] / total / len(rows) if per == "mixture" else 1.0
            for dim, position in enumerate(positions_of(case, name)):
                for step in range(values.shape[1]):
                    key = position if position >= 0 else (name, dim), step if case.vector["per_step"] else 0
                    pools.setdefault(key, []).append((values[:, step, dim][mask[:, step, dim]], weight))
        for name in group:
            count = case.vector["steps"] if case.vector["per_step"] else 1
            positions = positions_of(case, name)
            pairs = np.full((2, count, len(positions)), np.nan)
            for dim, position in enumerate(positions):
                for step in range(count):
                    pairs[:, step, dim] = describe(pools[position if position >= 0 else (name, dim), step], method)
            result[name] = (pairs[0], pairs[1])
    return result


def describe(pool: list[tuple[np.ndarray, float]], method: str) -> tuple[float, float]:
    values = np.concatenate([np.asarray(part, np.float32).astype(np.float64) for part, _ in pool])
    weights = np.concatenate([np.full(len(part), weight) for part, weight in pool])
    if not len(values):
        return np.nan, np.nan
    if method == "min_max":
        return float(values.min()), float(values.max())
    if method == "q01_q99":
        return float(np.quantile(values, 0.01)), float(np.quantile(values, 0.99))
    mean = float(np.average(values, weights=weights))
    return mean, float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))


def normalized(case: Case, values: np.ndarray, pair: tuple[np.ndarray, np.ndarray], is_flag: np.ndarray) -> np.ndarray:
    """Return values [W, D] by their two numbers, as the method does it; constants and flags keep their values."""
    first, second = (number.astype(np.float32).astype(np.float64) for number in pair)
    is_range = case.normalize["method"] != "mean_std"
    divisor = (second - first) / 2 if is_range else second
    keeps = is_flag | ~(divisor > 1e-8)
    result = (values - first) / np.where(keeps, 1, divisor) - is_range
    if case.normalize["clip"] is None and is_range:
        result = result.clip(-1, 1)
    return np.where(keeps, values, result)


def columns_of(case: Case, name: str, key: str) -> list[dict[str, Any]]:
    parts = case.parts[name] if key == "action" else case.state_order[name]
    path = {"action": "action", "state": "observation/state"}[key]
    return [
        {
            **{"path": path, "select": [column], "names": [dim_name], "quantity": quantity},
            "kind": "flag" if part.kind == "flag" else {"action": "target", "state": "absolute"}[key],
        }
        for part in parts
        for column, dim_name, quantity in zip(getattr(part, key), part.names, part.quantities, strict=True)
    ]


def read_data(root: Path) -> dict[str, Any]:
    data = {}
    for name in ROBOTS:
        folder = root / name / "1.0.0"
        steps, episodes = read_table(folder, "steps"), read_table(folder, "episodes")
        data[name] = {
            "step": np.array(steps["step"].to_pylist()),
            "num_steps": np.array(episodes["num_steps"].to_pylist())[np.array(steps["episode"].to_pylist())],
            "first": np.array(episodes["first_steps_row"].to_pylist()),
            "action": np.array(steps["action_"].to_pylist(), np.float32).astype(np.float64),
            "state": np.array(steps["observation/state"].to_pylist(), np.float32).astype(np.float64),
        }
    return data


def compare(case: Case, root: Path, data: dict[str, Any]) -> str:
    """Compare a batch and its way back with the loops; return what was compared."""
    names = list(case.parts)
    action = Vector(
        **case.vector,
        columns={name: columns_of(case, name, "action") for name in names},
        slots=case.layout,
        on_unmapped="drop",
    )
    state = Vector(columns={name: columns_of(case, name, "state") for name in names})
    arguments: Any = {
        **{"batch_size": 12, "frames": None, "action": action, "state": state},
        "normalize": {**case.normalize, "keys": ["action"]},
    }
    pairs = statistics_of(case, data)
    if isinstance(pairs, str):
        with pytest.raises(ArgumentError, match=pairs):
            make_loader(root, case.weights, **arguments)
        return "refused"
    loader = make_loader(root, case.weights, **arguments)
    assert loader.normalize is not None
    batch = loader.batch_at(0)
    size = case.layout if isinstance(case.layout, int) else case.layout["size"]
    assert batch["action"].shape == (12, case.vector["steps"], size)
    for row in range(12):
        name = loader.dataset_names[batch["dataset"][row]]
        steps = data[name]
        table_row = np.array([steps["first"][batch["episode"][row]] + batch["step"][row]])
        values, mask = (array[0] for array in windows_of(case, steps, name, table_row, repeats=False))
        is_flag = np.array([part.kind == "flag" for part in case.parts[name] for _ in range(size_of(case)(part))])
        expected_own = np.where(mask, normalized(case, values, pairs[name], is_flag), 0)
        expected, expected_mask = np.zeros((len(values), size)), np.zeros((len(values), size), bool)
        positions = positions_of(case, name)
        for dim, position in enumerate(positions):
            if position >= 0:
                expected[:, position], expected_mask[:, position] = expected_own[:, dim], mask[:, dim]
        np.testing.assert_array_equal(batch["action_mask"][row], expected_mask)
        np.testing.assert_allclose(batch["action"][row], expected, atol=2e-4, rtol=1e-4)
        if mask.all() and case.normalize["clip"] is False:
            compare_commands(case, loader.normalize, batch["action"][row], name, steps, table_row[0], positions)
    return "padded" if isinstance(case.layout, int) else "slots"


def compare_commands(
    case: Case, normalize: Any, chunk: np.ndarray, name: str, steps: Any, row: int, positions: list[int]
) -> None:
    """Compare the commands of a robot with the actions of the data, rotations by what they are."""
    state_row = np.concatenate([steps["state"][row, part.state] for part in case.state_order[name]])
    first = case.vector["start"]
    actions = [steps["action"][row + first : row + first + len(chunk), part.action] for part in case.parts[name]]
    if case.vector["relative_to"] == "first":
        state_row = np.concatenate([action[0] for action in actions])
    back = normalize.denormalize(chunk, dataset=name, state=state_row)
    begin = stored = 0
    for part, action in zip(case.parts[name], actions, strict=True):
        own = positions[begin : begin + size_of(case)(part)]
        begin += len(own)
        numbers = back[:, stored : stored + action.shape[1]]
        stored += action.shape[1]
        if min(own) < 0:
            # A composed pose is lost as a whole, and so are numbers that follow from a step before.
            assert np.isnan(numbers).any()
        elif part.kind == "pose":
            np.testing.assert_allclose(numbers[:, :3], action[:, :3], atol=2e-3)
            actual, expected = (turn_of(poses[:, 3:], part.form).as_matrix() for poses in (numbers, action))
            np.testing.assert_allclose(actual, expected, atol=2e-3)
        else:
            np.testing.assert_allclose(numbers, action, atol=2e-3)


def compare_all(numbers: range, root: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    data = read_data(root)
    for number in numbers:
        case = draw_case(number)
        try:
            counts[compare(case, root, data)] += 1
        except Exception as error:
            error.add_note(f"configuration {number}: {case}")
            raise
    return counts


def test_random_bodies_are_those_of_loops(root: Path) -> None:
    counts = compare_all(range(SHORT), root)
    assert counts["slots"] > SHORT / 3 and counts["padded"] and counts["refused"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_random_bodies_are_those_of_loops(root: Path) -> None:
    counts = compare_all(range(SHORT, SHORT + LONG), root)
    print(f"configurations {SHORT} to {SHORT + LONG - 1}: {dict(counts)}")
    assert counts["slots"] > LONG / 3 and counts["padded"] > LONG / 10
