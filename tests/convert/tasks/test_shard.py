import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal
from unittest.mock import ANY

import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordReader
from tensorflow_datasets.proto import tf_example_pb2
from xxhash import xxh3_64_intdigest

from convert.errors import ShardError, UsageError
from convert.journal.journal import FOLDER, Journal, part_file
from convert.journal.status import ShardStatus
from convert.plan import Conversion, Options
from convert.shard import part_rows
from convert.shard.images import FramePolicy, decode_frame
from convert.shard.record_file import encode_record
from convert.source.rlds.tfrecord import encode_tfrecord
from convert.tasks.shard import convert_shard
from stream.format.names import TABLE_KINDS, TableKind, decode_record, shard_file
from stream.format.table import open_table
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, demo_features, serialise, write_dataset

REPOSITORY = Path(__file__).resolve().parents[3]
POLICY = FramePolicy(size=None)
NATIVE = Options(policy=POLICY)
STEM = "train-00000-of-00001"
FileKind = Literal["arrayrecord", "episodes", "steps", "records"]
KINDS: tuple[FileKind, ...] = ("arrayrecord", *TABLE_KINDS)
EPISODES = [demo_episode(6), demo_episode(2, seed=1), demo_episode(0, seed=2), demo_episode(5, seed=3)]


class Shard:
    """The first shard of a conversion, and what it became."""

    def __init__(self, conversion: Conversion) -> None:
        self.conversion = conversion
        self.output = Path(conversion.plan.output)
        Journal(self.output).begin(conversion.parameters)

    def convert(self) -> ShardStatus:
        status = convert_shard(self.conversion.jobs[0], self.conversion.plan)
        assert status is not None
        return status

    def path(self, kind: FileKind) -> Path:
        if kind == "arrayrecord":
            return self.output / "train" / shard_file(STEM)
        return self.output / part_file(STEM, kind)

    def table(self, kind: TableKind) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = open_table(self.path(kind), kind).arrow().to_pydict()
        return found

    def records(self) -> list[list[bytes]]:
        reader = ArrayRecordReader(str(self.path("arrayrecord")))
        try:
            return [decode_record(reader.read(i, i + 1)[0]) for i in range(reader.num_records())]
        finally:
            reader.close()

    def contents(self) -> dict[str, bytes]:
        return {kind: self.path(kind).read_bytes() for kind in KINDS}


def shard_of(tmp_path: Path, episodes: list[Any], options: Options = NATIVE, **more: Any) -> Shard:
    dataset = write_dataset(tmp_path, features=more.pop("features", None), splits={"train": [episodes]})
    return Shard(dataset.conversion(tmp_path / "out", options, **more))


def damage(dataset: RldsDataset, content: bytes) -> None:
    dataset.shard().write_bytes(content)


def frames_of(episode: dict[str, Any]) -> list[bytes]:
    return [step["observation"]["image"] for step in episode["steps"]]


def test_every_pair_of_every_episode_is_a_record_with_the_sources_own_bytes(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES)
    status = shard.convert()
    expected = [
        [frames[t], frames[t + 2]]
        for frames in map(frames_of, EPISODES)
        for t in range(len(frames))
        if t + 2 < len(frames)
    ]
    assert shard.records() == expected
    assert (status.entry.records, status.entry.passed, status.entry.sizes) == (7, 11, {"24x32": 11})


def test_a_row_describes_each_record(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES)
    shard.convert()
    assert shard.table("records") == {
        "shard": [0] * 7,
        "episode": [0, 0, 0, 0, 3, 3, 3],
        "step": [0, 1, 2, 3, 0, 1, 2],
        "camera": [0] * 7,
        "offset": [2] * 7,
        "steps_row": [0, 1, 2, 3, 8, 9, 10],
        "position": ANY,
        "num_bytes": [8 + 4 * 2 + sum(map(len, record)) for record in shard.records()],
        "xxh3_64": [xxh3_64_intdigest(encode_record(record)) for record in shard.records()],
    }


def test_a_record_lies_where_its_row_says(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES)
    shard.convert()
    content = shard.path("arrayrecord").read_bytes()
    places = shard.table("records")
    for record, start, size in zip(shard.records(), places["position"], places["num_bytes"], strict=True):
        assert content[start : start + size] == encode_record(record)


def test_a_row_describes_each_step_of_each_episode_also_of_those_too_short(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES)
    shard.convert()
    table = shard.table("steps")
    steps = [(index, t, step) for index, episode in enumerate(EPISODES) for t, step in enumerate(episode["steps"])]
    assert table["episode"] == [index for index, _, _ in steps]
    assert table["step"] == [t for _, t, _ in steps]
    assert table["language"] == [step["language_instruction"] for _, _, step in steps]
    assert table["is_last"] == [step["is_last"] for _, _, step in steps]
    np.testing.assert_array_equal(table["action_"], [step["action"] for _, _, step in steps])
    np.testing.assert_array_equal(table["observation/state"], [step["observation"]["state"] for _, _, step in steps])


