from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.base.errors import ArgumentError, FormatError
from stream.batch.dataset_vector import dataset_vector, space_vector
from stream.batch.vectors import DatasetVector, kind_codes, reduce_window
from stream.format.catalog import Catalog, Dataset
from stream.format.index import SplitIndex, open_index
from stream.format.schema import STEP_FIELDS
from stream.format.table import Table, open_table
from stream.sample.vector import Reduction, Vector
from tests.fixtures.datasets.arrow_part import write_part


def open_splits(dataset: Dataset) -> list[SplitIndex]:
    return [open_index(dataset, split) for split in dataset.manifest.splits]


def chosen_vector(dataset: Dataset, vector_name: Literal["action", "state"], columns: Any) -> DatasetVector:
    return dataset_vector(dataset, vector_name, Vector(columns=columns), steps=open_splits(dataset)[0].steps)


@pytest.fixture
def bridge(oxe_root: Path) -> Dataset:
    return Catalog(oxe_root).open("bridge")


def made_steps(folder: Path, **columns: pa.Array) -> Table:
    """Return steps with other columns."""
    rows = len(next(iter(columns.values())))
    numbers = pa.array(range(rows), pa.int32())
    texts = pa.array(["open"] * rows, pa.large_string()).dictionary_encode()
    schema = pa.schema([*STEP_FIELDS, *((name, array.type) for name, array in columns.items())])
    table = pa.Table.from_arrays([numbers, numbers, texts, *columns.values()], schema=schema)
    write_part(folder / "steps.arrow", table)
    return open_table(folder / "steps.arrow", "steps")


def test_columns_of_any_type_become_float32(bridge: Dataset, tmp_path: Path) -> None:
    columns = {
        "double": pa.array([0.1, 1e300]),
        "long": pa.array([2**40 + 1, -3]),
        "byte": pa.array([255, 0], pa.uint8()),
        "truth": pa.array([True, False]),
        "half": pa.array(np.array([0.5, -2], np.float16)),
        "truths": pa.array([[True, False], [False, True]], pa.list_(pa.bool_(), 2)),
        "three": pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int16(), 3)),
    }
    steps = made_steps(tmp_path, **columns)
    vector = dataset_vector(bridge, "state", Vector(columns=list(columns)), steps=steps)
    result, exists = vector.take(steps, np.array([1, 0, 1]))
    expected = [[0.1, 2**40 + 1, 255, 1, 0.5, 1, 0, 1, 2, 3], [np.inf, -3, 0, 0, -2, 0, 1, 4, 5, 6]]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(result, np.array(expected).astype(np.float32)[[1, 0, 1]], strict=True)
    assert exists.all()


def test_where_a_row_has_no_value_it_is_zero_and_said_so(bridge: Dataset, tmp_path: Path) -> None:
    columns = {
        "long": pa.array([None, 2**60 + 1]),
        "truth": pa.array([True, None]),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array([7.0, 7, 2, 3]), 2, mask=pa.array([True, False])),
    }
    steps = made_steps(tmp_path, **columns)
    vector = dataset_vector(bridge, "state", Vector(columns=["truth", ("vector", [1, 0]), "long"]), steps=steps)
    result, exists = vector.take(steps, np.arange(2))
    np.testing.assert_array_equal(result, np.array([[1, 0, 0, 0], [0, 3, 2, 2**60]], np.float32), strict=True)
    assert exists.tolist() == [[True, False, False, False], [False, True, True, True]]


@pytest.mark.parametrize(
    "kind",
    [pa.large_string(), pa.large_list(pa.float32()), pa.list_(pa.large_string(), 2), pa.list_(pa.float32(), 0)],
    ids=str,
)
def test_a_column_of_other_values_than_numbers_is_refused(bridge: Dataset, tmp_path: Path, kind: pa.DataType) -> None:
    steps = made_steps(tmp_path, other=pa.nulls(3, kind))
    with pytest.raises(ArgumentError, match="column 'other' is not of numbers, one or a fixed number a step"):
        dataset_vector(bridge, "state", Vector(columns=["other"]), steps=steps)


def test_the_feature_of_a_dataset_is_chosen_where_a_derived_column_has_its_name(
    bridge: Dataset, tmp_path: Path
) -> None:
    steps = made_steps(tmp_path, action=pa.array([1.0, 2.0], pa.float32()), action_=pa.array([3, 4]))
    vector = dataset_vector(bridge, "action", Vector(columns=["action"]), steps=steps)
    assert vector.names == ("action[0]",)
    np.testing.assert_array_equal(vector.take(steps, np.arange(2))[0], [[3], [4]])


