"""Columns that are found again without Arrow are those that Arrow finds."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from stream.format import FormatError, open_sidecar
from stream.mapped_file import map_file
from stream.places import ColumnPlaces
from stream.shard_cache import ShardCache
from stream.shards import OpenShard, column_array, is_numeric
from tests.stream.test_shards import list_shards

COLUMN = (0, "steps", "x")


@pytest.fixture
def file(tmp_path: Path) -> pa.Buffer:
    """A hundred bytes, mapped: 0 to 99."""
    (tmp_path / "file").write_bytes(bytes(range(100)))
    return map_file(str(tmp_path / "file"))


def numbers(file: pa.Buffer, dtype: type, place: int, *shape: int) -> np.ndarray:
    return np.frombuffer(file, dtype, int(np.prod(shape)), place).reshape(shape)


@pytest.mark.parametrize(("dtype", "shape"), [(np.uint8, (5,)), (np.int32, (3, 2)), (np.float64, (4,))])
def test_a_column_that_was_noted_is_found_in_its_type_and_shape(
    file: pa.Buffer, dtype: type, shape: tuple[int, ...]
) -> None:
    places, values = ColumnPlaces(3), numbers(file, dtype, 8, *shape)
    assert places.read(1, COLUMN, shape[0], file) is None
    places.note(1, COLUMN, values, file)
    found = places.read(1, COLUMN, shape[0], file)
    assert found is not None and found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)
    assert [places.find(shard, COLUMN) for shard in range(3)] == [0, 8, 0]


@pytest.mark.parametrize("width", [0, 1, 3, 8])
@pytest.mark.parametrize("rows", [1, 7, 8, 13])
def test_booleans_that_are_packed_are_found(file: pa.Buffer, rows: int, width: int) -> None:
    places, place = ColumnPlaces(2), 20
    bits = numbers(file, np.uint8, place, -(-rows * (width or 1) // 8))
    places.note_packed(1, COLUMN, bits, width, file)
    found, layout = places.read(1, COLUMN, rows, file), places.layout(COLUMN)
    everything = [bool(bits[i // 8] >> i % 8 & 1) for i in range(rows * (width or 1))]
    expected = np.array(everything, np.uint8).reshape((rows, width) if width else (rows,))
    assert found is not None and layout is not None and found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected)
    for first in range(rows):
        begin, end = layout.extent(first, rows - first)
        data = memoryview(file)[place + begin : place + end]
        np.testing.assert_array_equal(layout.values(data, first, rows - first), expected[first:])
    places.note(0, COLUMN, numbers(file, np.uint8, place, rows), file)
    assert places.find(0, COLUMN) == 0, "bytes are stored otherwise than in the other shard"


def test_columns_of_a_shard_and_of_other_datasets_do_not_mix(file: pa.Buffer) -> None:
    places = ColumnPlaces(4)
    columns = [(member, kind, name) for member in range(2) for kind in ("steps", "records") for name in "xyz"]
    for place, column in enumerate(columns, 1):
        places.note(column[0], column, numbers(file, np.uint8, place, 4), file)
    for place, column in enumerate(columns, 1):
        assert places.find(column[0], column) == place
        assert places.find(3, column) == 0


@pytest.mark.parametrize("what", ["a copy", "other type", "other width", "not one behind the other"])
def test_what_does_not_lie_in_the_file_as_in_other_shards_is_not_noted(file: pa.Buffer, what: str) -> None:
    places = ColumnPlaces(2)
    places.note(0, COLUMN, numbers(file, np.int32, 8, 6), file)
    other = {
        "a copy": np.arange(6, dtype=np.int32),
        "other type": numbers(file, np.int64, 8, 6),
        "other width": numbers(file, np.int32, 8, 3, 2),
        "not one behind the other": numbers(file, np.int32, 8, 12)[::2],
    }[what]
    places.note(1, COLUMN, other, file)
    assert places.find(1, COLUMN) == 0


def test_a_file_that_ends_before_a_column_raises(file: pa.Buffer) -> None:
    places = ColumnPlaces(1)
    places.note(0, COLUMN, numbers(file, np.uint8, 8, 50), file)
    with pytest.raises(ValueError):
        places.read(0, COLUMN, 50, file.slice(0, 40))


def test_a_shard_that_opens_again_has_the_columns_and_texts_of_its_files(oxe_root: Path) -> None:
    names = [folder.name for folder in sorted(oxe_root.iterdir())]
    shards = list_shards(oxe_root, names)
    cache = ShardCache(shards, max_open=1)
    noted = 0
    for _ in range(2):
        for index, info in enumerate(shards):
            shard = cache[index]
            steps, records = (open_sidecar(info.path(kind)) for kind in ("steps", "records"))
            for name in records.column_names:
                np.testing.assert_array_equal(shard.record_column(name), column_array(records, name))
            for name in steps.column_names:
                if not is_numeric(steps.schema.field(name).type):
                    continue
                values, expected = shard.step_column(name), column_array(steps, name)
                assert values.dtype == expected.dtype
                np.testing.assert_array_equal(values, expected)
            places, text = shard.language
            assert [text(place) for place in places.tolist()] == steps["language"].to_pylist()
            noted += "steps" not in vars(shard) and "records" not in vars(shard)
            assert cache[(index + 1) % len(shards)] is not shard
    assert noted == len(shards), "the second time, Arrow is not needed"


def test_a_shard_that_was_replaced_has_its_new_columns(oxe_root: Path, tmp_path: Path) -> None:
    shutil.copytree(oxe_root / "bridge", tmp_path / "bridge")
    [info, *_] = list_shards(tmp_path, ["bridge"])
    sound, places = np.zeros(5, np.int64), ColumnPlaces(1)
    first = OpenShard(info, sound, places)
    before = first.record_column("step").copy()
    assert places.find(0, (info.member, "records", "step"))
    path = info.path("records")
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    again = OpenShard(info, sound, places)
    np.testing.assert_array_equal(again.record_column("step"), before)
    assert "records" in vars(again), "a file with another inode is opened by Arrow"
    path.unlink()
    path.write_bytes(content[:-200] + bytes(200))
    with pytest.raises(FormatError, match="its content is not that of the manifest"):
        OpenShard(info, sound, places).record_column("step")
