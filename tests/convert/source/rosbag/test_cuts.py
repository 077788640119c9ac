"""Several episodes in a bag: told by a topic, or by a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from convert.errors import ConfigError, DamagedEpisode
from convert.source.files.source import FilesSource
from convert.source.rosbag.dataset import find
from tests.convert.source.rosbag.bags import (
    FORMS,
    JOINTS,
    LAYOUT,
    START,
    Form,
    ReadEpisode,
    Sent,
    Types,
    jpeg,
    read_source,
    recording,
    write,
)

SECOND = 10**9


def write_marked(path: Path, form: Form, kind: str, marks: dict[float, Any]) -> Path:
    """A recording of 4 s with marks at some seconds of receipt."""
    types, sent = Types(form), recording(form, seconds=4)
    for second, value in marks.items():
        time = START + round(second * SECOND)
        sent.append(Sent("/mark", f"std_msgs/msg/{kind}", time, time, types.make(f"std_msgs/msg/{kind}", data=value)))
    return write(path, form, sorted(sent, key=lambda item: item.received))


def read_marked(path: Path, **cuts: Any) -> list[Any]:
    return read_source(find(str(path), [], {**LAYOUT, "episodes": {"topic": "/mark", **cuts}}))


def seconds(episode: ReadEpisode) -> list[float]:
    return [round((stamp - START) / SECOND, 3) for stamp in episode.steps["stamp"].tolist()]


@pytest.mark.parametrize("form", FORMS)
def test_an_episode_is_while_a_bool_is_true(tmp_path: Path, form: Form) -> None:
    marks = {0.05: False, 0.95: True, 1.35: True, 1.75: False, 2.5: True, 3.05: False}
    first, second = read_marked(write_marked(tmp_path / "bag", form, "Bool", marks))
    # 1.0 s is no step of the first, as no depth picture came since 0.95 s.
    assert seconds(first) == [1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
    assert first.cameras["observation/front"] == [jpeg(number) for number in range(11, 18)]
    assert seconds(second) == [2.7, 2.8, 2.9, 3.0]
    assert second.steps["state/joints"][:, 0].tolist() == [134, 139, 144, 149]
    # The task was told once, before all of them.
    assert first.steps["language"] == ["task 0"] * 7


@pytest.mark.parametrize(("kind", "values"), [("String", ["idle", "fold", "push"]), ("Int32", [0, 1, 2])])
def test_an_episode_is_while_a_text_or_number_stays_the_same(tmp_path: Path, kind: str, values: list[Any]) -> None:
    idle, first, second = values
    marks = {0.0: idle, 0.95: first, 1.2: first, 1.55: second, 2.15: idle, 3.15: first}
    path = write_marked(tmp_path / "bag", "mcap", kind, marks)
    result = read_marked(path, without=[idle])
    assert [item.episode["mark"] for item in result] == [first, second, first]
    assert [(seconds(item)[0], seconds(item)[-1]) for item in result] == [(1.1, 1.5), (1.7, 2.1), (3.3, 4.0)]


def test_an_episode_that_nothing_ends_is_damaged(tmp_path: Path) -> None:
    path = write_marked(tmp_path / "bag", "mcap", "Bool", {0.95: True, 1.75: False, 2.5: True})
    first, second = read_marked(path)
    assert isinstance(first, ReadEpisode)
    assert isinstance(second, DamagedEpisode) and str(second) == "bag: the bag ends before /mark ends the episode"


def open_table(folder: Path, text: str, **cuts: Any) -> FilesSource:
    (folder / "cuts.csv").write_text(text)
    return find(str(folder), [], {**LAYOUT, "episodes": {"csv": "cuts.csv", **cuts}})


@pytest.mark.parametrize("form", FORMS)
def test_a_table_cuts_bags_and_gives_values_of_their_episodes(tmp_path: Path, form: Form) -> None:
    for seed, name in enumerate("ab"):
        write(tmp_path / name, form, recording(form, seconds=4, seed=seed))
    rows = ["b,0.5,1.5,fold,1,true", "a,2,3,push,2.5,false", "b,1.5,2.5,put,3,true", ""]
    source = open_table(tmp_path, "\n".join(["file,start,stop,language,score,success", *rows]))
    assert source.splits == {"train": (1, 2)}
    result = [item for item in read_source(source) if isinstance(item, ReadEpisode)]
    assert [item.episode["language"] for item in result] == ["push", "fold", "put"]
    assert [item.episode["score"].item() for item in result] == [2.5, 1.0, 3.0]
    assert [item.episode["success"] for item in result] == ["false", "true", "true"]
    assert [(seconds(item)[0], seconds(item)[-1]) for item in result] == [(2.1, 2.9), (0.7, 1.4), (1.7, 2.4)]
    unix = "file,start,stop\na,1700000002,1700000003\n"
    (only,) = read_source(open_table(tmp_path, unix, times="unix"))
    assert isinstance(only, ReadEpisode) and (seconds(only)[0], seconds(only)[-1]) == (2.1, 2.9)


def test_an_episode_beyond_its_bag_is_damaged(tmp_path: Path) -> None:
    write(tmp_path / "a", "mcap", recording("mcap"))
    complete, beyond = read_source(open_table(tmp_path, "file,start,stop\na,0,2.1\na,1,9\n"))
    assert isinstance(complete, ReadEpisode) and len(seconds(complete)) == 20
    assert isinstance(beyond, DamagedEpisode)
    assert str(beyond) == "a: line 3: 1 to 9 s, but the bag has 0.00 to 2.01 s"


TABLES = {
    "file,begin,stop\na,0,1\n": "has no column start; columns there: begin, file, stop",
    "file,start,stop\na,0\n": "line 2 has another number of cells than the 3 columns",
    "file,start,stop\na,0,1,2\n": "line 2 has another number of cells than the 3 columns",
    "file,start,stop\na,0,1\naa,0,1\n": "line 3: file 'aa': did you mean 'a'?",
    "file,start,stop\na,1,1\n": "line 2: '1' to '1', expected seconds, start before stop",
    "file,start,stop\na,nan,1\n": "line 2: 'nan' to '1', expected seconds",
}


@pytest.mark.parametrize("text", TABLES)
def test_a_table_that_is_not_valid_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    write(tmp_path / "a", "mcap", recording("mcap", seconds=0.5))
    with pytest.raises(ConfigError) as error:
        open_table(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path}/cuts.csv: ") and TABLES[text] in str(error.value)


def test_a_topic_or_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "mcap", recording("mcap", seconds=0.5))
    for cuts, message in (
        ({"topic": "/marks"}, "no topic '/marks'"),
        ({"topic": JOINTS, "field": "position"}, "field 'position' of /joint_states is an array, expected one value"),
        ({"csv": "none.csv"}, "none.csv: cannot be read: No such file or directory"),
    ):
        with pytest.raises(ConfigError, match=message):
            find(str(path), [], {**LAYOUT, "episodes": cuts})
