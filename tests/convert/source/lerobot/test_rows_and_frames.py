"""A row of a video shows its own frame, or none; which it is, is said wherever it cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.source.lerobot.video import VideoFile
from tests.fixtures.datasets.numbered_lerobot import (
    CAMERA,
    LENGTHS,
    number_of,
    numbers,
    read_rows,
    shown_numbers,
    write_numbered,
    write_rows,
    write_video,
)

OWN: dict[int, Any] = {episode: numbers(episode, steps) for episode, steps in enumerate(LENGTHS)}
ALL = [number for steps in OWN.values() for number in steps]
UNTOLD = "unmatched_frames"


def told(folder: Path) -> dict[int, Any]:
    """Return what each episode shows, of a damaged one the reason alone."""
    return {
        episode: steps.partition(":")[0] if isinstance(steps, str) else steps
        for episode, steps in shown_numbers(folder).items()
    }


def edit(folder: Path, change: Callable[[list[dict[str, Any]]], object]) -> Path:
    rows = read_rows(folder)
    change(rows)
    write_rows(folder, rows)
    return folder


FROM, TO = (f"videos/{CAMERA}/{key}_timestamp" for key in ("from", "to"))


def jitter(k: int) -> float:
    """Times of which some are most of a frame off."""
    return (k + 0.8 * (k % 3 == 1)) / 10


COUNTED: dict[str, dict[str, Any]] = {
    "rate 9 for 10": {"fps": 9, "times": lambda k: k / 10},
    "rate 11 for 10": {"fps": 11, "times": lambda k: k / 10},
    "rate 20 for 10": {"fps": 20, "times": lambda k: k / 10},
    "times have jitter of most of a frame": {"times": jitter},
    "times have a pause": {"times": lambda k: k / 10 + (k > 2) * 0.4},
    "the first frame is at a frame's length": {"times": lambda k: (k + 1) / 10},
    "the first frame is at 5 s": {"times": lambda k: k / 10 + 5},
    "timestamps are all 0": {"stamps": lambda first, steps: np.zeros(steps)},
    "timestamps are all 7": {"stamps": lambda first, steps: np.full(steps, 7)},
    "timestamps go on over episodes": {"stamps": lambda first, steps: np.arange(first, first + steps) / 10},
    "timestamps begin late": {"stamps": lambda first, steps: np.arange(2, 2 + steps) / 10},
    "timestamps are those of a clock": {"stamps": lambda first, steps: 1_700_000_000 + np.arange(steps) / 10},
}


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
@pytest.mark.parametrize("name", COUNTED)
def test_a_file_with_as_many_frames_as_rows_shows_them_in_order(name: str, version: str, tmp_path: Path) -> None:
    assert told(write_numbered(tmp_path, version, **COUNTED[name])) == OWN


def short(at_frame: int) -> list[list[int]]:
    return [[number for position, number in enumerate(ALL) if position != at_frame]]


@pytest.mark.parametrize("missing", [0, 3, 5, 6, 17])
def test_of_a_file_of_several_episodes_that_lacks_a_frame_none_can_be_told(missing: int, tmp_path: Path) -> None:
    assert told(write_numbered(tmp_path, frames=short(missing))) == dict.fromkeys(OWN, UNTOLD)


@pytest.mark.parametrize("position", [0, 3, 6, 18])
def test_of_a_file_of_several_episodes_with_a_frame_more_none_can_be_told(position: int, tmp_path: Path) -> None:
    folder = write_numbered(tmp_path, frames=[[*ALL[:position], 999, *ALL[position:]]])
    assert told(folder) == dict.fromkeys(OWN, UNTOLD)


def test_a_frame_that_was_dropped_at_its_time_is_a_hole_of_its_step_alone(tmp_path: Path) -> None:
    folder = write_numbered(tmp_path, frames=short(7), times=lambda k: (k + (k >= 7)) / 10)
    assert told(folder) == {**OWN, 1: [100, None, 102, 103, 104]}


def test_a_frame_that_was_added_between_two_times_is_listed_and_moves_no_other(tmp_path: Path) -> None:
    def times(k: int) -> float:
        return (k - 0.5 if k == 8 else k - (k > 8)) / 10

    result = told(write_numbered(tmp_path, frames=[[*ALL[:8], 999, *ALL[8:]]], times=times))
    assert {episode: steps[: LENGTHS[episode]] for episode, steps in result.items()} == OWN
    more = "1 frames more than the 5 rows, which have theirs by time"
    assert result[1][5] == f"videos/{CAMERA}/chunk-000/file-000.mp4: {more}"


@pytest.mark.parametrize("lost", [1, 3])
def test_the_last_frames_that_a_file_of_one_episode_lacks_are_holes(lost: int, tmp_path: Path) -> None:
    folder = write_numbered(tmp_path, "v2.1", frames=[OWN[0], OWN[1][:-lost], OWN[2]])
    assert told(folder) == {**OWN, 1: [*OWN[1][:-lost], *[None] * lost]}


@pytest.mark.parametrize("times", [lambda k: k / 9, lambda k: k / 11, jitter], ids=["slower", "faster", "jitter"])
def test_where_counts_and_times_disagree_no_frame_is_guessed(times: Callable[[int], float], tmp_path: Path) -> None:
    frames = [OWN[0], OWN[1][:-1], OWN[2]]
    assert told(write_numbered(tmp_path, "v2.1", frames=frames, times=times)) == {**OWN, 1: UNTOLD}


@pytest.mark.parametrize(
    "stamps",
    [np.zeros, lambda steps: np.arange(1, 1 + steps) / 10, lambda steps: np.arange(steps)[::-1] / 10],
    ids=["zero", "late", "backwards"],
)
def test_where_counts_disagree_timestamps_have_to_be_those_of_the_episode(stamps: Any, tmp_path: Path) -> None:
    frames = [OWN[0], OWN[1][:-1], OWN[2]]
    folder = write_numbered(tmp_path, "v2.1", frames=frames, stamps=lambda first, steps: stamps(steps))
    assert told(folder) == {**OWN, 1: UNTOLD}


def test_more_frames_than_the_rows_of_the_one_episode_of_a_file_are_listed(tmp_path: Path) -> None:
    result = told(write_numbered(tmp_path, "v2.1", frames=[OWN[0], [*OWN[1], 998, 999], OWN[2]]))
    name = f"videos/chunk-000/{CAMERA}/episode_000001.mp4"
    assert result == {**OWN, 1: [*OWN[1], f"{name}: 2 frames more than the 5 rows, which have theirs by time"]}


@pytest.mark.parametrize(
    ("starts", "stops", "told_episodes"),
    [
        # One begins late, with or without its end.
        ({1: 0.8}, {}, {0, 2}),
        ({1: 0.8}, {1: 1.3}, {0, 2}),
        ({0: 0.1}, {}, {1, 2}),
        ({2: 1.2}, {2: 1.9}, {0, 1}),
        # All begin a row late, with files and rows that agree.
        ({0: 0.1, 1: 0.7, 2: 1.2}, {}, {}),
        # The last row's time in place of the end, which LeRobot never reads.
        ({}, {0: 0.5, 1: 1.0, 2: 1.7}, {0, 1, 2}),
        ({}, {0: None, 1: None, 2: None}, {0, 1, 2}),
    ],
)
def test_an_episode_that_does_not_begin_where_those_before_it_end_cannot_be_told(
    starts: dict[int, float], stops: dict[int, float | None], told_episodes: set[int], tmp_path: Path
) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        for key, changes in ((FROM, starts), (TO, stops)):
            for episode, second in changes.items():
                rows[episode][key] = second

    result = told(edit(write_numbered(tmp_path), change))
    assert result == {episode: OWN[episode] if episode in told_episodes else UNTOLD for episode in OWN}


def test_episodes_that_overlap_cannot_be_told_where_a_frame_is_missing_too(tmp_path: Path) -> None:
    folder = write_numbered(tmp_path, frames=short(3), times=lambda k: (k + (k >= 3)) / 10)
    result = told(edit(folder, lambda rows: rows[1].update({FROM: 0.8, TO: 1.3})))
    assert result == dict.fromkeys(OWN, UNTOLD)


def real_times(rows: list[dict[str, Any]], counts: tuple[int, ...]) -> None:
    """Let each episode take as long as its frames, as LeRobot's own writer has it."""
    ends = np.cumsum([0, *counts])
    for row, first, last in zip(rows, ends, ends[1:], strict=False):
        row |= {FROM: first / 10, TO: last / 10}


