"""Marks are the file that ``episodes=`` takes, whole after every click."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pairstream.browse.marks import Marks
from stream.base.errors import ArgumentError, StreamError
from stream.format.episode_list import read_list


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "marks.json"


def test_marks_are_written_at_once_and_read_again(path: Path) -> None:
    marks = Marks(path, ["bridge", "rt1"])
    assert not path.exists()
    marks.set("bridge", "b", True)
    marks.set("bridge", "a", True)
    marks.set("rt1", "c", True)
    marks.set_use("rt1", "keep")
    marks.set("bridge", "b", False)
    assert json.loads(path.read_text()) == {"bridge": {"leave_out": ["a"]}, "rt1": {"keep": ["c"]}}
    reopened = Marks(path, ["bridge", "rt1"])
    assert reopened.datasets == ["bridge", "rt1"] and len(reopened) == 2
    assert reopened.use("rt1") == "keep" and reopened.has("bridge", "a")
    assert read_list(json.loads(path.read_text())["rt1"], "").keeps


def test_a_list_by_hand_is_taken_over(path: Path) -> None:
    path.write_text('{"bridge": ["*failure*", "a"]}')
    marks = Marks(path, ["bridge"])
    assert (marks.use("bridge"), marks.ids("bridge")) == ("keep", ["*failure*", "a"])


@pytest.mark.parametrize(
    "content", ["[1]", "{", '{"kuka": 3}', '{"kuka": {"some": ["a"]}}', '{"bridge": {"some": ["a"]}}', '{"bridge": []}']
)
def test_another_file_is_refused_and_left_alone(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(ArgumentError):
        Marks(path, ["bridge"])
    assert path.read_text() == content


def test_marks_of_another_root_stay_as_they_are(path: Path) -> None:
    foreign = {"kuka": ["*failure*"], "droid": {"leave_out": ["d", "c"]}}
    path.write_text(json.dumps({**foreign, "bridge": {"leave_out": ["a"]}}))
    marks = Marks(path, ["bridge", "rt1"])
    assert (marks.datasets, len(marks), marks.others) == (["bridge"], 1, foreign)
    marks.set("bridge", "b", True)
    marks.set_use("bridge", "keep")
    assert json.loads(path.read_text()) == {**foreign, "bridge": {"keep": ["a", "b"]}}
    assert json.loads(marks.to_json()) == {"bridge": {"keep": ["a", "b"]}}
    for episode_id in "ab":
        marks.set("bridge", episode_id, False)
    assert json.loads(path.read_text()) == foreign


def test_two_browsers_with_one_file_keep_the_marks_of_each_other(path: Path) -> None:
    first, second = Marks(path, ["bridge"]), Marks(path, ["bridge", "rt1"])
    first.set_use("bridge", "keep")
    first.set("bridge", "a", True)
    second.set("rt1", "c", True)
    first.set("bridge", "b", True)
    assert json.loads(path.read_text()) == {"bridge": {"keep": ["a", "b"]}, "rt1": {"leave_out": ["c"]}}
    second.set("bridge", "a", False)
    assert first.others == {"rt1": {"leave_out": ["c"]}}
    first.set("bridge", "d", True)
    assert not first.has("bridge", "a") and first.ids("bridge") == ["b", "d"]


def test_a_file_that_was_damaged_meanwhile_is_not_written_over(path: Path) -> None:
    marks = Marks(path, ["bridge"])
    path.write_text("{")
    with pytest.raises(ArgumentError, match=r"marks.json: not a JSON file"):
        marks.set("bridge", "a", True)
    assert path.read_text() == "{"


def test_marks_that_cannot_be_written_are_one_error(path: Path) -> None:
    marks = Marks(path.parent / "gone" / "marks.json", ["bridge"])
    with pytest.raises(StreamError, match=r"gone/marks.json: cannot be written \(No such file or directory\)"):
        marks.set("bridge", "a", True)
