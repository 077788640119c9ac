from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stream.catalog import Catalog
from stream.columns import Kind, column_validity, column_values, find_column, sidecar_schemas
from stream.errors import ArgumentError
from stream.format import open_sidecar
from stream.mixture import Member
from stream.shards import OpenShard
from stream.views import Views

NAMES = ["bridge", "kuka", "rt1"]


@pytest.fixture
def shards(oxe_root: Path) -> list[OpenShard]:
    """The first training shard of three datasets."""
    catalog = Catalog(oxe_root)
    views = Views([Member(name, "train", 1.0) for name in NAMES], [catalog.open(name) for name in NAMES])
    return [views.cache[next(i for i, s in enumerate(views.shards) if s.dataset == name)] for name in NAMES]


def schemas(*columns: dict[str, pa.DataType]) -> list[dict[Kind, pa.Schema]]:
    """Schemas of members by columns of their steps."""
    return [
        {"episodes": pa.schema({"id": pa.string()}), "steps": pa.schema(each), "records": pa.schema({"n": pa.int32()})}
        for each in columns
    ]


def test_the_schemas_are_those_of_the_files(shards: list[OpenShard]) -> None:
    for shard in shards:
        found = sidecar_schemas(shard)
        for kind in ("episodes", "steps"):
            assert found[kind] == open_sidecar(shard.info.path(kind)).schema
        records = open_sidecar(shard.info.path("records")).schema
        assert [(f.name, f.type) for f in found["records"]] == [(f.name, f.type) for f in records]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("num_steps", "episodes"),
        ("step", "steps"),
        ("records.step", "records"),
        ("num_frames", "records"),
        ("language", "episodes"),
        ("steps.language", "steps"),
    ],
)
def test_a_column_is_looked_for_in_episodes_then_steps_then_records(
    shards: list[OpenShard], name: str, kind: Kind
) -> None:
    column = find_column(name, [sidecar_schemas(shard) for shard in shards], NAMES)
    assert column.name == name
    assert column.column == name.rpartition(".")[2]
    assert column.kinds == (kind,) * 3


@pytest.mark.parametrize(
    "name", ["num_steps", "step", "offset", "robot", "steps.language", "is_first", "reward", "observation/state"]
)
def test_values_are_those_of_the_file(shards: list[OpenShard], name: str) -> None:
    column = find_column(name, [sidecar_schemas(shard) for shard in shards], NAMES)
    for shard, kind in zip(shards, column.kinds, strict=True):
        if kind is None:
            continue
        expected = open_sidecar(shard.info.path(kind))[column.column].to_pylist()
        values = column_values(shard, kind, column.column)
        if column.dtype is None:
            assert values.to_pylist() == expected  # type: ignore[union-attr]
        else:
            assert isinstance(values, np.ndarray)
            assert values.reshape(len(expected), -1).tolist() == [v if isinstance(v, list) else [v] for v in expected]


def test_a_column_that_some_members_have_is_none_in_the_others() -> None:
    column = find_column("a", schemas({"a": pa.int32()}, {}, {"a": pa.int32()}), NAMES)
    assert column.kinds == ("steps", None, "steps")


@pytest.mark.parametrize(
    ("types", "dtype", "shape"),
    [
        ([pa.int8(), pa.int32()], "<i4", ()),
        ([pa.float32(), pa.float64()], "<f8", ()),
        ([pa.bool_(), pa.bool_()], "|b1", ()),
        ([pa.int16(), pa.float32()], "<f4", ()),
        ([pa.list_(pa.float32(), 3), pa.list_(pa.float32(), 7)], "<f4", (7,)),
        ([pa.float32(), pa.list_(pa.float32(), 2)], "<f4", (2,)),
        ([pa.list_(pa.float32(), 1), pa.float32()], "<f4", (1,)),
    ],
)
def test_members_of_different_types_meet_in_one_that_holds_all(
    types: list[Any], dtype: str, shape: tuple[int, ...]
) -> None:
    column = find_column("a", schemas(*({"a": each} for each in types)), NAMES[:2])
    assert column.dtype == dtype
    assert column.shape == shape


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_texts_have_no_dtype(kind: pa.DataType) -> None:
    column = find_column("a", schemas({"a": kind}), ["bridge"])
    assert column.dtype is None
    assert column.shape == ()


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("reward", [{"rewards": pa.int32()}, {}], "no dataset of the mixture has 'reward'; did you mean 'rewards'"),
        ("episodes.a", [{"a": pa.int32()}, {}], r"no dataset of the mixture has 'episodes\.a'"),
        ("a", [{"a": pa.string()}, {"a": pa.int32()}], "'a' is text in some datasets and numbers in others"),
        ("a", [{}, {"a": pa.list_(pa.int32())}], "'a' of dataset kuka is list.*numbers and single texts"),
        ("a", [{"a": pa.list_(pa.string(), 2)}, {}], "'a' of dataset bridge is fixed_size_list.*single texts"),
        ("a", [{"a": pa.binary()}, {}], "'a' of dataset bridge is binary"),
    ],
)
def test_a_column_that_cannot_be_loaded_is_refused(name: str, columns: list[Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"columns: .*{message}"):
        find_column(name, schemas(*columns), NAMES[:2])


def test_where_rows_have_no_value_integers_keep_theirs_to_the_last_digit(shards: list[OpenShard]) -> None:
    shard = OpenShard(shards[0].info)
    large = 2**60 + 1
    shard.__dict__["episodes"] = pa.table(
        {
            "id": pa.array([large, None]),
            "ok": pa.array([None, True]),
            "ids": pa.array([[large, None], None], pa.list_(pa.int64(), 2)),
            "score": pa.array([0.5, None]),
        }
    )
    assert column_values(shard, "episodes", "id").tolist() == [[large], [0]]
    assert column_values(shard, "episodes", "ok").tolist() == [[0], [1]]
    assert column_values(shard, "episodes", "ids").tolist() == [[large, 0], [0, 0]]
    np.testing.assert_array_equal(column_values(shard, "episodes", "score"), [[0.5], [np.nan]])


def test_rows_without_a_value_are_said_by_the_validity() -> None:
    table = pa.table({"reward": pa.array([1.0, None, 3.0]), "step": pa.array([0, 1, 2])})
    shard = OpenShard.__new__(OpenShard)
    shard.__dict__.update(steps=table, episodes=table, prepared=None)
    validity = column_validity(shard, "steps", "reward")
    assert validity is not None
    assert validity.tolist() == [True, False, True]
    assert column_validity(shard, "steps", "step") is None