def test_an_episode_whose_own_time_lacks_a_frame_or_has_one_more_moves_no_other(tmp_path: Path) -> None:
    folder = write_numbered(tmp_path / "lacks", frames=short(10))
    assert told(edit(folder, lambda rows: real_times(rows, (6, 4, 7)))) == {**OWN, 1: [*OWN[1][:-1], None]}
    folder = write_numbered(tmp_path / "more", frames=[[*ALL[:6], 999, *ALL[6:]]])
    result = told(edit(folder, lambda rows: real_times(rows, (7, 5, 7))))
    assert {**result, 0: result[0][:6]} == OWN


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_frames_of_an_episode_that_was_taken_out_of_the_metadata_are_nobodys(removed: int, tmp_path: Path) -> None:
    result = told(edit(write_numbered(tmp_path), lambda rows: rows.pop(removed)))
    # After the last one the file ends elsewhere than its episodes.
    assert result == {**(dict.fromkeys(OWN, UNTOLD) if removed == 2 else OWN), removed: "malformed"}


@pytest.mark.parametrize("bframes", [0, 3])
def test_frames_are_found_from_any_key_frame_also_where_they_depend_on_later_ones(bframes: int, tmp_path: Path) -> None:
    shown = list(range(80))
    write_video(tmp_path / "video.mp4", shown, lambda k: k / 10, bframes=bframes)
    opened = VideoFile(tmp_path / "video.mp4", name="video.mp4")
    for chosen in ([9], [70, 75], [3, 40, 41, 79], [78], [0]):
        result = [number_of(np.asarray(frame)) for frame in opened.frames(np.array(chosen))]
        assert result == chosen
    opened.close()