def test_a_row_describes_each_episode_and_why_it_gave_no_pair(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES, robot="xarm")
    shard.convert()
    name = "demo-train.tfrecord-00000-of-00001"
    assert shard.table("episodes") == {
        "episode": [0, 1, 2, 3],
        "shard": [0] * 4,
        "episode_id": [f"{name}__{position}" for position in range(4)],
        "source_file": [name] * 4,
        "source_position": [0, 1, 2, 3],
        "status": ["ok", "too_short", "empty", "ok"],
        "num_steps": [6, 2, 0, 5],
        "first_steps_row": [0, 6, 8, 8],
        "num_records": [4, 0, 0, 3],
        "first_record": [0, 4, 4, 4],
        "language": ["task 0", "task 1", "", "task 3"],
        "robot": ["xarm"] * 4,
        "episode_metadata/file_path": [f"/data/{seed}.npy" for seed in range(4)],
    }


@pytest.mark.parametrize(
    ("frames", "offsets"), [("all", (0, 1, 2, 3)), ("stride:2", (0, 2, 3)), ("fixed:3", (0, 2, 3))]
)
def test_the_frames_that_were_asked_for_are_stored(tmp_path: Path, frames: str, offsets: tuple[int, ...]) -> None:
    shard = shard_of(tmp_path, EPISODES[:1], Options(policy=POLICY, frames=frames, offset="3"))
    shard.convert()
    source = frames_of(EPISODES[0])
    assert shard.records() == [[source[t + offset] for offset in offsets] for t in range(3)]
    assert shard.conversion.parameters["frame_offsets"] == list(offsets)


def test_each_frame_is_encoded_once_however_many_pairs_share_it(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES[:1], Options(policy=FramePolicy(size=(12, 16))))
    status = shard.convert()
    assert (status.entry.passed, status.entry.sizes) == (0, {"12x16": 6})
    records = shard.records()
    assert records[0][1] == records[2][0]
    assert decode_frame(records[0][0]).shape == (12, 16, 3)


def test_only_the_chosen_episodes_are_converted_and_keep_their_place_in_the_source(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES, Options(policy=POLICY, episodes="train[:1]+train[3:]"))
    status = shard.convert()
    assert shard.table("episodes")["source_position"] == [0, 3]
    assert shard.table("records")["episode"] == [0, 0, 0, 0, 1, 1, 1]
    assert status.entry.episodes == 2


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shard = shard_of(tmp_path / name, EPISODES, Options(policy=FramePolicy(size=(16, 16))))
        shard.convert()
        contents.append(shard.contents())
    assert contents[0] == contents[1]


def test_a_finished_shard_is_not_done_again(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES)
    first = shard.convert()
    before = [shard.path(kind).stat().st_mtime_ns for kind in KINDS]
    assert shard.convert() == first
    assert [shard.path(kind).stat().st_mtime_ns for kind in KINDS] == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_of_which_a_file_is_gone_is_done_again(tmp_path: Path, kind: FileKind) -> None:
    shard = shard_of(tmp_path, EPISODES)
    shard.convert()
    before = shard.contents()
    shard.path(kind).unlink()
    shard.convert()
    assert shard.contents() == before


def test_a_shard_that_is_being_converted_is_left_alone(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES)
    with Journal(shard.output).lock(STEM):
        assert convert_shard(shard.conversion.jobs[0], shard.conversion.plan) is None
    assert not shard.path("arrayrecord").exists()


RECORDS = [serialise(demo_features(), episode) for episode in (EPISODES[0], EPISODES[3], EPISODES[0])]
WHOLE = b"".join(map(encode_tfrecord, RECORDS))
FIRST = len(encode_tfrecord(RECORDS[0]))
SECOND = FIRST + len(encode_tfrecord(RECORDS[1]))


def flip(position: int) -> bytes:
    return WHOLE[:position] + bytes([WHOLE[position] ^ 1]) + WHOLE[position + 1 :]


