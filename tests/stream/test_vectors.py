from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convert.registry import load_registry
from stream.catalog import Catalog, Dataset
from stream.errors import ArgumentError
from stream.format import open_sidecar
from stream.mixture import Member
from stream.shards import OpenShard, column_array
from stream.vectors import (
    REDUCTIONS,
    Vector,
    dataset_vector,
    gather,
    make_vector,
    mode_codes,
    reduce_window,
    vector_columns,
)
from stream.views import Views

NAMES = [selected.spec.name for selected in load_registry().resolve("oxe29")]
VECTORS: tuple[Literal["action", "state"], ...] = ("action", "state")


def open_shards(dataset: Dataset) -> list[OpenShard]:
    views = Views([Member(dataset.name, "all", 1.0)], [dataset])
    return [views.cache[i] for i in range(len(views.shards))]


def chosen_vector(dataset: Dataset, which: Literal["action", "state"], columns: Any) -> Vector:
    return dataset_vector(dataset, which, columns, schema=open_shards(dataset)[0].steps.schema)


def read_rows(shard: OpenShard, parts: list[dict[str, Any]]) -> np.ndarray:
    """The vector of every step, value by value as the sidecar's own reader gives it."""
    table = open_sidecar(shard.info.path("steps"))
    rows: list[list[float]] = [[] for _ in range(len(table))]
    for part in parts:
        for row, value in zip(rows, table[part["path"]].to_pylist(), strict=True):
            values = value if isinstance(value, list) else [value]
            chosen = range(len(values)) if part["select"] is None else part["select"]
            row += [float(values[i]) for i in chosen]
    return np.array(rows, np.float32).reshape(len(table), -1)


def gather_all(shard: OpenShard, vector: Vector) -> np.ndarray:
    out = np.full((len(shard.steps), vector.size), -7, np.float32)
    gather(vector_columns(shard, vector), 0, len(out), out)
    return out


@pytest.mark.parametrize("name", NAMES)
def test_the_vectors_of_a_dataset_are_the_registrys_columns_side_by_side(oxe_root: Path, name: str) -> None:
    dataset = Catalog(oxe_root).open(name)
    spec = load_registry().dataset(name)
    for which in VECTORS:
        parts = [part.model_dump() for part in getattr(spec, which)]
        vector = dataset_vector(dataset, which, None)
        assert vector.size == sum(part["dims"] for part in parts)
        assert len(vector.names) == len(vector.modes) == vector.size
        assert vector.modes == tuple(part["mode"] for part in parts for _ in range(part["dims"]))
        for shard in open_shards(dataset):
            found, expected = gather_all(shard, vector), read_rows(shard, parts)
            np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("name", ["bridge", "kuka", "taco_play"])
def test_a_range_of_steps_is_written_and_nothing_beside_it(oxe_root: Path, name: str) -> None:
    dataset = Catalog(oxe_root).open(name)
    vector = dataset_vector(dataset, "action", None)
    shard = open_shards(dataset)[0]
    out = np.full((9, vector.size + 2), -7, np.float32)
    gather(vector_columns(shard, vector), 3, 8, out)
    assert np.array_equal(out[:5, : vector.size], gather_all(shard, vector)[3:8])
    assert (out[5:] == -7).all()
    assert (out[:, vector.size :] == -7).all()


def made_shard(shard: OpenShard, **columns: pa.Array) -> OpenShard:
    """A shard whose steps are other columns."""
    made = OpenShard(shard.info)
    made.__dict__["steps"] = pa.table(columns)
    return made


@pytest.fixture
def bridge(oxe_root: Path) -> Dataset:
    return Catalog(oxe_root).open("bridge")