@pytest.mark.parametrize(
    "other_type",
    [
        lambda size: None,
        lambda size: pa.list_(pa.float32(), size - 1),
        lambda size: pa.list_(pa.float64(), size),
        lambda size: pa.large_list(pa.float32()),
        lambda size: pa.float32(),
    ],
    ids=["missing", "narrower", "doubles", "lists", "numbers"],
)
def test_a_derived_column_that_does_not_fit_the_manifest_is_refused(
    bridge: Dataset, tmp_path: Path, other_type: Callable[[int], pa.DataType | None]
) -> None:
    size = sum(part["dims"] for part in bridge.manifest.spec["action"])
    kind = other_type(size)
    derived = {} if kind is None else {"action": pa.nulls(3, kind)}
    steps = made_steps(tmp_path, reward=pa.array([1, 2, 3]), **derived)
    message = f"column 'action' is not the {size} numbers of the manifest's spec; run `pairstream reindex`"
    with pytest.raises(FormatError, match=message):
        dataset_vector(bridge, "action", Vector(), steps=steps)


def test_a_dataset_without_a_vector_has_one_of_no_dimensions(bridge: Dataset, tmp_path: Path) -> None:
    steps = made_steps(tmp_path, other=pa.array([1]))
    manifest = bridge.manifest.model_copy(update={"spec": {}})
    assert dataset_vector(replace(bridge, manifest=manifest), "action", Vector(), steps=steps).size == 0


def test_chosen_values_are_named_after_their_column_or_as_was_said(bridge: Dataset) -> None:
    columns = ["reward", ("observation/state", [6, 1]), {"path": "is_last", "names": ["end"], "kind": "flag"}]
    vector = chosen_vector(bridge, "action", columns)
    assert vector.names == ("reward[0]", "observation/state[6]", "observation/state[1]", "end")
    assert vector.kinds == ("absolute", "absolute", "absolute", "flag")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["observation/stat"], "no column 'observation/stat'; did you mean 'observation/state'"),
        (["language"], "no column 'language'"),
        ([("observation/state", [7])], r"'observation/state' has 7 values, select is \[7\]"),
        ([("observation/state", [-1])], "has 7 values"),
        ([("observation/state", [True])], "has 7 values"),
        ([("observation/state", 3)], "has 7 values"),
        ([("reward", [1])], "'reward' has 1 values"),
        ([("observation/state",)], r"expected a column, \(column, \[indices\]\) or a mapping"),
        ({"observation/state": [1]}, "expected a list"),
        ([{"select": [1]}], "no column None"),
        ([{"path": "observation/state", "names": ["x"]}], "has 7 values, value: .*has 1 names"),
        ([{"path": "reward", "kind": "relative"}], "kind: Input should be 'displacement'.*found 'relative'"),
    ],
)
def test_a_column_that_cannot_be_had_is_refused(bridge: Dataset, columns: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"dataset bridge: state: .*{message}"):
        chosen_vector(bridge, "state", columns)


def test_columns_are_a_list() -> None:
    with pytest.raises(ArgumentError, match="columns='observation/state'; expected a list of columns, or a mapping"):
        Vector(columns="observation/state")


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 5))
def test_reducing_a_batch_is_reducing_each_row_by_itself(seed: int, width: int, dims: int) -> None:
    rng = np.random.default_rng(seed)
    steps = rng.integers(1, width + 1, 7)
    window = rng.normal(size=(7, width, dims)).astype(np.float32) * (np.arange(width) < steps[:, None])[..., None]
    kinds = rng.integers(0, 3, (7, dims)).astype(np.int8)
    for how in get_args(Reduction):
        result = reduce_window(window, steps, how, kinds)
        for row in range(7):
            real = window[row, : steps[row]].astype(np.float64)
            for dim in range(dims):
                last = how != "first" and (kinds[row, dim] == 2 or (how == "sum" and kinds[row, dim] == 1))
                by_name = {"first": real[0], "sum": real.sum(axis=0), "mean": real.mean(axis=0)}
                expected = real[-1, dim] if last else by_name[how][dim]
                assert result[row, dim] == pytest.approx(expected, abs=1e-5)


def test_velocities_add_up_like_deltas_and_padding_counts_as_delta() -> None:
    kinds = ("displacement", "velocity", "absolute", "flag")
    assert kind_codes(DatasetVector(kinds, kinds), 6).tolist() == [0, 0, 1, 2, 0, 0]


def test_every_gripper_of_the_space_joint_is_one() -> None:
    fields = SimpleNamespace(names=lambda *_: ("joint_1", "left_gripper", "joint_3", "right_gripper"))
    dataset: Any = SimpleNamespace(fields=SimpleNamespace(spaces={"joint": fields}))
    vector = space_vector(dataset, "state", "joint")
    assert vector.quantities == ("joint_position", "gripper", "joint_position", "gripper")
