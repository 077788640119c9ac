"""Episodes of LeRobot datasets are what LeRobot's own reader and PyAV give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convert.errors import CorruptFrame, DamagedEpisode
from convert.picture import decode_frame
from convert.source.episode import Episode, Frames
from convert.source.lerobot.dataset import LeRobotSource
from convert.source.protocol import ReadRequest, Span
from tests.convert.source.lerobot.reading import find, read_episodes
from tests.fixtures.datasets.lerobot_dataset import (
    CODECS,
    NAMES,
    copy_dataset,
    decoded_frames,
    edit_episodes,
    edit_info,
    encode_again,
    expected,
)


def pixels(frames: Frames | DamagedEpisode | None) -> list[np.ndarray]:
    assert frames is not None
    assert not isinstance(frames, DamagedEpisode), frames
    result = []
    for frame in frames:
        assert not isinstance(frame, CorruptFrame), frame
        result.append(decode_frame(frame))
    return result


def read(source: LeRobotSource, spans: Sequence[list[Span]] = ()) -> dict[int, tuple[Episode, list[list[np.ndarray]]]]:
    """Return episodes and the frames of each camera, by number of the episode."""
    result = {}
    for position, episode in read_episodes(source, spans=spans):
        assert isinstance(episode, Episode), episode
        result[position] = (episode, [pixels(frames) for frames in episode.cameras])
    return result


def faults(source: LeRobotSource) -> dict[int, tuple[str, str]]:
    """Return reason and message of each episode, camera or frame that is damaged, the last of each episode."""
    result = {}
    for position, episode in read_episodes(source):
        for part in [episode] if isinstance(episode, DamagedEpisode) else episode.cameras:
            if isinstance(part, DamagedEpisode):
                result[position] = (part.reason, str(part))
                continue
            frames = list(part or ())
            assert isinstance(episode, Episode) and len(frames) == episode.num_steps
            if missing_frames := [frame for frame in frames if isinstance(frame, CorruptFrame)]:
                result[position] = ("corrupt_frame", f"{len(missing_frames)}: {missing_frames[0]}")
    return result


@pytest.mark.parametrize("name", NAMES)
def test_every_value_is_what_lerobots_reader_gives(name: str, tmp_path: Path) -> None:
    reference = expected(name)
    actual = [episode for _, (episode, _) in sorted(read(find(copy_dataset(name, tmp_path))).items())]
    assert sum(episode.num_steps for episode in actual) == len(reference["timestamp"]) > 20
    numbers = [np.asarray(episode.episode["episode_index"].values) for episode in actual]
    repeated = np.repeat(numbers, [episode.num_steps for episode in actual])
    np.testing.assert_array_equal(repeated, reference["episode_index"])
    for key in (key for key in reference if "image" not in key and key != "episode_index"):
        values, columns = reference[key], [np.asarray(episode.steps[key].values) for episode in actual]
        result = np.concatenate(columns).reshape(values.shape)
        np.testing.assert_array_equal(result, values)
        assert result.dtype == values.dtype or key == "task"


@pytest.mark.parametrize("codec", [None, *CODECS])
@pytest.mark.parametrize("name", ["v3_av1", "v21_av1"])
def test_every_frame_is_what_pyav_decodes(name: str, codec: str | None, tmp_path: Path) -> None:
    folder = copy_dataset(name, tmp_path, codec=codec)
    source = find(folder)
    expected = decoded_frames(folder)
    for number, (episode, cameras) in read(source).items():
        for camera, frames in zip(expected, cameras, strict=True):
            assert len(frames) == len(expected[camera][number]) == episode.num_steps
            for actual, frame in zip(frames, expected[camera][number], strict=True):
                np.testing.assert_array_equal(actual, frame)


@pytest.mark.parametrize("name", NAMES)
def test_every_frame_is_that_of_lerobots_reader(name: str, tmp_path: Path) -> None:
    actual = [cameras for _, (_, cameras) in sorted(read(find(copy_dataset(name, tmp_path))).items())]
    reference = {key: values for key, values in expected(name).items() if "image" in key}
    for number, frames in enumerate(reference.values()):
        result = np.concatenate([cameras[number] for cameras in actual])
        # The processor decides how YUV is rounded to RGB.
        assert np.abs(result.astype(int) - frames).max() <= 2
        assert np.abs(result[1:].astype(int) - frames[:-1]).max() > 50


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_single_episodes_have_the_same_frames_wherever_they_are_in_their_file(
    codec: str | None, tmp_path: Path
) -> None:
    source = find(copy_dataset("v3_av1", tmp_path, codec=codec))
    complete = read(source)
    second = [[(1, 2)] if shard.every[1] > 1 else [(0, 0)] for shard in source.shards("train")]
    chosen = read(source, second)
    assert sorted(chosen) == [1, 3, 5]
    for number, (_, cameras) in chosen.items():
        for frames, complete_frames in zip(cameras, complete[number][1], strict=True):
            np.testing.assert_array_equal(frames, complete_frames)


def test_frames_of_the_primary_camera_are_read_without_the_others(tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    for path in folder.glob("videos/*wrist/**/*.mp4"):
        path.unlink()
    source = find(folder)
    front = source.features["steps/observation.images.front"]
    for shard in source.shards("train"):
        with shard.open(ReadRequest(cameras=(front,)), [shard.every]) as reader:
            assert all(isinstance(episode, Episode) for *_, episode in reader)


def test_a_file_of_several_episodes_that_lacks_frames_tells_none_of_them(tmp_path: Path) -> None:
    folder, video = copy_dataset("v3_av1", tmp_path), "videos/observation.images.left_wrist/chunk-000/file-001.mp4"
    encode_again(folder / video, codec="libx264", keep=lambda number: number < 20)
    result = faults(find(folder))
    assert set(result) == {3, 4, 5}
    assert result[5] == (
        "unmatched_frames",
        f"{video}: 20 frames for 23 rows, so the frames of the 5 rows of episode 5 cannot be identified: the file ends "
        "at 2.000 s, its episodes at 2.300 s, or some overlap",
    )


def test_an_episode_that_the_metadata_make_longer_is_malformed(tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    edit_episodes(folder, lambda rows: rows[3].update(length=9))
    result = faults(find(folder))
    assert result == {3: ("malformed", "data/chunk-000/file-001.parquet: 7 rows of episode 3, meta/episodes says 9")}


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_a_video_that_is_cut_short_loses_only_its_own_episodes(share: float, tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    path = folder / "videos/observation.images.front/chunk-000/file-001.mp4"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    result = faults(find(folder))
    assert set(result) == ({2, 3} if share < 0.5 else {3})
    assert {reason for reason, _ in result.values()} <= {"unreadable", "corrupt_frame", "unmatched_frames"}


def rewritten(edit: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(edit(path.read_bytes()))


DAMAGE: dict[str, tuple[Callable[[Path], object], str, set[int], str]] = {
    "v3_av1": (Path.unlink, "data/chunk-001/file-000.parquet", {4, 5}, ": missing; copy it again"),
    "v3_images": (
        *(rewritten(lambda content: content[:-200]), "data/chunk-000/file-001.parquet"),
        *({2, 3}, ": cannot be read as parquet"),
    ),
    "v21_av1": (
        rewritten(lambda content: content.replace(b"av01", b"zz99")),
        *("videos/chunk-000/observation.images.top/episode_000002.mp4", {2}, ": cannot be read as a video"),
    ),
}
"""A damage of a file of each dataset, the episodes that it makes unreadable, and the message."""


@pytest.mark.parametrize("name", DAMAGE)
def test_a_file_that_cannot_be_read_loses_only_its_own_episodes(name: str, tmp_path: Path) -> None:
    damage, file, lost, message = DAMAGE[name]
    folder = copy_dataset(name, tmp_path)
    damage(folder / file)
    result = faults(find(folder))
    assert set(result) == lost
    assert all(reason == "unreadable" and f"{file}{message}" in text for reason, text in result.values())


def edit_column(
    path: Path, column: str, edit: Callable[[list[Any]], list[Any]], kind: pa.DataType | None = None
) -> None:
    """Change the values of a column of a parquet file in place, and its type if one is given."""
    table = pq.read_table(path)
    values = edit(table.column(column).to_pylist())
    position = table.schema.get_field_index(column)
    pq.write_table(table.set_column(position, column, pa.array(values, kind or table.schema.types[position])), path)


def add_text(folder: Path, name: str, shape: list[int], kind: pa.DataType, value: Any) -> Path:
    """Add a feature of texts that has one value in every step; return the folder."""
    edit_info(folder, lambda info: info["features"].update({name: {"dtype": "string", "shape": shape}}))
    for path in folder.glob("data/**/*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.append_column(name, pa.array([value] * len(table), kind)), path)
    return folder


def put(*items: tuple[int, Any]) -> Callable[[list[Any]], list[Any]]:
    """Return an edit that replaces single values of a column."""
    return lambda values: [dict(items).get(row, value) for row, value in enumerate(values)]


FIRST_FILE = "data/chunk-000/file-000.parquet"
_LIST, _GRID = pa.list_(pa.float32()), pa.list_(pa.list_(pa.int64()))
ROWS: list[tuple[str, tuple[tuple[int, Any], ...], pa.DataType, str]] = [
    # The count of all values of the episode is as expected, so that only the rows show the fault.
    ("action", ((2, None), (3, [1] * 6)), _LIST, "action of step 2 has null, expected a list of 3"),
    ("action", ((2, [1, 2]), (3, [1] * 4)), _LIST, "action of step 2 has a list of 2, expected a list of 3"),
    ("action", ((2, [1, None, 3]),), _LIST, "action: 1 of 27 values are null, expected numbers"),
    ("observation.grid", ((4, [[1], [2, 3, 4]]),), _GRID, "observation.grid of step 4 has a list of 1, expected a"),
    ("observation.grid", ((4, [[1, 2, 3, 4], None]),), _GRID, "observation.grid of step 4 has a list of 4, expected"),
    ("next.reward", ((1, None),), pa.float32(), "next.reward: 1 of 9 values are null, expected numbers"),
    ("timestamp", ((0, np.nan),), pa.float32(), "timestamp of step 0 is nan, expected seconds"),
    ("timestamp", ((3, np.nan),), pa.float32(), "timestamp of step 3 is nan, expected seconds"),
    ("timestamp", ((3, np.inf),), pa.float32(), "timestamp of step 3 is inf, expected seconds"),
]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_without_its_values_makes_its_episode_malformed(row: tuple[Any, ...], tmp_path: Path) -> None:
    column, items, kind, message = row
    folder = copy_dataset("v3_av1", tmp_path)
    edit_column(folder / FIRST_FILE, column, put(*items), kind)
    ((number, (reason, text)),) = faults(find(folder)).items()
    assert (number, reason) == (0, "malformed") and f"{FIRST_FILE}: episode 0: {message}" in text


def test_a_column_of_other_lists_than_the_shape_is_malformed(tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    edit_info(folder, lambda info: info["features"]["observation.grid"].update(shape=[4, 1]))
    edit_info(folder, lambda info: info["features"]["next.reward"].update(shape=[2]))
    message = f"{FIRST_FILE}: episode 0: next.reward is stored as float, expected values of shape [2]"
    assert faults(find(folder))[0] == ("malformed", message)


@pytest.mark.parametrize(
    ("column", "edit", "kind", "message"),
    [
        ("episode_index", put((3, None)), None, "episode_index: 1 of 15 values are null"),
        (
            "episode_index",
            lambda values: list(map(str, values)),
            pa.string(),
            "episode_index: is stored as string, exp",
        ),
        ("observation.image", lambda values: [[1, 2]] * len(values), _LIST, "observation.image is stored as list"),
    ],
    ids=["null number", "text number", "list picture"],
)
def test_a_column_of_another_type_makes_the_episodes_of_its_file_malformed(
    column: str, edit: Callable[[list[Any]], list[Any]], kind: pa.DataType | None, message: str, tmp_path: Path
) -> None:
    folder = copy_dataset("v3_images" if "image" in column else "v3_av1", tmp_path)
    edit_column(folder / FIRST_FILE, column, edit, kind)
    result = faults(find(folder))
    assert {number: reason for number, (reason, _) in result.items()} == {0: "malformed", 1: "malformed"}
    assert all(f"{FIRST_FILE}: {message}" in text for _, text in result.values())


@pytest.mark.parametrize(
    ("shape", "kind", "value", "expected_texts"),
    [
        ([1], pa.string(), "a", ["a"]),
        ([1], pa.list_(pa.string()), ["a"], ["a"]),
        ([2], pa.list_(pa.string()), ["a", "b"], ["a", "b"]),
        ([2, 1], pa.list_(pa.list_(pa.string())), [["a"], [None]], ["a", ""]),
    ],
)
def test_texts_of_any_shape_are_read(
    shape: list[int], kind: pa.DataType, value: Any, expected_texts: list[str], tmp_path: Path
) -> None:
    folder = add_text(copy_dataset("v3_av1", tmp_path), "note", shape, kind, value)
    for episode, _ in read(find(folder)).values():
        assert episode.steps["note"].values == expected_texts * episode.num_steps


def test_a_text_that_is_none_is_malformed(tmp_path: Path) -> None:
    folder = add_text(copy_dataset("v3_av1", tmp_path), "note", [1], pa.binary(), b"\xff")
    result = faults(find(folder))
    assert len(result) == 7 and result[0][0] == "malformed"
    assert "episode 0: note is stored as binary, expected text" in result[0][1]


def test_flipped_bytes_in_a_video_never_move_frames_to_other_steps(tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    path = folder / "videos/observation.images.front/chunk-000/file-000.mp4"
    complete = {number: cameras[0] for number, (_, cameras) in read(find(folder)).items()}
    content = bytearray(path.read_bytes())
    for location in range(1200, 3000, 97):
        content[location] ^= 0xFF
    path.write_bytes(content)
    missing_frames = 0
    for position, episode in read_episodes(find(folder)):
        for step, frame in enumerate(episode.frames if isinstance(episode, Episode) else ()):
            if isinstance(frame, CorruptFrame):
                missing_frames += 1
                assert "cannot be decoded" in str(frame)
            else:
                assert np.asarray(frame).shape == complete[position][step].shape
    assert missing_frames