def test_columns_of_any_type_become_float32(bridge: Dataset) -> None:
    three = [[1, 2, 3], [4, 5, 6]]
    columns = {
        "double": pa.array([0.1, 1e300]),
        "long": pa.array([2**40 + 1, -3]),
        "byte": pa.array([255, 0], pa.uint8()),
        "truth": pa.array([True, False]),
        "half": pa.array(np.array([0.5, -2], np.float16)),
        "truths": pa.array([[True, False], [False, True]], pa.list_(pa.bool_(), 2)),
        "three": pa.array(three, pa.list_(pa.int16(), 3)),
    }
    parts = [{"path": name, "dims": dims} for name, dims in zip(columns, (1, 1, 1, 1, 1, 2, 3), strict=True)]
    shard = made_shard(open_shards(bridge)[0], **columns)
    with np.errstate(over="ignore"):
        found = gather_all(shard, make_vector(parts))
    expected = [[0.1, 2**40 + 1, 255, 1, 0.5, 1, 0, 1, 2, 3], [np.inf, -3, 0, 0, -2, 0, 1, 4, 5, 6]]
    with np.errstate(over="ignore"):
        assert np.array_equal(found, np.array(expected).astype(np.float32))


def test_nulls_become_nan(bridge: Dataset) -> None:
    columns = {
        "long": pa.array([None, 2**60 + 1]),
        "truth": pa.array([True, None]),
        "inner": pa.array([[1.0, None], [2.0, 3.0]], pa.list_(pa.float32(), 2)),
        "outer": pa.array([None, [2.0, 3.0]], pa.list_(pa.float32(), 2)),
    }
    vector = make_vector([{"path": name, "dims": dims} for name, dims in zip(columns, (1, 1, 2, 2), strict=True)])
    found = gather_all(made_shard(open_shards(bridge)[0], **columns), vector)
    nan = np.nan
    expected = np.array([[nan, 1, 1, nan, nan, nan], [2**60, nan, 2, 3, 2, 3]], np.float32)
    np.testing.assert_array_equal(found, expected)


def test_a_column_that_is_a_slice_of_a_longer_one_starts_at_its_own_beginning() -> None:
    values = pa.array([[i, i + 0.5] for i in range(6)], pa.list_(pa.float64(), 2))
    table = pa.table({"a": values.slice(2, 3), "b": pa.array([None, 1, None, 3, None, 5]).slice(2, 3)})
    assert column_array(table, "a").tolist() == [[2, 2.5], [3, 3.5], [4, 4.5]]
    np.testing.assert_array_equal(column_array(table, "b"), [np.nan, 3, np.nan])


def test_neighbouring_parts_of_one_column_are_read_at_once() -> None:
    parts = [{"path": "s", "dims": 2, "select": [0, 1]}, {"path": "s", "dims": 1, "select": [2]}]
    (span,) = make_vector(parts).spans
    assert span.select == slice(0, 3)
    (apart,) = make_vector([{"path": "s", "dims": 2, "select": [5, 1]}]).spans
    assert apart.select == (5, 1)


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        (["observation/state"], [("observation/state", None)]),
        ([("observation/state", [6, 0, 0])], [("observation/state", [6, 0, 0])]),
        ([("observation/state", range(2, 5)), "reward"], [("observation/state", [2, 3, 4]), ("reward", None)]),
        (["is_first", ("observation/state", (1,))], [("is_first", None), ("observation/state", [1])]),
        ([{"path": "observation/state", "select": [3], "names": ["yaw"]}], [("observation/state", [3])]),
    ],
)
def test_chosen_columns_take_the_place_of_the_registrys(
    bridge: Dataset, columns: list[Any], parts: list[tuple[str, list[int] | None]]
) -> None:
    vector = chosen_vector(bridge, "state", columns)
    expected = [{"path": path, "select": select} for path, select in parts]
    for shard in open_shards(bridge):
        assert np.array_equal(gather_all(shard, vector), read_rows(shard, expected))


