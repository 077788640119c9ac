"""Parquet files that stand for more than memory lose their own episodes, or pictures, and end no process."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convert.errors import CorruptFrame, DamagedEpisode, SourceError
from convert.source.episode import Episode
from convert.source.lerobot import episodes, parquet
from convert.source.lerobot.parquet import check_claim
from tests.convert.source.lerobot.reading import find, read_episodes
from tests.fixtures.datasets.lerobot_dataset import copy_dataset, edit_info

DATA = "data/chunk-000/file-000.parquet"
LIMIT = 1 << 20


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits to 1 MiB."""
    monkeypatch.setattr(parquet, "MOST", LIMIT)
    monkeypatch.setattr(episodes, "MOST_METADATA", LIMIT)


def damaged(folder: Path) -> dict[int, str]:
    episodes = read_episodes(find(folder), pictures=False)
    return {number: f"{item.reason}: {item}" for number, item in episodes if isinstance(item, DamagedEpisode)}


def replace_pictures(folder: Path, content: bytes, **options: Any) -> str:
    """Give each row of the first file a picture of its number and the same content; return the camera."""
    table = pq.read_table(folder / DATA)
    position, camera = next((number, name) for number, name in enumerate(table.schema.names) if "image" in name)
    pictures = [{"bytes": bytes([row]) + content, "path": None} for row in range(len(table))]
    column = pa.array(pictures, table.schema.types[position])
    pq.write_table(table.set_column(position, camera, column), folder / DATA, **options)
    return camera


def widen(folder: Path, values: int) -> None:
    """Give the first file's steps a vector of zeros, declared for all."""
    edit_info(folder, lambda info: info["features"].update(wide={"dtype": "float64", "shape": [values]}))
    table = pq.read_table(folder / DATA)
    zeros = pa.FixedSizeListArray.from_arrays(np.zeros(len(table) * values), values)
    pq.write_table(table.append_column("wide", zeros.cast(pa.list_(pa.float64()))), folder / DATA)


def test_numbers_that_are_far_more_than_their_file_make_its_episodes_damaged(small: None, tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    widen(folder, 20_000)
    result = damaged(folder)
    assert set(result) == {0, 1}
    assert result[1].startswith(f"unreadable: {DATA}: cannot be read as parquet (2,4")
    assert " bytes in memory, most of wide; expected at most 1,048,576 of a file of " in result[1]
    assert result[1].endswith("; write it again)")
    # An episode in many row groups counts with all of them.
    pq.write_table(pq.read_table(folder / DATA), folder / DATA, row_group_size=3)
    assert set(damaged(folder)) == {0}


def test_rows_that_are_far_more_than_their_file_are_not_even_counted(small: None, tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    pq.write_table(pa.table({"episode_index": np.zeros(1_000_000, np.int64)}), folder / DATA)
    result = damaged(folder)
    assert set(result) == {0, 1}
    assert "8,000,000 bytes in memory, most of episode_index; expected at most 1,048,576 of a file of " in result[0]


def test_pictures_that_are_far_more_than_their_file_are_holes_of_their_camera(small: None, tmp_path: Path) -> None:
    folder = copy_dataset("v3_images", tmp_path)
    camera = replace_pictures(folder, bytes(200_000), compression="zstd")
    for number, item in read_episodes(find(folder)):
        assert isinstance(item, Episode)
        frames = list(item.frames)
        assert len(frames) == item.num_steps
        missing_frames = [str(frame) for frame in frames if isinstance(frame, CorruptFrame)]
        assert len(missing_frames) == (item.num_steps if number < 2 else 0)
        assert all(f"bytes in memory, most of {camera}; expected" in text for text in missing_frames)


def test_pictures_that_fill_their_file_have_no_limit(small: None, tmp_path: Path) -> None:
    folder = copy_dataset("v3_images", tmp_path)
    replace_pictures(folder, np.random.default_rng(0).bytes(200_000))
    for number, item in read_episodes(find(folder)):
        assert isinstance(item, Episode)
        if number < 2:
            assert all(isinstance(frame, bytes) and len(frame) == 200_001 for frame in item.frames)


def test_metadata_that_are_far_more_than_their_file_are_refused(small: None, tmp_path: Path) -> None:
    folder = copy_dataset("v3_av1", tmp_path)
    path = next(folder.glob("meta/episodes/**/*.parquet"))
    pq.write_table(pa.table({"episode_index": np.zeros(1_000_000, np.int64)}), path)
    with pytest.raises(SourceError, match=r"meta/episodes/.*: cannot be read \(.* bytes in memory, most of .*; expec"):
        find(folder)


@pytest.mark.parametrize(
    ("kind", "value", "claimed"),
    [
        (pa.uint8(), 1, 1000),
        (pa.bool_(), True, 1000),
        (pa.float64(), 1, 8000),
        (pa.list_(pa.list_(pa.int16())), [[1]], 2000),
        (pa.list_(pa.float32(), 3), [1, 1, 1], 12_000),
    ],
    ids=str,
)
def test_equal_values_count_as_the_bytes_they_take_in_memory(kind: pa.DataType, value: object, claimed: int) -> None:
    target = io.BytesIO()
    table = pa.table({"x": pa.array([value] * 1000, kind), "xy": pa.array([1] * 1000)})
    pq.write_table(table, target)
    file = pq.ParquetFile(io.BytesIO(target.getvalue()))
    check_claim(file, ["x"], groups=[0], file_size=0, limit=claimed)
    with pytest.raises(pa.ArrowInvalid, match=f"{claimed:,} bytes in memory, most of x; "):
        check_claim(file, ["x"], groups=[0], file_size=0, limit=claimed - 1)
