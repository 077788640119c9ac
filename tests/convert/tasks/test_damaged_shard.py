"""What a source or an output cannot give is named and counted, and the rest of the shard is converted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorflow_datasets.proto import tf_example_pb2

from convert.errors import ShardError, UsageError
from convert.journal.journal import FOLDER, Journal
from convert.plan import ConvertConfig
from convert.source.rlds.record_files import encode_tfrecord
from convert.tasks.shard import convert_shard
from tests.fixtures.converted_shard import EPISODES, NATIVE, POLICY, STEM, Shard, shard_of
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, demo_features, serialise, write_dataset

REPOSITORY = Path(__file__).resolve().parents[3]
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
    "no episode": (encode_tfrecord(b"\xff\xff") + WHOLE[FIRST:], {"malformed": 1}, ["malformed", "ok", "ok"]),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_cannot_be_read_is_counted_and_listed_and_the_rest_is_converted(tmp_path: Path, case: str) -> None:
    content, left_out, statuses = DAMAGED[case]
    shard = shard_of(tmp_path, RECORDS)
    RldsDataset(tmp_path, "demo").shard().write_bytes(content)
    conversion = RldsDataset(tmp_path, "demo").conversion(tmp_path / "out", NATIVE)
    status = convert_shard(conversion.jobs[0], conversion.plan)
    assert status is not None
    assert status.entry.left_out == left_out
    assert shard.table("episodes")["status"] == statuses
    assert len(status.quarantine) == sum(left_out.values())
    assert status.entry.records == sum({0: 4, 1: 3, 2: 4}[i] for i, actual in enumerate(statuses) if actual == "ok")


@pytest.mark.parametrize("case", DAMAGED)
def test_with_on_error_fail_the_first_damage_stops_and_leaves_nothing_behind(tmp_path: Path, case: str) -> None:
    dataset = write_dataset(tmp_path, splits={"train": [RECORDS]})
    dataset.shard().write_bytes(DAMAGED[case][0])
    shard = Shard(dataset.conversion(tmp_path / "out", ConvertConfig(policy=POLICY, on_error="fail")))
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
    shard = shard_of(tmp_path, [demo_episode(2), demo_episode(0)], ConvertConfig(policy=POLICY, on_error="fail"))
    status = shard.convert()
    assert status.entry.left_out == {"empty": 1, "too_short": 1}
    assert shard.records() == []


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
from convert.plan import ConvertConfig
from convert.tasks.shard import convert_shard
from tests.fixtures.datasets.rlds_dataset import RldsDataset
root, output = map(Path, sys.argv[1:3])
conversion = RldsDataset(root, "demo").conversion(output, ConvertConfig(policy=FramePolicy(size=None)))
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