def test_chosen_values_are_named_after_their_column_or_as_was_said(bridge: Dataset) -> None:
    columns = ["reward", ("observation/state", [6, 1]), {"path": "is_last", "names": ["end"], "mode": "flag"}]
    vector = chosen_vector(bridge, "action", columns)
    assert vector.names == ("reward[0]", "observation/state[6]", "observation/state[1]", "end")
    assert vector.modes == ("absolute", "absolute", "absolute", "flag")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["observation/stat"], "no column 'observation/stat'; did you mean 'observation/state'"),
        (["language"], "column 'language' is dictionary.*expected numbers"),
        ([("observation/state", [7])], r"'observation/state' has 7 values, select is \[7\]"),
        ([("observation/state", [-1])], "has 7 values"),
        ([("observation/state", [1.0])], "has 7 values"),
        ([("observation/state", [True])], "has 7 values"),
        ([("observation/state", [])], "has 7 values"),
        ([("observation/state", 3)], "has 7 values"),
        ([("observation/state", "12")], "has 7 values"),
        ([("reward", [1])], "'reward' has 1 values"),
        ([("observation/state",)], r"expected a column, \(column, \[indices\]\) or a mapping"),
        ([5], "expected a column"),
        ("observation/state", "expected a list"),
        ({"observation/state": [1]}, "expected a list"),
        ([{"select": [1]}], "no column None"),
        ([{"path": "observation/state", "names": ["x"]}], "gives 7 values, names are"),
        ([{"path": "reward", "mode": "relative"}], "mode 'relative'; expected one of delta"),
    ],
)
def test_a_column_that_cannot_be_had_is_refused(bridge: Dataset, columns: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"dataset bridge: state: .*{message}"):
        chosen_vector(bridge, "state", columns)


WINDOW = np.array(
    [
        [[1, 10, 0], [2, 20, 1], [4, 40, 0]],
        [[1, 10, 0], [2, 20, 1], [0, 0, 0]],
        [[5, 50, 1], [0, 0, 0], [0, 0, 0]],
    ],
    np.float32,
)
"""Of three pairs of 3, 2 and 1 steps: a delta, an absolute value and a flag."""


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("first", [[1, 10, 0], [1, 10, 0], [5, 50, 1]]),
        ("sum", [[7, 40, 0], [3, 20, 1], [5, 50, 1]]),
        ("mean", [[7 / 3, 70 / 3, 0], [1.5, 15, 1], [5, 50, 1]]),
    ],
)
def test_windows_are_reduced_by_the_mode_of_each_dimension(how: Any, expected: list[list[float]]) -> None:
    modes = np.array([[0, 1, 2]] * 3, np.int8)
    found = reduce_window(WINDOW, np.array([3, 2, 1]), how, modes)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 5))
def test_reducing_a_batch_is_reducing_each_row_by_itself(seed: int, width: int, dims: int) -> None:
    rng = np.random.default_rng(seed)
    steps = rng.integers(1, width + 1, 7)
    window = rng.normal(size=(7, width, dims)).astype(np.float32) * (np.arange(width) < steps[:, None])[..., None]
    modes = rng.integers(0, 3, (7, dims)).astype(np.int8)
    for how in REDUCTIONS[1:]:
        found = reduce_window(window, steps, how, modes)
        for row in range(7):
            real = window[row, : steps[row]].astype(np.float64)
            for dim in range(dims):
                last = how != "first" and (modes[row, dim] == 2 or (how == "sum" and modes[row, dim] == 1))
                by_name = {"first": real[0], "sum": real.sum(axis=0), "mean": real.mean(axis=0)}
                expected = real[-1, dim] if last else by_name[how][dim]
                assert found[row, dim] == pytest.approx(expected, abs=1e-5)


def test_velocities_add_up_like_deltas_and_padding_counts_as_delta() -> None:
    parts = [{"path": p, "dims": 1, "mode": p} for p in ("delta", "velocity", "absolute", "flag")]
    assert mode_codes(make_vector(parts), 6).tolist() == [0, 0, 1, 2, 0, 0]
