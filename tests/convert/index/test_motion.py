"""The derived column ``motion``: how far the robot moves from a step to the next."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from convert.index.derived import derive_vector
from convert.plan import ConvertConfig
from convert.registry.dataset import Motion, Part, motion_of
from convert.registry.registry import load_registry
from convert.reindex import reindex_root
from convert.shard.images import FramePolicy
from convert.verify.command import verify_root
from stream import Select, make_loader
from stream.format.manifest import read_manifest
from tests.fixtures.datasets.rlds_dataset import RldsDataset, convert_dataset, demo_episode, write_dataset

POSITION = Part(path="x", dims=2, quantity="ee_position", kind="absolute")
EPISODES = [0, 0, 0, 1, 2, 2]
VALUES = [[0, 0], [3, 4], [3, 4], [7, 7], [1, 1], [1, math.nan]]


def motion(vector: Motion) -> list[float]:
    flat = pa.array(np.array(VALUES, np.float32).reshape(-1))
    table = pa.table({"episode": pa.array(EPISODES, pa.int32()), "x": pa.FixedSizeListArray.from_arrays(flat, 2)})
    actual = derive_vector(table, vector)
    assert actual.dtype == np.float32
    return [float(value) for value in actual[:, 0]]


def test_a_measured_position_counts_by_its_change_and_the_last_step_has_that_of_the_one_before() -> None:
    np.testing.assert_equal(motion(Motion((POSITION,))), [5, 0, 0, 0, math.nan, math.nan])


def test_a_commanded_displacement_counts_by_its_length() -> None:
    np.testing.assert_allclose(motion(Motion((POSITION,), is_change=False)), [0, 5, 5, 0, *[math.sqrt(2)] * 2])


def test_without_parts_nothing_is_known() -> None:
    np.testing.assert_equal(motion(motion_of((), ())), [math.nan] * 6)


def part(quantity: Any, kind: Any, dims: int = 3, **more: Any) -> Part:
    return Part(path=quantity, dims=dims, quantity=quantity, kind=kind, **more)


JOINTS = part("joint_position", "absolute", 7)
MATRIX = part("ee_pose_matrix", "absolute", 16, order="column", select=tuple(range(2, 18)))


@pytest.mark.parametrize(
    ("action", "state", "expected"),
    [
        ((), (JOINTS, part("ee_position", "absolute")), [("ee_position", None)]),
        ((), (part("ee_position", "target"), JOINTS), [("joint_position", None)]),
        ((), (JOINTS, MATRIX), [("ee_pose_matrix", (14, 15, 16))]),
        ((), (JOINTS, MATRIX.model_copy(update={"order": "unknown"})), [("joint_position", None)]),
        ((part("ee_position", "displacement"),), (JOINTS,), [("joint_position", None)]),
        ((part("joint_velocity", "velocity"), part("ee_position", "displacement")), (), [("ee_position", None)]),
        ((part("joint_velocity", "velocity"),), (part("other", "absolute"),), [("joint_velocity", None)]),
        ((part("ee_position", "target"),), (), []),
    ],
)
def test_the_first_that_the_registry_has_is_taken(
    action: tuple[Part, ...], state: tuple[Part, ...], expected: list[tuple[str, tuple[int, ...] | None]]
) -> None:
    assert [(item.path, item.select) for item in motion_of(action, state).parts] == expected


def test_two_of_the_registrys_datasets_have_no_motion() -> None:
    without = [name for name, spec in load_registry().datasets.items() if not motion_of(spec.action, spec.state).parts]
    assert without == ["tidybot", "vima_converted_externally_to_rlds"]


STATE = [{"path": "observation/state", "dims": 3, "quantity": "ee_position", "kind": "absolute"}]
WALK = [0, 0.5, 0.5, 0.5, 2.5, 2.5, 3]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    episodes = [demo_episode(len(WALK), seed=seed) for seed in range(2)]
    for episode in episodes:
        for step, path in zip(episode["steps"], WALK, strict=True):
            step["observation"]["state"] = np.array([0, path, 0], np.float32)
            step["action"] = np.array([path, 0], np.float32)
    return write_dataset(tmp_path_factory.mktemp("source"), splits={"train": [episodes]})


@pytest.mark.long
def test_a_loader_drops_idle_steps_and_reindex_follows_the_registry(dataset: RldsDataset, tmp_path: Path) -> None:
    options = ConvertConfig(policy=FramePolicy(size=None), layout="frames", cameras=("all",))
    convert_dataset(dataset.conversion(tmp_path, options, state=STATE))
    folder = tmp_path / "demo" / "1.0.0"

    def steps(threshold: float) -> set[int]:
        loader = make_loader(
            tmp_path, "demo", batch_size=2, frames=(0,), select=Select(where=[("motion", ">", threshold)])
        )
        assert loader.describe()["demo"]["left_out"]["where"] == 14 - loader.sizes["demo"]
        return {int(t) for n in range(loader.sizes["demo"] // 2) for t in loader.batch_at(n)["step"]}

    column = pa.ipc.open_file(folder / "train" / "steps.arrow").read_all()["motion"]
    assert column.type == pa.float32()
    assert column.to_pylist() == [0.5, 0, 0, 2, 0, 0.5, 0.5] * 2
    assert (steps(0), steps(0.5)) == ({0, 3, 5, 6}, {3})
    statistics = read_manifest(folder).statistics["train"]["motion"]
    assert (statistics.names, statistics.max) == (("motion",), (2.0,))
    assert verify_root(tmp_path, deep=True).ok
    # Without a state the action counts, and without both nothing.
    moves = [{"path": "action", "dims": 2, "quantity": "ee_position", "kind": "displacement"}]
    for action, changed, expected in ((moves, True, [*WALK[:-1], WALK[-2]] * 2), (None, True, [None] * 14)):
        (done,) = reindex_root(str(tmp_path), config=[str(dataset.registry(state=None, action=action))])
        assert ("motion" in done["changed"]) is changed
        actual = pa.ipc.open_file(folder / "train" / "steps.arrow").read_all()["motion"].to_pylist()
        assert [None if math.isnan(value) else value for value in actual] == expected
        assert verify_root(tmp_path, deep=True).ok
    assert json.loads((folder / "dataset.json").read_text())["statistics"]["train"]["motion"]["nonfinite"] == [14]
