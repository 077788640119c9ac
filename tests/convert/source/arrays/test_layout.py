"""Files of one's own: a layout in YAML says where episodes, steps, language and values are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from convert.errors import CorruptFrame
from convert.picture import decode_frame
from convert.source.arrays import opening
from convert.source.arrays.opening import open_store
from convert.source.arrays.rows import EncodedRows
from convert.source.files import plain
from convert.source.kinds import find_source, suggest_layout
from convert.source.protocol import ReadRequest
from tests.fixtures.arrays import written as files
from tests.fixtures.arrays.converted import config, convert, episodes, opened
from tests.fixtures.arrays.written import scene
from tests.fixtures.command import flip

h5py = files.h5py


def write(path: Path, arrays: dict[str, Any], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "a") as file:
        for name, value in arrays.items():
            file.create_dataset(name, data=value, **options)
    return path


def write_encoded(path: Path, name: str, contents: Sequence[bytes]) -> None:
    """Add rows of bytes of any length to a file."""
    with h5py.File(path, "a") as file:
        rows = file.create_dataset(name, (len(contents),), dtype=h5py.vlen_dtype(np.dtype("uint8")))
        for number, content in enumerate(contents):
            rows[number] = np.frombuffer(content, np.uint8)


def png(picture: np.ndarray) -> bytes:
    return cv2.imencode(".png", picture[..., ::-1])[1].tobytes()


def read(path: Path, layout: dict[str, Any], camera: str = "front") -> list[list[Any]]:
    """Return the frames of each episode of a file as they are read."""
    source = find_source(f"arrays:{path}", [], layout)
    request = ReadRequest(cameras=(source.features[f"steps/{camera}"],))
    result: list[list[Any]] = []
    for shard in source.shards("train"):
        with shard.open(request, [shard.every]) as reader:
            result += [list(episode.content.cameras[0]) for episode in reader]  # type: ignore[union-attr, arg-type]
    return result


def test_a_folder_of_ones_own_files_converts_with_ten_lines_of_yaml(tmp_path: Path) -> None:
    for number in range(2):
        arrays = {"cam/front": scene(4, seed=number), "cmd": np.arange(8.0).reshape(4, 2) + number}
        arrays |= {"joints": np.ones((4, 6)), "setup/pose": np.arange(3.0)}
        path = write(tmp_path / "mine" / f"run{number}_push_the_cup.hdf5", arrays)
        with h5py.File(path, "a") as file:
            file.attrs["operator"] = f"person {number}"
    text = f"""
