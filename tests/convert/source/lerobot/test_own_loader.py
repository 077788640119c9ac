"""Datasets that LeRobot's own loader reads, or parts it never looks at, which do not stop a conversion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convert.errors import SourceError
from convert.source.episode import Episode
from convert.source.protocol import ReadRequest, join_digests
from tests.convert.source.lerobot.reading import find, read_episodes
from tests.fixtures.datasets.lerobot_dataset import edit_info
from tests.fixtures.datasets.numbered_lerobot import (
    CAMERA,
    LENGTHS,
    TASKS,
    numbers,
    read_rows,
    shown_numbers,
    write_numbered,
    write_rows,
    write_tasks,
)

OWN: dict[int, Any] = {episode: numbers(episode, steps) for episode, steps in enumerate(LENGTHS)}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 123\n"


def instructions(folder: Path) -> list[str]:
    """Return the task of the first step of each episode."""
    episodes = [content for _, content in read_episodes(find(folder), pictures=False) if isinstance(content, Episode)]
    return [str((episode.steps["task"].values or [""])[0]) for episode in episodes]


def split_data(folder: Path) -> None:
    """Give each episode of a v3 dataset a parquet file of its own, and leave the metadata as they are."""
    path = folder / "data/chunk-000/file-000.parquet"
    rows = pq.read_table(path)
    for episode in range(len(LENGTHS)):
        values = rows.filter(pa.compute.equal(rows["episode_index"], episode))
        pq.write_table(values, folder / f"data/chunk-000/file-{episode:03d}.parquet")


def test_version_2_0_differs_in_statistics_alone(tmp_path: Path) -> None:
    folder = write_numbered(tmp_path, "v2.0")
    assert (shown_numbers(folder), find(folder).entry["version"]) == (OWN, "2.0.0")


@pytest.mark.parametrize(
    ("keys", "result"),
    [
        (("actions", "state"), {"action": "actions", "state": "state"}),
        (("action", "state"), {"action": "action", "state": "state"}),
        (("actions", "observation.state"), {"action": "actions", "state": "observation.state"}),
        (("command", "observation.joints"), {}),
        (
            ("actions.joint.position", "observation.states.joint.position"),
            {"action": "actions.joint.position", "state": "observation.states.joint.position"},
        ),
    ],
)
def test_action_and_state_have_the_names_of_openpis_converters_too(
    keys: tuple[str, str], result: dict[str, str], tmp_path: Path
) -> None:
    entry = find(write_numbered(tmp_path, keys=keys)).entry
    assert {name: part["path"] for name in ("action", "state") for part in entry[name]} == result


@pytest.mark.parametrize(
    "names",
    [["x", "y", "g"], [["x", "y"], ["g"]], {"motors": ["x", "y", "g"]}, {"arm": {"all": ["x", "y", "g"]}}],
    ids=str,
)
def test_names_of_values_may_be_nested(names: Any, tmp_path: Path) -> None:
    folder = write_numbered(tmp_path)
    edit_info(folder, lambda info: info["features"]["action"].update(names=names))
    assert find(folder).entry["action"][0]["names"] == ["x", "y", "g"]


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_a_task_is_its_text_whatever_other_texts_stand_beside_it(version: str, tmp_path: Path) -> None:
    folder = write_numbered(tmp_path, version)
    rows = [{"category": "kitchen", "task_index": number, "task": text, "z": "z"} for number, text in enumerate(TASKS)]
    write_tasks(folder, rows)
    assert instructions(folder) == [TASKS[0], TASKS[1], TASKS[0]]
    # The unnamed index of a table.
    write_tasks(folder, [{"task_index": number, "__index_level_0__": text} for number, text in enumerate(TASKS)])
    assert instructions(folder) == [TASKS[0], TASKS[1], TASKS[0]]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x1e"])
def test_a_line_of_json_ends_with_a_line_feed_alone(separator: str, tmp_path: Path) -> None:
    folder = write_numbered(tmp_path, "v2.1")
    text = f"pick up{separator}the cup"
    lines = [json.dumps({"task_index": 0, "task": text}, ensure_ascii=False), '{"task_index": 1, "task": "b"}', ""]
    (folder / "meta/tasks.jsonl").write_text("\r\n".join(lines), newline="")
    assert instructions(folder) == [text, "b", text]


@pytest.mark.parametrize("value", [0, None, 9])
def test_rows_are_found_in_whatever_parquet_file_they_are(value: int | None, tmp_path: Path) -> None:
    folder = write_numbered(tmp_path)
    rows = read_rows(folder)
    rows[1]["data/file_index"] = value
    write_rows(folder, rows)
    assert shown_numbers(folder) == OWN
    split_data(folder)
    (folder / "data/chunk-001").mkdir()
    (folder / "data/chunk-000/file-000.parquet").rename(folder / "data/chunk-001/file-007.parquet")
    assert shown_numbers(folder) == OWN


def test_a_shard_with_rows_elsewhere_differs_only_when_its_files_do(tmp_path: Path) -> None:
    folder = write_numbered(tmp_path)
    split_data(folder)
    (shard,) = find(folder).shards("train")
    request = ReadRequest(cameras=())
    with shard.open(request, [(0, 3)]) as reader:
        assert len(list(reader)) == 3
        digest = join_digests([reader.digests])
    assert not shard.differs(request, [(0, 3)], digest=digest, left_out={})
    path = folder / "data/chunk-000/file-002.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.schema.get_field_index("index"), "index", table["frame_index"]), path)
    assert shard.differs(request, [(0, 3)], digest=digest, left_out={})


def test_rows_that_no_file_has_are_malformed_or_missing(tmp_path: Path) -> None:
    folder = write_numbered(tmp_path)
    path = folder / "data/chunk-000/file-000.parquet"
    rows = pq.read_table(path)
    pq.write_table(rows.filter(pa.compute.less(rows["episode_index"], 2)), path)
    fault = "malformed: data/chunk-000/file-000.parquet: 0 rows of episode 2, meta/episodes says 7"
    assert shown_numbers(folder) == {**OWN, 2: fault}


@pytest.mark.parametrize("key", ["chunk_index", "file_index", "from_timestamp"])
def test_an_episode_without_its_video_leaves_the_others(key: str, tmp_path: Path) -> None:
    folder = write_numbered(tmp_path)
    rows = read_rows(folder)
    rows[1][f"videos/{CAMERA}/{key}"] = None
    write_rows(folder, rows)
    expected = "whole number from 0" if key.endswith("index") else "number"
    fault = f"malformed: meta/episodes: videos/{CAMERA}/{key} of episode 1 is None, expected a {expected}"
    assert shown_numbers(folder) == {**OWN, 1: fault}


@pytest.mark.parametrize("name", [f"videos/{CAMERA}/chunk-000/file-000.mp4", "data/chunk-000/file-000.parquet"])
def test_a_pointer_of_git_lfs_is_called_one(name: str, tmp_path: Path) -> None:
    folder = write_numbered(tmp_path)
    (folder / name).write_text(POINTER)
    message = f"unreadable: {folder}/{name}: a pointer of Git LFS, not the file itself; run `git lfs pull` in the"
    assert shown_numbers(folder) == dict.fromkeys(OWN, f"{message} dataset")


@pytest.mark.parametrize("name", ["meta/info.json", "meta/tasks.parquet", "meta/episodes/chunk-000/file-000.parquet"])
def test_metadata_that_are_a_pointer_of_git_lfs_are_called_one(name: str, tmp_path: Path) -> None:
    folder = write_numbered(tmp_path)
    (folder / name).write_text(POINTER)
    with pytest.raises(SourceError, match=rf"{name}: a pointer of Git LFS, not the file itself; run `git lfs pull`"):
        find(folder)


@pytest.mark.parametrize("pattern", ["{chunk_index:03}", "{chunk_index:03d}", "00{chunk_index}", "00{chunk_index:d}"])
def test_a_placeholder_is_padded_as_python_pads_it(pattern: str, tmp_path: Path) -> None:
    folder = write_numbered(tmp_path)
    edit_info(folder, lambda info: info.update(data_path=f"data/chunk-{pattern}/file-{{file_index:03d}}.parquet"))
    assert shown_numbers(folder) == OWN


def test_files_that_are_missing_are_counted_and_named(tmp_path: Path) -> None:
    folder = write_numbered(tmp_path, "v2.1")
    for episode in (0, 2):
        (folder / f"videos/chunk-000/{CAMERA}/episode_{episode:06d}.mp4").unlink()
    names = [f"videos/chunk-000/{CAMERA}/episode_{episode:06d}.mp4" for episode in (0, 2)]
    assert find(folder).remarks[-1] == f"files missing: 2 of 6: {', '.join(names)}"
