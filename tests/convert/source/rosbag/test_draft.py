"""A layout that a bag suggests: it reads the bag as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from convert.errors import SourceError
from convert.source.kinds import suggest_layout
from convert.source.rosbag.dataset import draft, find
from tests.convert.source.rosbag.bags import (
    COMMAND,
    DEPTH,
    FORMS,
    FRONT,
    JOINTS,
    TASK,
    Form,
    read_one,
    recording,
    write,
)


@pytest.mark.parametrize("form", FORMS)
def test_a_draft_names_cameras_rate_and_vectors_and_reads_the_bag(tmp_path: Path, form: Form) -> None:
    path = write(tmp_path / "bag", form, recording(form))
    layout, comments = draft(str(path), [])
    assert layout == {
        "rate": 10,
        "clock": FRONT,
        "stamps": "header",
        "features": {
            "observation/front": {"topic": FRONT},
            "observation/depth": {"topic": DEPTH},
            "action/command": {"topic": COMMAND},
            "state/joint_states": {"topic": JOINTS},
            "language": {"topic": TASK},
        },
    }
    assert list(layout["features"])[:2] == ["observation/front", "observation/depth"]
    assert comments["features.observation/depth"] == "depth, uint16 4 x 5"
    assert comments["features.state/joint_states"] == "sensor_msgs/msg/JointState: a, b, c"
    assert suggest_layout(f"rosbag:{path}", []) == layout
    source = find(str(path), [], layout)
    assert [part["path"] for part in source.entry["action"] + source.entry["state"]] == [
        "action/command",
        "state/joint_states",
    ]
    assert len(read_one(source).steps["stamp"]) == 20


def test_a_draft_of_no_bag_says_why(tmp_path: Path) -> None:
    path = write(tmp_path / "bag", "plain", recording("plain"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SourceError, match=r"no bag can be read; .*mcap recover"):
        draft(str(path), [])