source: arrays:{tmp_path}/mine/*.hdf5
layout:
  steps: {{front: cam/front, command: cmd, joints: joints}}
  values: {{operator: "@operator", pose: setup/pose}}
  language: {{file: 'run\\d+_(.*)\\.hdf5$'}}
control_frequency: 10
action:
  - {{path: command, dims: 2, quantity: other, kind: target}}
state:
  - {{path: joints, dims: 6, quantity: joint_position, kind: absolute, unit: rad}}
"""
    assert convert("mine", tmp_path / "out", *config(tmp_path / "own.yaml", "mine", text)) == 0
    result = episodes(opened(tmp_path / "out", "mine"))
    assert [(item["language"], item["operator"], item["pose"]) for item in result] == [
        ("push the cup", "person 0", [0, 1, 2]),
        ("push the cup", "person 1", [0, 1, 2]),
    ]
    assert result[1]["rows"][2]["command"] == [5, 6]


def test_arrays_of_another_length_are_no_steps_and_are_told(tmp_path: Path) -> None:
    arrays = {"front": scene(4, seed=0), "action": np.ones((4, 2)), "calibration": np.ones((3, 3)), "when": 1.5}
    path = write(tmp_path / "own.hdf5", arrays)
    source = find_source(f"arrays:{path}", [], {})
    assert set(source.features) == {"steps/front", "steps/action", "file"}
    assert source.remarks[-1] == "arrays that are no steps: calibration (3 values, not 4), when (1 values, not 4)"


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_pictures_are_turned_clockwise_raw_and_encoded(tmp_path: Path, degrees: int) -> None:
    upright = scene(3, seed=1)
    stored = np.rot90(upright, degrees // 90, axes=(1, 2))
    encoded = list(map(png, stored))
    path = write(tmp_path / "own.hdf5", {"front": stored, "action": np.ones((3, 2))})
    write_encoded(path, "wrist", encoded)
    layout = {"pictures": {"*": {"rotate": degrees}}}
    np.testing.assert_array_equal(read(path, layout)[0], upright)
    (shown,) = read(path, layout, "wrist")
    if degrees:
        np.testing.assert_array_equal(shown, upright)
    else:
        assert shown == encoded


def test_floats_and_channels_first_are_read_as_declared(tmp_path: Path) -> None:
    pictures = scene(3, seed=1)
    whites = (pictures / np.float32(255)).astype(np.float32)
    arrays = {"front": np.moveaxis(whites, -1, 1), "side": pictures + np.float32(0.4), "action": np.ones((3, 2))}
    path = write(tmp_path / "own.hdf5", arrays)
    layout = {"pictures": {"front": {"floats": 1, "channels_first": True}, "side": {"floats": 255}}}
    np.testing.assert_array_equal(read(path, layout)[0], pictures)
    np.testing.assert_array_equal(read(path, layout, "side")[0], pictures)


def test_rows_of_any_kind_give_their_bytes_without_padding(tmp_path: Path) -> None:
    data = [files.jpeg(picture) for picture in scene(3, seed=1)]
    webp = [cv2.imencode(".webp", picture)[1].tobytes() for picture in scene(3, seed=2)]
    padded = np.zeros((3, 9000), np.uint8)
    for row, item in zip(padded, webp, strict=True):
        row[: len(item)] = np.frombuffer(item, np.uint8)
    raw = scene(3, seed=3)
    fixed = np.array(data, dtype=f"V{max(map(len, data)) + 5}")
    path = write(tmp_path / "own.hdf5", {"fixed": fixed, "padded": padded, "action": np.ones((3, 2))})
    write_encoded(path, "objects", data)
    write_encoded(path, "raw", [item.tobytes() for item in raw])
    layout = {"pictures": {"raw": {"raw": [[files.HEIGHT, files.WIDTH, 3]]}}}
    assert read(path, layout, "objects")[0] == data
    assert read(path, layout, "fixed")[0] == data
    assert read(path, layout, "padded")[0] == webp
    np.testing.assert_array_equal(read(path, layout, "raw")[0], raw)


@pytest.mark.parametrize(
    ("chunks", "compression"),
    [(None, None), *product([(1, 48, 64, 3), (30, 48, 64, 3), (7, 13, 20, 1), (4, 48, 64, 3)], [None, "gzip"])],
)
def test_frames_of_chunks_of_any_shape_are_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: tuple[int, ...] | None, compression: str | None
) -> None:
    pictures = scene(30, seed=1)
    path = write(tmp_path / "own.hdf5", {"front": pictures}, chunks=chunks, compression=compression)
    write(path, {"action": np.ones((30, 2)), "ends": [11, 11, 30]})
    frame = pictures[0].nbytes
    monkeypatch.setattr(plain, "_BLOCK", 5 * frame)
    for limits in ((100, 1000, 1000), (2, 1000, 1000), (0, 0, 3)):
        for name, frames in zip(("_SMALL", "_CACHED", "PIECE"), limits, strict=True):
            monkeypatch.setattr(opening, name, frames * frame)
        result = read(path, {"ends": "ends", "leave_out": "ends"})
        assert [len(item) for item in result] == [11, 0, 19]
        np.testing.assert_array_equal(np.concatenate([np.stack(result[0]), np.stack(result[2])]), pictures)


def test_a_chunk_larger_than_a_block_is_read_with_a_cache_that_holds_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(opening, "_SMALL", 1000)
    pictures = scene(40, seed=1)
    path = write(tmp_path / "own.hdf5", {"front": pictures}, chunks=pictures.shape, compression="gzip")
    with open_store(path) as store:
        facts = store.array_info("front")
        np.testing.assert_array_equal(store.rows("front", facts, 3, 5), pictures[3:5])
        access = store._open_array("front", facts).id.get_access_plist()
        assert access.get_chunk_cache()[1] == pictures.nbytes


def test_one_array_of_many_episodes_is_read_chunk_by_chunk_from_where_an_episode_begins(tmp_path: Path) -> None:
    written = files.write_replay(tmp_path / "a.zarr", lengths=[5, 3, 9], chunk=4)
    layout = {"ends": "meta/episode_ends", "group": "data", "pictures": {"img": {"floats": 255}}}
    for frames, values in zip(read(tmp_path / "a.zarr", layout, "img"), written, strict=True):
        np.testing.assert_array_equal(frames, values.frames["img"])


def test_a_draft_of_files_of_ones_own_suggests_where_episodes_and_float_pictures_are(tmp_path: Path) -> None:
    files.write_robomimic(tmp_path / "lift.hdf5")
    files.write_replay(tmp_path / "a.zarr")
    files.write_aloha(tmp_path / "pour", compress=False)
    assert suggest_layout(f"arrays:{tmp_path / 'lift.hdf5'}", []) == {"episodes": "data/*"}
    pictures = {"*img": {"floats": 255}}
    expected = {"ends": "meta/episode_ends", "group": "data", "pictures": pictures}
    assert suggest_layout(f"arrays:{tmp_path / 'a.zarr'}", []) == expected
    assert suggest_layout(f"arrays:{tmp_path / 'pour'}", []) == {}
    assert suggest_layout(f"libero:{tmp_path / 'lift.hdf5'}", []) == {}
    for name, layout in (("lift.hdf5", {"episodes": "data/*"}), ("a.zarr", expected), ("pour", {})):
        assert find_source(f"arrays:{tmp_path / name}", [], layout).entry["cameras"]


@pytest.mark.parametrize("turned", [0, 180])
def test_encoded_rows_of_one_array_of_many_episodes_begin_where_each_episode_does(tmp_path: Path, turned: int) -> None:
    pictures = scene(9, seed=1)
    path = write(tmp_path / "own.hdf5", {"data/action": np.ones((9, 2)), "ends": np.array([2, 6, 9])})
    write_encoded(path, "data/front", list(map(png, pictures)))
    result = read(path, {"ends": "ends", "group": "data", "pictures": {"front": {"rotate": turned}}})
    shown = [decode_frame(frame) for frames in result for frame in frames]
    assert [len(frames) for frames in result] == [2, 4, 3]
    np.testing.assert_array_equal(shown, pictures[:, ::-1, ::-1] if turned else pictures)
    with open_store(path) as store:
        rows = EncodedRows(store, "data/front", start=6, stop=9)
        np.testing.assert_array_equal(decode_frame(rows[0]), pictures[6])


def test_encoded_rows_beside_a_damaged_one_stay_those_of_their_steps(tmp_path: Path) -> None:
    pictures = scene(9, seed=1)
    encoded = [np.frombuffer(png(item), np.uint8) for item in pictures]
    longest = max(map(len, encoded))
    path = write(tmp_path / "own.hdf5", {"data/action": np.ones((9, 2)), "ends": np.array([2, 6, 9])})
    with h5py.File(path, "a") as file:
        rows = file.create_dataset("data/front", (9, longest), np.uint8, chunks=(1, longest), fletcher32=True)
        for number, picture in enumerate(encoded):
            rows[number, : len(picture)] = picture
        damaged = rows.id.get_chunk_info(7).byte_offset + 20
    flip(path, damaged)
    third = read(path, {"ends": "ends", "group": "data"})[2]
    assert isinstance(third[1], CorruptFrame)
    np.testing.assert_array_equal([decode_frame(third[number]) for number in (0, 2)], pictures[[6, 8]])
