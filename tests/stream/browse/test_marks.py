"""Marks are the file that ``episodes=`` takes, whole after every click."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stream.browse.marks import Marks
from stream.format.episode_list import read_list
from stream.storage.errors import ArgumentError


def test_marks_are_written_at_once_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "marks.json"
    marks = Marks(path, ["bridge", "rt1"])
    assert not path.exists()
    marks.set("bridge", "b", True)
    marks.set("bridge", "a", True)
    marks.set("rt1", "c", True)
    marks.set_use("rt1", "keep")
    marks.set("bridge", "b", False)
    assert json.loads(path.read_text()) == {"bridge": {"leave_out": ["a"]}, "rt1": {"keep": ["c"]}}
    again = Marks(path, ["bridge", "rt1"])
    assert (again.datasets, again.use("rt1"), again.has("bridge", "a"), len(again)) == (
        ["bridge", "rt1"],
        "keep",
        True,
        2,
    )
    assert read_list(json.loads(path.read_text())["rt1"], "").keeps


def test_a_list_by_hand_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "marks.json"
    path.write_text('{"bridge": ["*failure*", "a"]}')
    marks = Marks(path, ["bridge"])
    assert (marks.use("bridge"), marks.ids("bridge")) == ("keep", ["*failure*", "a"])


@pytest.mark.parametrize("content", ["[1]", "{", '{"kuka": ["a"]}', '{"bridge": {"some": ["a"]}}'])
def test_another_file_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "marks.json"
    path.write_text(content)
    with pytest.raises(ArgumentError):
        Marks(path, ["bridge"])
    assert path.read_text() == content
