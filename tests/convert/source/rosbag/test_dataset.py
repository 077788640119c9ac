"""Bags of every form as a dataset: each value at each step is that of the message which the clock chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.errors import ConfigError, SourceError, UsageError
from convert.registry.registry import Registry
from convert.source.files.source import FilesSource
from convert.source.rosbag.dataset import find
from tests.convert.source.rosbag.bags import (
    COMMAND,
    DEPTH,
    FORMS,
    FRONT,
    JOINTS,
    LAYOUT,
    START,
    TASK,
    Form,
    Sent,
    Types,
    depth,
    fault,
    jpeg,
    read_one,
    read_source,
    recording,
    write,
)


def open_layout(path: Path, **changes: Any) -> FilesSource:
    return find(str(path), [], {**LAYOUT, **changes})


def last_before(sent: list[Sent], topic: str, tick: int, *, receive: bool = False) -> int:
    """Number of the message of a topic that stands for a step, by going through all of them."""
    times = [item.received if receive else item.stamp for item in sent if item.topic == topic]
    return max(number for number, time in enumerate(times) if time <= tick)


@pytest.mark.parametrize("form", FORMS)
def test_every_value_of_every_step_is_that_of_the_last_message_before_it(tmp_path: Path, form: Form) -> None:
    sent = recording(form)
    path = write(tmp_path / "bag", form, sent)
    result = read_one(open_layout(path))
    # The depth camera begins 7 ms after the first picture, so the second picture is the first step.
    ticks = [START + 100_000_000 * number for number in range(1, 21)]
    assert result.steps["stamp"].tolist() == ticks
    assert result.cameras["observation/front"] == [jpeg(number) for number in range(1, 21)]
    expected = [depth(last_before(sent, DEPTH, tick)) for tick in ticks]
    assert np.array_equal(np.array(result.cameras["observation/depth"]), np.array(expected))
    assert result.cameras["observation/depth"][0].dtype == np.uint16
    joints = [last_before(sent, JOINTS, tick) for tick in ticks]
    assert result.steps["state/joints"].tolist() == [[n, n + 0.5, 0] for n in joints]
    # Commands have no header, so the time when they were received counts.
    commands = [last_before(sent, COMMAND, tick, receive=True) for tick in ticks]
    assert result.steps["action"].tolist() == [[n, -n, 2.5] for n in commands]
    assert joints[0] == 4 and commands[0] == 1
    assert result.steps["language"] == ["task 0"] * 20
    assert result.episode["file"] == path.name


@pytest.mark.parametrize("form", FORMS)
def test_times_of_receipt_are_taken_where_the_layout_says_so(tmp_path: Path, form: Form) -> None:
    types, kind = Types(form), "sensor_msgs/msg/JointState"
    times = {"/a": [0, 100, 200, 300], "/b": [0, 100, 250, 300]}
    sent = [
        Sent(topic, kind, START, START + time * 1_000_000, types.joints(START, [number], ["j"]))
        for topic, received in times.items()
        for number, time in enumerate(received)
    ]
    path = write(tmp_path / "bag", form, sorted(sent, key=lambda item: item.received))
    features = {"a": {"topic": "/a"}, "b": {"topic": "/b"}}
    source = find(str(path), [], {"rate": 10, "clock": "/a", "stamps": "receive", "features": features})
    result = read_one(source)
    assert result.steps["a"].tolist() == [[0], [1], [2], [3]]
    assert result.steps["b"].tolist() == [[0], [1], [1], [3]]
    assert "stamps: times of receipt" in source.remarks


def test_a_dataset_says_its_rate_cameras_names_and_clock(tmp_path: Path) -> None:
    source = open_layout(write(tmp_path / "bag", "mcap", recording("mcap")), language="Fold the towel.")
    spec = Registry().describe("own", source.entry)
    assert spec.control_frequency == 10
    ((name, camera),) = spec.cameras.items()
    assert (name, camera.path, camera.role) == ("front", "observation/front", "primary")
    assert [(part.path, part.dims, part.names) for part in spec.state] == [("state/joints", 3, ("a", "b", "c"))]
    assert [(part.path, part.dims) for part in spec.action] == [("action", 3)]
    assert source.remarks[1:] == (
        f"clock: 10 Hz from {FRONT}, gaps above 0.5 s are damage",
        f"stamps: those of headers, of {COMMAND}, {TASK} (no header) times of receipt",
    )
    assert source.libraries == ("rosbags",)
    assert read_one(source).episode["language"] == "Fold the towel."


def test_the_message_nearest_to_a_step_is_taken_where_the_layout_says_so(tmp_path: Path) -> None:
    sent = recording("mcap")
    path = write(tmp_path / "bag", "mcap", sent)
    features = {**LAYOUT["features"], "state/joints": {"topic": JOINTS, "take": "nearest"}}
    result = read_one(open_layout(path, features=features))
    # Joints come at 1 ms after each 20 ms, so the nearest to a step is the one 1 ms after it.
    assert result.steps["state/joints"][:, 0].tolist() == [5 * step for step in range(1, 21)]


def test_pictures_of_a_clock_with_jitter_are_taken_once_each(tmp_path: Path) -> None:
    types, jitter = Types("mcap"), [0, 4, -4, 3, -2, 4, -4, 0, -3]
    stamps = [START + (100 * n + jitter[n]) * 1_000_000 for n in range(9)]
    kind = "sensor_msgs/msg/CompressedImage"
    sent = [Sent(FRONT, kind, t, t, types.compressed(t, jpeg(n))) for n, t in enumerate(stamps)]
    layout = {"rate": 10, "clock": FRONT, "features": {"front": {"topic": FRONT}}}
    result = read_one(find(str(write(tmp_path / "bag", "mcap", sent)), [], layout))
    assert result.cameras["front"] == [jpeg(number) for number in range(9)]


@pytest.mark.parametrize("form", FORMS)
def test_messages_that_were_received_out_of_order_are_sorted_by_their_stamps(tmp_path: Path, form: Form) -> None:
    types = Types(form)
    order = [0, 2, 1, 3, 5, 6, 4, 7]
    sent = []
    for position, number in enumerate(order):
        stamp, received = START + number * 100_000_000, START + position * 100_000_000
        picture = types.compressed(stamp, jpeg(number))
        sent.append(Sent(FRONT, "sensor_msgs/msg/CompressedImage", stamp, received, picture))
        sent.append(Sent(JOINTS, "sensor_msgs/msg/JointState", stamp, received, types.joints(stamp, [number] * 3)))
    layout = {"rate": 10, "clock": FRONT, "features": {"front": {"topic": FRONT}, "joints": {"topic": JOINTS}}}
    result = read_one(find(str(write(tmp_path / "bag", form, sent)), [], layout))
    assert result.cameras["front"] == [jpeg(number) for number in range(8)]
    assert result.steps["joints"][:, 0].tolist() == list(range(8))


@pytest.mark.parametrize("compress", ["message", "file"])
def test_bags_that_are_compressed_are_read(tmp_path: Path, compress: Any) -> None:
    path = write(tmp_path / "bag", "sqlite3", recording("sqlite3"), compress=compress)
    assert read_one(open_layout(path)).cameras["observation/front"] == [jpeg(number) for number in range(1, 21)]


def test_a_folder_of_bags_of_all_forms_is_one_dataset(tmp_path: Path) -> None:
    for seed, form in enumerate(FORMS):
        write(tmp_path / "train" / form, form, recording(form, seed=seed, start=START + seed))
    write(tmp_path / "val" / "other", "mcap", recording("mcap", seed=9))
    for position, roots in ((str(tmp_path), []), (tmp_path.name, [str(tmp_path.parent)])):
        source = find(position, roots, LAYOUT)
        assert source.splits == {"train": (1, 1, 1, 1), "val": (1,)}
        files = {str(item.episode["file"]) for item in read_source(source) if not isinstance(item, Exception)}
        assert files == {*(f"train/{name}" for name in ("mcap", "plain.mcap", "ros1.bag", "sqlite3")), "val/other"}


def test_no_bag_and_no_layout_are_errors_and_the_latter_lists_the_topics(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no file \*\.bag or \*\.mcap"):
        find(str(tmp_path), [], LAYOUT)
    path = write(tmp_path / "bag", "ros1", recording("ros1"))
    with pytest.raises(UsageError) as error:
        find(str(path), [], {})
    assert f"pairstream draft rosbag:{path}\n" in str(error.value)
    assert f"{JOINTS}: sensor_msgs/msg/JointState, 101 messages, 50.2 Hz" in str(error.value)


def one_feature(**stream: str) -> dict[str, Any]:
    return {"features": {"a": {"topic": JOINTS, **stream}}}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"rates": 5}, "unknown key 'rates'; did you mean 'rate'"),
    ({"rate": 0}, "layout: rate: Input should be greater than 0, found 0"),
    (one_feature(topic="/join_states"), "a: no topic '/join_states'; did you mean '/joint_states'"),
    ({"clock": "/tick"}, "no topic '/tick'"),
    (one_feature(field="positions"), "/msg/JointState has no field 'positions'; did you mean 'position'?"),
    (one_feature(field="a-b"), "field 'a-b': 'a-b' is not the name of a field; write for example pose.position.x"),
    (one_feature(field="name"), "field 'name' has other content than numbers"),
    (one_feature(topic=TASK, field="data[0]"), "data is not an array, so it has no [0]"),
    (one_feature(encoding="rgb8"), "takes no encoding"),
    ({"features": {"stamp": {"topic": JOINTS}}}, "stamp is the name of the times of the steps"),
    ({"episodes": {"topic": "/a", "csv": "b"}}, "expected either a topic or a csv"),
    ({"distribution": "humbel"}, "distribution 'humbel': did you mean 'humble'"),
]


def test_a_layout_that_does_not_fit_is_refused_with_the_closest_name(tmp_path: Path) -> None:
    path = write(tmp_path / "bag", "mcap", recording("mcap", seconds=0.2))
    for changes, message in WRONG:
        with pytest.raises(ConfigError) as error:
            open_layout(path, **changes)
        assert message in str(error.value)


def test_joints_are_taken_by_name_from_the_parts_of_a_robot_that_have_them(tmp_path: Path) -> None:
    types, sent = Types("mcap"), []
    for number in range(6):
        stamp, arm = START + number * 100_000_000, number % 2 == 0
        content = types.joints(stamp, [number, -number] if arm else [100], ["b", "a"] if arm else ["gripper"])
        sent.append(Sent(JOINTS, "sensor_msgs/msg/JointState", stamp, stamp, content))
    path = write(tmp_path / "bag", "mcap", sent)
    features = {
        "arm": {"topic": JOINTS, "names": ["a", "b"]},
        "gripper": {"topic": JOINTS, "names": ["gripper"], "field": "velocity"},
    }
    result = read_one(find(str(path), [], {"rate": 5, "clock": JOINTS, "features": features}))
    # The clock's topic gives the nearest message: the first step is that of the first gripper.
    assert result.steps["gripper"].tolist() == [[1000.0]] * 3
    assert result.steps["arm"].tolist() == [[0, 0], [-2, 2], [-4, 4]]
    with pytest.raises(SourceError, match="the joints gripper, the first one had b, a; give those to take as names"):
        find(str(path), [], {"rate": 5, "clock": JOINTS, "features": {"arm": {"topic": JOINTS}}})


def test_joints_in_another_order_than_in_the_first_bag_are_damage(tmp_path: Path) -> None:
    features = {"joints": {"topic": JOINTS}}
    types = Types("ros1")
    for number, names in enumerate(("abc", "acb")):
        sent = [Sent(JOINTS, "sensor_msgs/msg/JointState", START, START, types.joints(START, [0, 1, 2], names))]
        write(tmp_path / str(number), "ros1", sent)
    source = find(str(tmp_path), [], {"rate": 10, "clock": JOINTS, "features": features})
    message = "1.bag: joints: /joint_states: a JointState has the joints a, c, b, the first one had a, b, c"
    assert fault(source).startswith(message)
