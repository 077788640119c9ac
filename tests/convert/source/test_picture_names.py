"""Columns of texts that name picture files: one sentence says so, or LeRobot's own are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convert.errors import ConfigError, CorruptFrame, SourceError
from convert.source.episode import Episode
from convert.source.kinds import find_source, recognise
from convert.source.lerobot.dataset import find
from convert.source.protocol import ReadRequest
from tests.fixtures.arrays.written import h5py, jpeg, scene
from tests.fixtures.datasets.lerobot_dataset import copy_dataset, edit_info

DATA = "data/chunk-000/file-000.parquet"
FUNCTION = r"read both with your own function, python:FILE\.py:FUNCTION \(docs/own-data\.md\)"


def write_pictures(folder: Path, count: int) -> list[str]:
    """Write pictures; return their names relative to the folder above."""
    folder.mkdir(parents=True)
    for number, picture in enumerate(scene(count, seed=1)):
        (folder / f"{number} é.jpg").write_bytes(jpeg(picture))
    return [f"{folder.name}/{number} é.jpg" for number in range(count)]


@pytest.mark.parametrize("context", ["beside", "above", "absolute"])
def test_an_hdf5_column_of_names_of_pictures_is_named(tmp_path: Path, context: str) -> None:
    names = write_pictures(tmp_path / "pictures", 3)
    path = tmp_path / "run" / "a.hdf5" if context == "above" else tmp_path / "a.hdf5"
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        file["data/demo_0/actions"] = np.ones((3, 2))
        file["data/demo_0/obs/front"] = [str(tmp_path / name) if context == "absolute" else name for name in names]
        file["data/demo_0/obs/note"] = ["none.jpg"] * 3
    message = rf"has no pictures, .*; obs/front in .*a.hdf5 is text .*0 é.jpg': {FUNCTION}"
    with pytest.raises(SourceError, match=message):
        find_source(f"robomimic:{tmp_path}", [], {})


def test_a_parquet_column_of_names_of_pictures_is_named(tmp_path: Path) -> None:
    names = write_pictures(tmp_path / "pictures", 3)
    pq.write_table(pa.table({"action": [1.0] * 3, "note": ["x"] * 3, "image": names}), tmp_path / "a.parquet")
    message = rf"image in a.parquet is text with names of picture files, 'pictures/0 é.jpg': {FUNCTION}"
    with pytest.raises(ConfigError, match=message):
        recognise(str(tmp_path))


CAMERA = "observation.image"


def replace_camera(folder: Path, values: Sequence[object], kind: pa.DataType) -> None:
    table = pq.read_table(folder / DATA)
    position = table.schema.get_field_index(CAMERA)
    pq.write_table(table.set_column(position, CAMERA, pa.array(values, kind)), folder / DATA)


def stored_rows(folder: Path) -> list[bytes]:
    return [row["bytes"] for row in pq.read_table(folder / DATA).column(CAMERA).to_pylist()]


def frames(folder: Path) -> list[object]:
    source = find(str(folder), [], {})
    (shard, *_) = source.shards("train")
    values: list[object] = []
    with shard.open(ReadRequest(cameras=(source.features[f"steps/{CAMERA}"],)), [shard.every]) as reader:
        for *_, content in reader:
            assert isinstance(content, Episode) and content.cameras[0] is not None
            values += list(content.frames)
    return values


@pytest.mark.parametrize("form", ["struct", "text", "absolute"])
def test_lerobot_s_pictures_without_bytes_are_read_from_the_files_that_they_name(tmp_path: Path, form: str) -> None:
    folder = copy_dataset("v3_images", tmp_path)
    expected = frames(folder)
    rows = stored_rows(folder)
    (folder / "images").mkdir()
    names = [f"images/{number} é.png" for number in range(len(rows))]
    for name, content in zip(names, rows, strict=True):
        (folder / name).write_bytes(content)
    (folder / names[1]).unlink()
    if form == "absolute":
        names = [str(folder / name) for name in names]
    values = names if form == "text" else [{"bytes": None, "path": name} for name in names]
    kind = pa.string() if form == "text" else pa.struct({"bytes": pa.binary(), "path": pa.string()})
    replace_camera(folder, values, kind)
    result = frames(folder)
    assert isinstance(result[1], CorruptFrame) and "row 1: " in str(result[1]) and "missing" in str(result[1])
    assert result[:1] + result[2:] == expected[:1] + expected[2:]


def test_a_lerobot_dataset_whose_pictures_are_declared_as_text_is_named(tmp_path: Path) -> None:
    folder = copy_dataset("v3_images", tmp_path)
    names = write_pictures(folder / "images", len(stored_rows(folder)))
    replace_camera(folder, names, pa.string())
    edit_info(folder, lambda info: info["features"].update({CAMERA: {"dtype": "string", "shape": [1], "names": None}}))
    message = rf"has no colour camera, so no frame to convert; {CAMERA} in .*is text with names of picture files"
    with pytest.raises(SourceError, match=message):
        find(str(folder), [], {})
