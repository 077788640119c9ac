"""Features of a shard become columns of its part: names, success, robot and instruction."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from convert.plan import ConvertConfig
from convert.shard import part_rows
from tests.fixtures.converted_shard import POLICY, shard_of
from tests.fixtures.datasets.rlds_dataset import demo_episode, demo_features, serialise, write_dataset


def test_a_name_may_stand_for_a_feature_of_the_step_and_another_of_the_episode(tmp_path: Path) -> None:
    features = {**demo_features(success=np.bool_), "success": tfds.features.Text()}
    episode = {**demo_episode(3, success=True), "success": "yes"}
    shard = shard_of(tmp_path, [episode, b"\xff\xff", episode], features=features)
    shard.convert()
    assert shard.table("steps")["success"] == [True] * 6
    assert shard.table("episodes")["success"] == ["yes", None, "yes"]


def test_success_is_told_by_the_folders_of_a_path(tmp_path: Path) -> None:
    paths = ["/lab/success/2023/1.h5", "/lab/failure/2023/2.h5", "/lab/success.h5", "", "/success/failure/3.h5"]
    episodes = [{**demo_episode(3), "episode_metadata": {"file_path": path}} for path in paths]
    shard = shard_of(tmp_path, [*episodes, b"\xff\xff"], success_path="/episode_metadata/file_path")
    shard.convert()
    assert shard.table("episodes")["success"] == [True, False, None, None, None, None]


@pytest.mark.parametrize("path", ["/episode_metadata/done", "done"])
def test_success_is_told_by_a_flag_if_all_steps_agree(tmp_path: Path, path: str) -> None:
    features = demo_features(done=np.bool_)
    features["episode_metadata"]["done"] = np.bool_
    episodes = []
    for done in (True, False):
        episodes.append(demo_episode(3, done=done))
        episodes[-1]["episode_metadata"]["done"] = done
    episodes[1]["steps"][1]["done"] = path == "done"
    shard = shard_of(tmp_path, [*episodes, b"\xff\xff"], features=features, success_path=path)
    shard.convert()
    assert shard.table("episodes")["success"] == [True, None if path == "done" else False, None]


@pytest.mark.parametrize(("value", "expected"), [(1.0, True), (0.0, False), (0.5, None)])
def test_success_is_told_by_a_number_that_is_0_or_1(tmp_path: Path, value: float, expected: bool | None) -> None:
    shard = shard_of(
        tmp_path, [demo_episode(3, score=value)], features=demo_features(score=np.float32), success_path="score"
    )
    shard.convert()
    assert shard.table("episodes")["success"] == [expected]


@pytest.mark.parametrize("size", [0, 3000])
def test_the_part_does_not_depend_on_how_many_columns_memory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    episodes = [demo_episode(steps, seed=steps) for steps in (9, 0, 30, 4, 12)]
    complete_bytes = shard_of(tmp_path / "whole", [*episodes, b"\xff\xff"]).convert()
    monkeypatch.setattr(part_rows, "_BATCH", size)
    assert shard_of(tmp_path / "small", [*episodes, b"\xff\xff"]).convert().parts == complete_bytes.parts


@pytest.mark.long
def test_the_columns_of_a_shard_are_not_kept_to_its_end(tmp_path: Path) -> None:
    features = demo_features(depth=tfds.features.Tensor(shape=(64, 64), dtype=np.float32, encoding="bytes"))
    episode = demo_episode(40, depth=np.zeros((64, 64), np.float32))
    record = serialise(features, episode)
    dataset = write_dataset(tmp_path / "source", features=features, splits={"train": [[record] * 50, [record] * 250]})
    program = """if True:
        import sys
        from pathlib import Path
        from convert.journal.journal import Journal
        from convert.tasks.shard import convert_shard
        from tests.fixtures.datasets.rlds_dataset import RldsDataset
        from tests.fixtures.faults.memory_limit import peak_bytes

        conversion = RldsDataset(Path(sys.argv[1]), "demo").conversion(Path(sys.argv[2]), wide=["depth"])
        Journal(conversion.plan.output).begin(conversion.parameters)
        small, large = conversion.jobs
        convert_shard(small, conversion.plan)
        before = peak_bytes()
        convert_shard(large, conversion.plan)
        print(peak_bytes() - before >> 20)
    """
    arguments = [sys.executable, "-c", program, str(dataset.root), str(tmp_path / "out")]
    grown = int(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
    assert grown < 60, "MiB, of 156 MiB of columns"


def test_a_feature_with_the_name_of_one_of_our_columns_gets_another(tmp_path: Path) -> None:
    features = {**demo_features(step=np.int32), "episode_id": np.int32}
    shard = shard_of(tmp_path, [{**demo_episode(3, step=9), "episode_id": 5}], features=features)
    shard.convert()
    assert (shard.table("steps")["step"], shard.table("steps")["step_"]) == ([0, 1, 2], [9, 9, 9])
    assert shard.table("episodes")["episode_id_"] == [5]


@pytest.mark.parametrize("path", ["robot", "/episode_metadata/robot"])
def test_the_robot_is_read_from_a_feature_also_if_that_is_left_out(tmp_path: Path, path: str) -> None:
    features = demo_features(robot=tfds.features.Text())
    features["episode_metadata"]["robot"] = tfds.features.Text()
    episode = demo_episode(3, robot="xarm")
    episode["episode_metadata"]["robot"] = "xarm"
    options = ConvertConfig(policy=POLICY, leave_out=(path,))
    shard = shard_of(tmp_path, [episode, b"\xff\xff"], options, features=features, robot_path=path)
    shard.convert()
    assert shard.table("episodes")["robot"] == ["xarm", ""]


def test_coded_instructions_become_language_also_of_empty_episodes(tmp_path: Path) -> None:
    features = demo_features(codes=tfds.features.Tensor(shape=(8,), dtype=np.int32))
    codes = np.array([*"öl".encode(), 0, 0, 0, 0, 0], np.int32)
    shard = shard_of(
        tmp_path,
        [demo_episode(3, codes=codes), demo_episode(0)],
        features=features,
        instruction={"path": "codes", "encoding": "utf8_codes"},
    )
    shard.convert()
    assert shard.table("steps")["language"] == ["öl"] * 3
    assert shard.table("episodes")["language"] == ["öl", ""]
    assert "codes" not in shard.table("steps")
