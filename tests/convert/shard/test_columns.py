import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow_datasets as tfds

from convert.shard.part_rows import arrow_array, arrow_field
from convert.source.episode import Column, Episode, absent_column
from convert.source.features import Feature
from convert.source.rlds.metadata import flatten_features
from convert.source.rlds.parser import EpisodeParser
from stream.format.schema import TEXT
from tests.fixtures.datasets.arrow_part import write_part
from tests.fixtures.datasets.rlds_dataset import serialise
from tests.fixtures.leaf_kinds import EPISODES, FEATURES

LEAVES = {
    path: feature
    for path, feature in flatten_features(tfds.features.FeaturesDict(FEATURES), context="test").items()
    if feature.kind == "tensor"
}
CAMERA = flatten_features(tfds.features.FeaturesDict(FEATURES), context="test")["steps/observation/image"]


@pytest.fixture(scope="module")
def parsed() -> list[Episode]:
    parser = EpisodeParser([CAMERA], LEAVES.values())
    return [parser.parse(serialise(FEATURES, episode)) for episode in EPISODES]


def column_of(episode: Episode, feature: Feature) -> Column:
    return (episode.steps if feature.level == "step" else episode.episode)[feature.name]


def absent(feature: Feature, rows: int) -> Column:
    lengths = tuple(np.zeros(rows if level == 0 else 0, np.int64) for level in range(len(feature.sequences)))
    return Column(feature=feature, values=None, lengths=lengths, rows=rows)


def rows_of(column: Column) -> list[Any]:
    """Return the values of a column as Python objects in the shape that Arrow gives them."""
    size = column.feature.size or 0
    assert column.values is not None
    items: list[Any] = column.values if isinstance(column.values, list) else column.values.tolist()
    if column.feature.shape:
        items = [items[start : start + size] for start in range(0, len(items), size)]
    for lengths in reversed(column.lengths):
        ends = np.cumsum(lengths)
        items = [items[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    return items


def write_and_open(path: Path, feature: Feature, columns: list[Column]) -> pa.Table:
    field = arrow_field(feature)
    write_part(path, pa.Table.from_arrays([arrow_array(feature, columns)], schema=pa.schema([field])))
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


@pytest.mark.parametrize("path", LEAVES)
def test_a_column_of_any_kind_comes_back_from_the_file(path: str, parsed: list[Episode], tmp_path: Path) -> None:
    feature = LEAVES[path]
    columns = [column_of(episode, feature) for episode in parsed]
    table = write_and_open(tmp_path / "x.arrow", feature, columns)
    assert table.column(0).to_pylist() == [row for column in columns for row in rows_of(column)]


@pytest.mark.parametrize("path", LEAVES)
def test_episodes_that_lack_the_feature_have_null_rows(path: str, parsed: list[Episode], tmp_path: Path) -> None:
    feature = LEAVES[path]
    columns = [column_of(parsed[0], feature), absent(feature, 2), column_of(parsed[2], feature), absent(feature, 1)]
    table = write_and_open(tmp_path / "x.arrow", feature, columns)
    expected = [*rows_of(columns[0]), None, None, *rows_of(columns[2]), None]
    assert table.column(0).to_pylist() == expected


@pytest.mark.parametrize("path", LEAVES)
def test_a_shard_in_which_every_episode_lacks_the_feature_is_all_null(path: str, tmp_path: Path) -> None:
    feature = LEAVES[path]
    table = write_and_open(tmp_path / "x.arrow", feature, [absent(feature, 2), absent(feature, 1)])
    assert table.column(0).to_pylist() == [None] * 3


@pytest.mark.parametrize("path", LEAVES)
def test_a_shard_without_episodes_has_the_same_columns(path: str, parsed: list[Episode], tmp_path: Path) -> None:
    feature = LEAVES[path]
    empty = write_and_open(tmp_path / "empty.arrow", feature, [])
    full = write_and_open(tmp_path / "full.arrow", feature, [column_of(parsed[0], feature)])
    assert empty.num_rows == 0
    assert empty.schema.equals(full.schema, check_metadata=True)


def test_the_shape_and_dtype_of_a_feature_are_in_the_metadata(tmp_path: Path) -> None:
    feature = LEAVES["steps/matrix"]
    table = write_and_open(tmp_path / "x.arrow", feature, [absent(feature, 1)])
    metadata = table.schema.field("matrix").metadata
    assert json.loads(metadata[b"shape"]) == [4, 4]
    assert metadata[b"dtype"] == b"float32"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("steps/float64", pa.float32()),
        ("steps/zlib_double", pa.list_(pa.float64(), 2)),
        ("steps/uint64", pa.uint64()),
        ("steps/bool", pa.bool_()),
        ("steps/matrix", pa.list_(pa.float32(), 16)),
        ("steps/text", TEXT),
        ("steps/texts", pa.list_(pa.large_string(), 2)),
        ("steps/words", pa.large_list(pa.large_string())),
        ("steps/objects/pose", pa.large_list(pa.list_(pa.float32(), 2))),
        ("steps/three_deep", pa.large_list(pa.large_list(pa.large_list(pa.float32())))),
        ("episode_metadata/file_path", pa.large_string()),
        ("episode_metadata/two_deep", pa.large_list(pa.large_list(pa.int32()))),
    ],
)
def test_columns_have_the_type_of_the_feature(path: str, kind: pa.DataType) -> None:
    assert arrow_field(LEAVES[path]).type == kind


@pytest.mark.parametrize(
    ("dtype", "shape", "values", "expected"),
    [
        ("int32", (), np.array([1, 0, 3], np.int32), [1, None, 3]),
        ("float16", (2,), np.arange(6, dtype=np.float16), [[0, 1], None, [4, 5]]),
        ("string", (), ["a", "", "c"], ["a", None, "c"]),
    ],
)
def test_rows_without_a_value_are_null(dtype: str, shape: tuple[int, ...], values: Any, expected: list[Any]) -> None:
    feature = Feature(path="steps/label", kind="tensor", level="step", shape=shape, dtype=dtype)
    several_items = Column(feature=feature, values=values, lengths=(), rows=3, valid=np.array([True, False, True]))
    array = arrow_array(feature, [several_items, absent_column(feature, 1)])
    assert array.to_pylist() == [*expected, None]
