"""Bags that were not closed, gaps and clocks that cannot be right: listed with the reason, never silently shorter."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from convert.errors import CorruptFrame, DamagedEpisode, SourceError
from convert.source.rosbag.dataset import find
from tests.convert.source.rosbag.bags import (
    COMMAND,
    DEPTH,
    FRONT,
    JOINTS,
    LAYOUT,
    START,
    Form,
    ReadEpisode,
    Sent,
    Types,
    fault,
    jpeg,
    read_one,
    read_source,
    recording,
    write,
)


def _truncate(path: Path, part: float) -> None:
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * part))


def _without_index(bag: Path) -> None:
    """Write the header of a ROS 1 bag as it is while it is recorded."""
    content = bytearray(bag.read_bytes())
    position = content.index(b"index_pos=") + len(b"index_pos=")
    content[position : position + 8] = bytes(8)
    bag.write_bytes(content)


def _leave_open(bag: Path) -> None:
    """Leave a message in the log beside the database."""
    (database,) = bag.glob("*.db3")
    copy = bag / "copy"
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("INSERT INTO messages (topic_id, timestamp, data) VALUES (1, 1, x'00')")
        connection.commit()
        shutil.copy(f"{database}-wal", copy)
    connection.close()
    copy.rename(f"{database}-wal")


def _lose_messages(bag: Path) -> None:
    (database,) = bag.glob("*.db3")
    with sqlite3.connect(database) as connection:
        connection.execute("DELETE FROM messages WHERE id > 100")
    connection.close()


def _lose_metadata(bag: Path) -> None:
    (bag / "metadata.yaml").unlink()


DAMAGE: dict[str, tuple[Form, Callable[[Path], Any], str]] = {
    "ros1 without index": (
        "ros1",
        _without_index,
        "not indexed, reindex before reading.); if it was not closed, run `",
    ),
    "ros1 cut off": ("ros1", lambda path: _truncate(path, 0.6), "run `rosbag reindex bad.bag`"),
    "ros1 empty": ("ros1", lambda path: _truncate(path, 0), "seems to be empty"),
    "ros1 active": ("ros1", lambda path: path.rename(f"{path}.active"), "run `rosbag reindex bad.bag.active` and"),
    "mcap cut off": ("plain", lambda path: _truncate(path, 0.6), "run `mcap recover bad.mcap -o recovered.mcap`"),
    "mcap folder cut off": ("mcap", lambda path: _truncate(next(path.glob("*.mcap")), 0.6), "run `ros2 bag reindex"),
    "no metadata": ("sqlite3", _lose_metadata, "without metadata.yaml; run `ros2 bag reindex"),
    "no file": ("sqlite3", lambda path: next(path.glob("*.db3")).unlink(), "files are missing"),
    "sqlite3 open": ("sqlite3", _leave_open, "bad.db3 was not closed, as bad.db3-wal has messages"),
    "sqlite3 cut off": ("sqlite3", lambda path: _truncate(next(path.glob("*.db3")), 0.6), "malformed"),
    "fewer messages": ("sqlite3", _lose_messages, "metadata.yaml says 175 messages, its files have 100; run `ros2 bag"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_bag_that_was_not_closed_is_listed_with_what_mends_it(tmp_path: Path, name: str) -> None:
    form, damage, message = DAMAGE[name]
    write(tmp_path / "good", "mcap", recording("mcap"))
    damage(write(tmp_path / "bad", form, recording(form)))
    result = read_source(find(str(tmp_path), [], LAYOUT))
    bad, good = sorted(result, key=lambda item: not isinstance(item, DamagedEpisode))
    assert isinstance(good, ReadEpisode) and len(good.steps["stamp"]) == 20
    assert isinstance(bad, DamagedEpisode) and bad.reason == "unreadable"
    assert str(bad).startswith("bad") and message in str(bad)


def test_mcap_of_other_messages_is_refused_with_what_reads_it(tmp_path: Path) -> None:
    path = write(tmp_path / "bag", "plain", recording("plain", seconds=0.2))
    path.write_bytes(path.read_bytes().replace(b"\x04\0\0\0ros2", b"\x04\0\0\0ros1", 1))
    with pytest.raises(SourceError, match="only MCAP files with ROS 2 messages are read; write a function"):
        find(str(path), [], LAYOUT)


def without(sent: list[Sent], topic: str, start: float, stop: float) -> list[Sent]:
    """Messages but those of a topic in [start, stop) seconds."""
    return [item for item in sent if item.topic != topic or not start <= (item.stamp - START) / 1e9 < stop]


def test_a_gap_of_a_camera_is_a_corrupt_frame_of_each_step_in_it(tmp_path: Path) -> None:
    sent = without(recording("mcap", seconds=3), FRONT, 0.75, 2.25)
    result = read_one(find(str(write(tmp_path / "bag", "mcap", sent)), [], LAYOUT))
    frames = result.cameras["observation/front"]
    assert len(frames) == 30
    # Steps are 0.1 to 3.0 s; pictures end at 0.7 s and begin again at 2.3 s, and each stands for 0.5 s.
    missing_frames = [number for number, frame in enumerate(frames) if isinstance(frame, CorruptFrame)]
    assert [round((number + 1) / 10, 1) for number in missing_frames] == [1.3, 1.4, 1.5, 1.6, 1.7]
    assert str(frames[missing_frames[0]]) == f"{FRONT}: no picture for 0.600 s"
    assert frames[:12] == [*(jpeg(n) for n in range(1, 8)), *[jpeg(7)] * 5]
    assert frames[17:] == [*[jpeg(23)] * 6, *(jpeg(n) for n in range(24, 31))]


@pytest.mark.parametrize(("topic", "name"), [(JOINTS, "state/joints"), (COMMAND, "action")])
def test_a_gap_of_numbers_is_a_damaged_episode(tmp_path: Path, topic: str, name: str) -> None:
    write(tmp_path / "a", "mcap", recording("mcap"))
    sent = without(recording("mcap"), topic, 1.0, 1.7)
    write(tmp_path / "b", "mcap", sent)
    result = fault(find(str(tmp_path), [], LAYOUT))
    assert result.startswith(f"b: {name}: {topic} has no message for 0.") and "more than max_gap 0.5 s" in result
    # Each value holds where the layout says so, and a longer gap is none where it says that.
    features = {**LAYOUT["features"], name: {"topic": topic, "hold": True}}
    for changes in ({"features": features}, {"max_gap": 0.8}):
        episodes = read_source(find(str(tmp_path), [], {**LAYOUT, **changes}))
        assert all(isinstance(item, ReadEpisode) for item in episodes)


def _stamped(topic: str, stamp: Callable[[int], int]) -> list[Sent]:
    """A recording with other header stamps of a topic, by the number of its message."""
    types, sent = Types("mcap"), recording("mcap")
    for number, item in enumerate([item for item in sent if item.topic == topic]):
        item.content.header = types.header(stamp(number))
    return sent


def _ragged() -> list[Sent]:
    types, sent = Types("mcap"), recording("mcap")
    other = types.joints(START, [1, 2], "ab")
    changed = [item.topic == JOINTS and item.stamp > START + 10**9 for item in sent]
    return [item._replace(content=other) if change else item for item, change in zip(sent, changed, strict=True)]


WRONG: dict[str, tuple[Callable[[], list[Sent]], str]] = {
    "zero": (lambda: _stamped(JOINTS, lambda n: 0 if n > 90 else START + n), "10 of 101 stamps are 0; take"),
    "back": (
        lambda: _stamped(FRONT, lambda n: START + n * 100_000_000 - (n > 12) * 900_000_000),
        f"{FRONT}: the clock jumps back by 0.800 s at message 13",
    ),
    "ahead": (
        lambda: _stamped(FRONT, lambda n: START + n * 100_000_000 + (n == 20) * 4 * 10**17),
        "so its stamps are wrong",
    ),
    "nothing": (lambda: without(recording("mcap"), DEPTH, 0, 9), "observation/depth: no topic '/depth/image_raw'"),
    "late": (lambda: without(recording("mcap"), JOINTS, 0, 2.001), "topic ends before every feature has a value"),
    "ragged": (_ragged, "a JointState has the joints a, b, the first one had a, b, c"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_clock_or_robot_gives_is_a_damaged_episode(tmp_path: Path, name: str) -> None:
    sent, message = WRONG[name]
    write(tmp_path / "a", "mcap", recording("mcap"))
    write(tmp_path / "b", "mcap", sent())
    result = fault(find(str(tmp_path), [], LAYOUT))
    assert result.startswith("b: ") and message in result
