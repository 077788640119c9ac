"""Bags and topics without messages: each is a listed episode, and the dataset is what the others say."""

from __future__ import annotations

from pathlib import Path

import pytest
from rosbags.rosbag2 import StoragePlugin, Writer

from convert.errors import SourceError
from convert.source.rosbag.dataset import find
from tests.convert.source.rosbag.bags import (
    FORMS,
    JOINTS,
    LAYOUT,
    Form,
    ReadEpisode,
    Types,
    fault,
    read_source,
    recording,
    write,
)


@pytest.mark.parametrize("form", FORMS)
def test_a_first_bag_without_messages_is_one_listed_episode(tmp_path: Path, form: Form) -> None:
    write(tmp_path / "a", form, [])
    write(tmp_path / "b", form, recording(form, seconds=0.5))
    source = find(str(tmp_path), [], LAYOUT)
    result = read_source(source)
    assert [isinstance(item, ReadEpisode) for item in result] == [False, True]
    assert fault(source).startswith("a")


def test_bags_without_any_message_are_one_error(tmp_path: Path) -> None:
    write(tmp_path / "a", "mcap", [])
    with pytest.raises(SourceError, match="no bag can be read; a: has no messages"):
        find(str(tmp_path), [], LAYOUT)


def test_joints_are_those_of_the_first_bag_that_has_their_messages(tmp_path: Path) -> None:
    types = Types("mcap")
    with Writer(tmp_path / "a", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        writer.add_connection(JOINTS, "sensor_msgs/msg/JointState", typestore=types.store)
        for sent in recording("mcap", seconds=0.2):
            if sent.topic != JOINTS:
                expected_names = next((item for item in writer.connections if item.topic == sent.topic), None)
                topic = expected_names or writer.add_connection(sent.topic, sent.kind, typestore=types.store)
                writer.write(topic, sent.received, types.store.serialize_cdr(sent.content, sent.kind))
    write(tmp_path / "b", "mcap", recording("mcap", seconds=0.5))
    source = find(str(tmp_path), [], LAYOUT)
    assert source.entry["state"][0]["names"] == ["a", "b", "c"]
    assert fault(source) == f"a: state/joints: {JOINTS} has no message in the episode"
