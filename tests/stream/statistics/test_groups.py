"""Groups of datasets whose statistics are taken together: robots, kinds of control, and numbers of a layout."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Normalize, Vector, load_normalize, make_loader
from stream.batch.vectors import DatasetVector
from stream.statistics.groups import kind_of_control
from tests.stream.index_root import read_table, write_dataset

ROBOTS = {"one": "franka", "two": "franka", "three": "franka", "four": "ur5", "five": None, "six": None}
NUMBERS = ("mean", "std", "min", "max", "q01", "q99")
SLOTS = {
    "size": 9,
    "slots": {
        "arm": {"first": 4, "length": 4, "quantity": "joint_position"},
        "velocity": {"first": 1, "length": 3, "quantity": "joint_velocity"},
        "grip": {"first": 8, "quantity": "gripper"},
    },
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    for number, (name, robot) in enumerate(ROBOTS.items()):
        folder = write_dataset(root, name, {"train": [[9 + number, 4, 7], [20]]}, action=["target"] * 6, state=6)
        manifest = folder / "dataset.json"
        content = json.loads(manifest.read_text())
        content["spec"]["robot"] = robot
        content["checksum"] = "0" * 64
        unsigned = json.dumps(content).encode()
        manifest.write_bytes(unsigned.replace(b"0" * 64, hashlib.sha256(unsigned).hexdigest().encode()))
    return root


def parts(*quantities: str) -> list[dict[str, Any]]:
    """Return successive columns of the state, one of each quantity, whose names do not depend on the quantity."""
    return [
        {"path": "observation/state", "select": [dim], "quantity": quantity, "names": [f"d{dim}"]}
        | ({"kind": "velocity"} if quantity.endswith("velocity") else {})
        for dim, quantity in enumerate(quantities)
    ]


def values(root: Path, name: str, dims: Any) -> np.ndarray:
    table = read_table(root / name / "1.0.0", "steps")
    return np.array(table["observation/state"].to_pylist(), np.float32)[:, dims].astype(np.float64)


def check(statistics: Any, dims: dict[int, np.ndarray]) -> None:
    """Compare the statistics of dimensions with numpy's of their values."""
    for dim, numbers in dims.items():
        expected = [numbers.mean(), numbers.std(), numbers.min(), numbers.max(), *np.quantile(numbers, (0.01, 0.99))]
        actual = [getattr(statistics, name)[dim] for name in NUMBERS]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)


def load(root: Path, columns: dict[str, Any], *, slots: Any = None, **options: Any) -> Any:
    state = Vector(columns=columns, slots=slots)
    arguments: Any = {"batch_size": 8, "frames": None, "action": None, "state": state, **options}
    return make_loader(root, dict.fromkeys(columns, 1), **arguments)


def test_robots_and_kinds_of_control_are_groups(root: Path) -> None:
    joints, speeds = (
        parts("joint_position", "joint_position", "gripper"),
        parts("joint_velocity", "joint_velocity", "gripper"),
    )
    columns = {"one": joints, "two": joints, "three": speeds, "four": joints, "five": joints, "six": joints}
    loader = load(root, columns)
    groups = {
        "robot": [["one", "two", "three"], ["four"], ["five"], ["six"]],
        "control": [["one", "two"], ["three"], ["four"], ["five"], ["six"]],
        "dataset": [[name] for name in columns],
    }
    for per, expected in groups.items():
        statistics = Normalize(loader, per=per, leave=()).statistics["state"]  # type: ignore[arg-type]
        for group in expected:
            numbers = np.concatenate([values(root, name, [0, 1, 2]) for name in group])
            for name in group:
                check(statistics[name], dict(enumerate(numbers.T)))