DAMAGED: dict[str, tuple[bytes, dict[str, int], list[str]]] = {
    "a flipped byte": (flip(FIRST + 100), {"unreadable": 1}, ["ok", "unreadable", "ok"]),
    "a flipped length": (flip(FIRST), {"unreadable": 2}, ["ok", "unreadable", "unreadable"]),
    "cut inside the last": (WHOLE[:-9], {"unreadable": 1}, ["ok", "ok", "unreadable"]),
    "cut between two": (WHOLE[:SECOND], {"unreadable": 1}, ["ok", "ok", "unreadable"]),
    "empty": (b"", {"unreadable": 3}, ["unreadable"] * 3),
    "one more": (WHOLE + encode_tfrecord(b""), {"undeclared": 1}, ["ok", "ok", "ok"]),
    "more bytes": (WHOLE + b"\0" * 99, {"undeclared": 1}, ["ok", "ok", "ok"]),
    "no episode": (
        b"".join([encode_tfrecord(b"\xff\xff"), WHOLE[FIRST:]]),
        {"malformed": 1},
        ["malformed", "ok", "ok"],
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_cannot_be_read_is_counted_and_listed_and_the_rest_is_converted(tmp_path: Path, case: str) -> None:
    content, left_out, statuses = DAMAGED[case]
    shard = shard_of(tmp_path, RECORDS)
    damage(RldsDataset(tmp_path, "demo"), content)
    conversion = RldsDataset(tmp_path, "demo").conversion(tmp_path / "out", NATIVE)
    status = convert_shard(conversion.jobs[0], conversion.plan)
    assert status is not None
    assert status.entry.left_out == left_out
    assert shard.table("episodes")["status"] == statuses
    assert len(status.quarantine) == sum(left_out.values())
    assert status.entry.records == sum({0: 4, 1: 3, 2: 4}[i] for i, found in enumerate(statuses) if found == "ok")


@pytest.mark.parametrize("case", DAMAGED)
def test_with_on_error_fail_the_first_damage_stops_and_leaves_nothing_behind(tmp_path: Path, case: str) -> None:
    dataset = write_dataset(tmp_path, splits={"train": [RECORDS]})
    damage(dataset, DAMAGED[case][0])
    shard = Shard(dataset.conversion(tmp_path / "out", Options(policy=POLICY, on_error="fail")))
    (reason,) = DAMAGED[case][1]
    with pytest.raises(ShardError, match=rf"demo .*/demo-train\.tfrecord-00000-of-00001: episode \d: {reason}: "):
        shard.convert()
    assert not shard.path("arrayrecord").exists()
    left = {path.name for path in (shard.output / FOLDER).iterdir()}
    assert left == {"parameters.json", "manifest.lock", f"{STEM}.lock"}


def test_pairs_of_a_corrupt_frame_are_left_out_and_their_step_is_named(tmp_path: Path) -> None:
    episode = demo_episode(6)
    episode["steps"][2]["observation"]["image"] = b"\xff\xd8\xffnot a jpeg"
    shard = shard_of(tmp_path, [episode])
    status = shard.convert()
    assert shard.table("records")["step"] == [1, 3]
    assert status.entry.left_out == {"corrupt_frame": 1, "pair_of_corrupt_frame": 2}
    (entry,) = status.quarantine
    assert (entry.episode, entry.step, entry.reason) == (0, 2, "corrupt_frame")
    assert shard.table("episodes")["num_steps"] == [6]


def test_episodes_too_short_are_no_damage(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, [demo_episode(2), demo_episode(0)], Options(policy=POLICY, on_error="fail"))
    status = shard.convert()
    assert status.entry.left_out == {"empty": 1, "too_short": 1}
    assert shard.records() == []


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
    whole = shard_of(tmp_path / "whole", [*episodes, b"\xff\xff"]).convert()
    monkeypatch.setattr(part_rows, "_BATCH", size)
    assert shard_of(tmp_path / "small", [*episodes, b"\xff\xff"]).convert().parts == whole.parts


@pytest.mark.long
def test_the_columns_of_a_shard_are_not_kept_to_its_end(tmp_path: Path) -> None:
    features = demo_features(depth=tfds.features.Tensor(shape=(64, 64), dtype=np.float32, encoding="bytes"))
    episode = demo_episode(40, depth=np.zeros((64, 64), np.float32))
    record = serialise(features, episode)
    dataset = write_dataset(tmp_path / "source", features=features, splits={"train": [[record] * 200]})
    program = """if True:
        import resource, sys
        from pathlib import Path
        from convert.journal.journal import Journal
        from convert.tasks.shard import convert_shard
        from tests.fixtures.datasets.rlds_dataset import RldsDataset

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

        conversion = RldsDataset(Path(sys.argv[1]), "demo").conversion(Path(sys.argv[2]), wide=["depth"])
        Journal(conversion.plan.output).begin(conversion.parameters)
        before = peak()
        convert_shard(conversion.jobs[0], conversion.plan)
        print(peak() - before)
    """
    arguments = [sys.executable, "-c", program, str(dataset.root), str(tmp_path / "out")]
    grown = int(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
    assert grown < 110, "MiB, of 125 MiB of columns"


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
    options = Options(policy=POLICY, leave_out=(path,))
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


@pytest.mark.parametrize("name", ["action", "observation/state"])
def test_an_episode_without_a_feature_of_action_or_state_is_damaged_and_gives_no_pair(
    tmp_path: Path, name: str
) -> None:
    record = tf_example_pb2.Example.FromString(serialise(demo_features(), demo_episode(6)))
    del record.features.feature[f"steps/{name}"]
    shard = shard_of(tmp_path, [record.SerializeToString(), demo_episode(4)])
    status = shard.convert()
    assert status.entry.left_out == {"missing_feature": 1}
    assert status.quarantine[0].detail == f"no {name}, a part of action or state"
    assert shard.table("episodes")["status"] == ["missing_feature", "ok"]
    assert shard.table("records")["episode"] == [1, 1]
    assert shard.table("steps")["episode"] == [1] * 4


def test_an_episode_without_another_feature_is_kept_with_nulls(tmp_path: Path) -> None:
    record = tf_example_pb2.Example.FromString(serialise(demo_features(), demo_episode(4)))
    del record.features.feature["steps/is_last"]
    shard = shard_of(tmp_path, [record.SerializeToString()])
    assert shard.convert().entry.left_out == {}
    assert shard.table("steps")["is_last"] == [None] * 4


def test_the_bytes_of_a_shard_are_those_of_its_records_and_the_longest_episode_is_known(tmp_path: Path) -> None:
    status = shard_of(tmp_path, EPISODES).convert()
    assert status.entry.file.bytes == (tmp_path / f"out/demo/1.0.0/train/{STEM}.arrayrecord").stat().st_size
    assert status.longest == 6


def test_a_source_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES)
    path = RldsDataset(tmp_path, "demo").shard()
    path.unlink()
    with pytest.raises(ShardError, match=r"demo-train\.tfrecord-00000-of-00001: No such file or directory"):
        shard.convert()


def test_a_file_in_the_place_of_the_folder_of_the_split_is_named(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES)
    (shard.output / "train").write_text("a file")
    with pytest.raises(UsageError, match="cannot be written: File exists; choose another --output"):
        shard.convert()
    assert not [path for path in (shard.output / FOLDER).iterdir() if path.suffix == ".tmp"]


LIMITED = """
import resource, signal, sys
from pathlib import Path
from convert.shard.images import FramePolicy
from convert.plan import Options
from convert.tasks.shard import convert_shard
from tests.fixtures.datasets.rlds_dataset import RldsDataset
root, output = map(Path, sys.argv[1:3])
conversion = RldsDataset(root, "demo").conversion(output, Options(policy=FramePolicy(size=None)))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
try:
    convert_shard(conversion.jobs[0], conversion.plan)
    print("converted")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("limit", [1000, 12_000])
def test_an_output_that_cannot_grow_is_an_error_and_never_a_finished_shard(tmp_path: Path, limit: int) -> None:
    shard = shard_of(tmp_path, [demo_episode(40)])
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), str(tmp_path / "out"), str(limit)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(("ShardError", "ConvertError")), done
    assert not shard.path("arrayrecord").exists()
    assert Journal(shard.output).finished() == set()
    assert not [name for name in os.listdir(shard.output / FOLDER) if name.endswith(".tmp")]


def test_a_worker_that_does_not_see_the_conversion_refuses_and_writes_nothing(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "source", splits={"train": [EPISODES]})
    conversion = dataset.conversion(tmp_path / "out", NATIVE)
    with pytest.raises(ShardError, match=r"finds no conversion there.* --output that all of them see"):
        convert_shard(conversion.jobs[0], conversion.plan)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_real_episodes_give_their_pairs_with_their_own_bytes(shared_data: Path, tmp_path: Path, split: str) -> None:
    from convert.plan import plan_conversion
    from convert.registry.registry import load_registry
    from convert.source.rlds.dataset import find_dataset

    (selected,) = load_registry().resolve("bridge_dataset")
    source = find_dataset([str(shared_data)], "bridge_dataset", "1.0.0")
    options = Options(policy=POLICY, offset="5", splits=(split,))
    conversion = plan_conversion(selected, source, options, output=str(tmp_path))
    Journal(tmp_path).begin(conversion.parameters)
    status = convert_shard(conversion.jobs[0], conversion.plan)
    assert status is not None
    assert (status.entry.episodes, status.entry.records, status.entry.passed) == (25, 125, 250)
    assert status.entry.left_out == {}
