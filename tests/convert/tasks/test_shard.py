"""A shard becomes records and rows, once, and the same ones each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from convert.journal.journal import Journal
from convert.picture import decode_frame
from convert.plan import ConvertConfig
from convert.shard.images import FramePolicy
from convert.shard.record_file import encode_record
from convert.tasks.shard import convert_shard
from tests.fixtures.converted_shard import EPISODES, KINDS, POLICY, STEM, FileKind, shard_of


def frames_of(episode: dict[str, Any]) -> list[bytes]:
    return [step["observation"]["image"] for step in episode["steps"]]


def test_every_pair_of_every_episode_is_a_record_with_the_sources_own_bytes(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES)
    status = shard.convert()
    expected = [zip(frames, frames[2:], strict=False) for frames in map(frames_of, EPISODES)]
    assert shard.records() == [list(pair) for pairs in expected for pair in pairs]
    assert (status.entry.records, status.entry.passed, status.entry.sizes) == (7, 11, {"24x32": 11})


def test_a_row_describes_each_record(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES)
    shard.convert()
    assert shard.table("records") == {
        "shard": [0] * 7,
        "episode": [0, 0, 0, 0, 3, 3, 3],
        "step": [0, 1, 2, 3, 0, 1, 2],
        "camera": [0] * 7,
        "offset": [2] * 7,
        "steps_row": [0, 1, 2, 3, 8, 9, 10],
        "position": ANY,
        "num_bytes": [8 + 4 * 2 + sum(map(len, record)) for record in shard.records()],
        "xxh3_64": [xxh3_64_intdigest(encode_record(record)) for record in shard.records()],
    }


def test_a_record_lies_where_its_row_says(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES)
    shard.convert()
    content = shard.path("arrayrecord").read_bytes()
    locations = shard.table("records")
    for record, start, size in zip(shard.records(), locations["position"], locations["num_bytes"], strict=True):
        assert content[start : start + size] == encode_record(record)


def test_a_row_describes_each_step_of_each_episode_also_of_those_too_short(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES)
    shard.convert()
    table = shard.table("steps")
    steps = [(index, t, step) for index, episode in enumerate(EPISODES) for t, step in enumerate(episode["steps"])]
    assert table["episode"] == [index for index, _, _ in steps]
    assert table["step"] == [t for _, t, _ in steps]
    assert table["language"] == [step["language_instruction"] for _, _, step in steps]
    assert table["is_last"] == [step["is_last"] for _, _, step in steps]
    np.testing.assert_array_equal(table["action_"], [step["action"] for _, _, step in steps])
    np.testing.assert_array_equal(table["observation/state"], [step["observation"]["state"] for _, _, step in steps])


def test_a_row_describes_each_episode_and_why_it_gave_no_pair(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES, robot="xarm")
    shard.convert()
    name = "demo-train.tfrecord-00000-of-00001"
    assert shard.table("episodes") == {
        "episode": [0, 1, 2, 3],
        "shard": [0] * 4,
        "episode_id": [f"{name}__{position}" for position in range(4)],
        "source_file": [name] * 4,
        "source_position": [0, 1, 2, 3],
        "status": ["ok", "too_short", "empty", "ok"],
        "num_steps": [6, 2, 0, 5],
        "first_steps_row": [0, 6, 8, 8],
        "num_records": [4, 0, 0, 3],
        "first_record": [0, 4, 4, 4],
        "language": ["task 0", "task 1", "", "task 3"],
        "robot": ["xarm"] * 4,
        "episode_metadata/file_path": [f"/data/{seed}.npy" for seed in range(4)],
    }


@pytest.mark.parametrize(
    ("frames", "offsets"), [("all", (0, 1, 2, 3)), ("stride:2", (0, 2, 3)), ("fixed:3", (0, 2, 3))]
)
def test_the_frames_that_were_asked_for_are_stored(tmp_path: Path, frames: str, offsets: tuple[int, ...]) -> None:
    shard = shard_of(tmp_path, EPISODES[:1], ConvertConfig(policy=POLICY, frames=frames, offset="3"))
    shard.convert()
    source = frames_of(EPISODES[0])
    assert shard.records() == [[source[t + offset] for offset in offsets] for t in range(3)]
    assert shard.conversion.parameters["frame_offsets"] == list(offsets)


def test_each_frame_is_encoded_once_however_many_pairs_share_it(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES[:1], ConvertConfig(policy=FramePolicy(size=(12, 16))))
    status = shard.convert()
    assert (status.entry.passed, status.entry.sizes) == (0, {"12x16": 6})
    records = shard.records()
    assert records[0][1] == records[2][0]
    assert decode_frame(records[0][0]).shape == (12, 16, 3)


def test_only_the_chosen_episodes_are_converted_and_keep_their_place_in_the_source(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES, ConvertConfig(policy=POLICY, episodes="train[:1]+train[3:]"))
    status = shard.convert()
    assert shard.table("episodes")["source_position"] == [0, 3]
    assert shard.table("records")["episode"] == [0, 0, 0, 0, 1, 1, 1]
    assert status.entry.episodes == 2


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shard = shard_of(tmp_path / name, EPISODES, ConvertConfig(policy=FramePolicy(size=(16, 16))))
        shard.convert()
        contents.append(shard.contents())
    assert contents[0] == contents[1]


def test_a_finished_shard_is_not_done_again(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES)
    first = shard.convert()
    before = [shard.path(kind).stat().st_mtime_ns for kind in KINDS]
    assert shard.convert() == first
    assert [shard.path(kind).stat().st_mtime_ns for kind in KINDS] == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_of_which_a_file_is_gone_is_done_again(tmp_path: Path, kind: FileKind) -> None:
    shard = shard_of(tmp_path, EPISODES)
    shard.convert()
    before = shard.contents()
    shard.path(kind).unlink()
    shard.convert()
    assert shard.contents() == before


def test_a_shard_that_is_being_converted_is_left_alone(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, EPISODES)
    with Journal(shard.output).lock(STEM):
        assert convert_shard(shard.conversion.jobs[0], shard.conversion.plan) is None
    assert not shard.path("arrayrecord").exists()


def test_the_bytes_of_a_shard_are_those_of_its_records_and_the_longest_episode_is_known(tmp_path: Path) -> None:
    status = shard_of(tmp_path, EPISODES).convert()
    assert status.entry.file.bytes == (tmp_path / f"out/demo/1.0.0/train/{STEM}.arrayrecord").stat().st_size
    assert status.longest == 6