def test_a_group_is_of_the_numbers_of_a_layout_that_its_datasets_share(root: Path, tmp_path: Path) -> None:
    columns = {
        "one": parts("joint_position", "joint_position", "gripper"),
        "two": parts("gripper", "joint_position"),
        "three": parts("joint_velocity", "gripper"),
        "four": parts("gripper"),
    }
    with pytest.raises(
        ArgumentError, match=r"per='robot': state of two is d0, d1, that of one is d0, d1, d2; .* layout with named"
    ):
        Normalize(load(root, columns), per="robot")
    with pytest.raises(ArgumentError, match="per='robot': state of two is d0, d1, that of one is d0, d1, d2"):
        Normalize(load(root, columns, slots=9), per="robot")  # padding says nothing about which dimensions are equal
    loader = load(root, columns, slots=SLOTS)
    arm, grip, speed = (
        [values(root, "one", 0), values(root, "two", 1)],
        [values(root, "one", 2), values(root, "two", 0), values(root, "three", 1)],
        values(root, "three", 0),
    )
    normalize = Normalize(loader, per="robot", leave=(), clip=False)
    statistics = normalize.statistics["state"]
    check(statistics["one"], {0: np.concatenate(arm), 1: values(root, "one", 1), 2: np.concatenate(grip)})
    check(statistics["two"], {0: np.concatenate(grip), 1: np.concatenate(arm)})
    check(statistics["three"], {0: speed, 1: np.concatenate(grip)})
    check(statistics["four"], {0: values(root, "four", 0)})
    control = Normalize(loader, per="control", leave=()).statistics["state"]
    check(control["one"], {2: np.concatenate(grip[:2])})
    check(control["three"], {1: grip[2]})
    normalize.save(tmp_path / "normalize.json")
    batch = loader.batch_at(0)
    for normalizer in (
        normalize,
        load_normalize(tmp_path / "normalize.json"),
        load_normalize(tmp_path / "normalize.json", loader),
    ):
        for row, number in enumerate(batch["dataset"].tolist()):
            name = loader.dataset_names[number]
            back = normalizer.denormalize(normalize.map(batch)["state"][row], "state", dataset=name)
            raw = values(root, name, slice(None, len(columns[name])))
            assert np.isclose(raw, back, atol=1e-5).all(axis=1).any()


def test_weights_of_a_mixture_count_by_number_of_the_layout(root: Path) -> None:
    columns = {"one": parts("joint_position", "gripper"), "four": parts("gripper", "joint_velocity")}
    state = Vector(columns=columns, slots=SLOTS)
    loader = make_loader(root, {"one": 3, "four": 1}, batch_size=8, frames=None, action=None, state=state)
    statistics = Normalize(loader, per="mixture", leave=()).statistics["state"]
    one, four = values(root, "one", 1), values(root, "four", 0)
    mean = loader.weights["one"] * one.mean() + loader.weights["four"] * four.mean()
    assert statistics["one"].mean[1] == statistics["four"].mean[0] == pytest.approx(mean, rel=1e-6)
    check(statistics["one"], {0: values(root, "one", 0)})
    check(statistics["four"], {1: values(root, "four", 1)})


@pytest.mark.parametrize("per_step", [False, True])
def test_relative_chunks_of_a_robot_are_pooled_by_number_of_the_layout(root: Path, per_step: bool) -> None:
    def columns(path: str, order: list[int], kind: str) -> list[dict[str, Any]]:
        return [
            {"path": path, "select": [dim], "quantity": "joint_position", "names": [f"j{dim}"], "kind": kind}
            for dim in order
        ]

    orders = {"one": [0, 1, 2], "two": [2, 0]}
    action = Vector(
        3,
        columns={name: columns("action", order, "target") for name, order in orders.items()},
        relative_to="state",
        per_step=per_step,
        slots=SLOTS,
    )
    state = Vector(columns={name: columns("observation/state", order, "absolute") for name, order in orders.items()})
    loader = make_loader(
        root, {"one": 1, "two": 1}, batch_size=64, frames=None, action=action, state=state, num_epochs=1
    )
    statistics = Normalize(loader, per="control", over="samples", keys=["action"]).statistics["action"]
    batches = [loader.batch_at(step) for step in range(loader.num_steps or 0)]
    rows, masks = (np.concatenate([batch[key] for batch in batches]) for key in ("action", "action_mask"))
    for name, order in orders.items():
        assert statistics[name].names == tuple(f"j{dim}" for dim in order)
        for dim in range(len(order)):
            for step in range(3):
                steps = step if per_step else slice(None)
                numbers = rows[:, steps, 4 + dim][masks[:, steps, 4 + dim]].astype(np.float64)
                cell = (step, dim) if per_step else dim
                assert statistics[name].mean[cell] == pytest.approx(numbers.mean(), rel=1e-6)
                assert statistics[name].q99[cell] == pytest.approx(np.quantile(numbers, 0.99), rel=1e-6)


def test_the_kind_of_control_leaves_grippers_and_flags_out() -> None:
    def control(*dims: tuple[str, str, str]) -> set[str]:
        names, kinds, quantities = zip(*dims, strict=True)
        return set(kind_of_control(DatasetVector(names, kinds, None, quantities)))

    pose = [("x", "target", "ee_position"), ("r", "absolute", "ee_rotation_euler")]
    assert control(*pose, ("g", "target", "gripper"), ("t", "flag", "terminate")) == {"pose absolute"}
    assert control(("x", "displacement", "ee_position")) == {"pose displacement"}
    assert control(("j", "velocity", "joint_velocity")) == {"joint_velocity velocity"}
    assert control(*pose, ("j", "absolute", "joint_position")) == {"pose absolute", "joint_position absolute"}
    assert control(("knob", "absolute", "")) == {"knob absolute"}
    assert kind_of_control(DatasetVector(("knob",), ("absolute",))) == {"knob absolute"}
