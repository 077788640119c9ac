from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convert.registry import load_registry
from stream.catalog import Catalog, Dataset
from stream.errors import ArgumentError
from stream.index import SplitIndex, open_index
from stream.schema import feature_column
from stream.vectors import REDUCTIONS, Vector, dataset_vector, mode_codes, reduce_window

NAMES = [selected.spec.name for selected in load_registry().resolve("oxe29")]
VECTORS: tuple[Literal["action", "state"], ...] = ("action", "state")


def open_splits(dataset: Dataset) -> list[SplitIndex]:
    return [open_index(dataset, split) for split in dataset.manifest.splits]


def chosen_vector(dataset: Dataset, which: Literal["action", "state"], columns: Any) -> Vector:
    return dataset_vector(dataset, which, columns, steps=open_splits(dataset)[0].steps)


def read_rows(index: SplitIndex, parts: list[dict[str, Any]]) -> np.ndarray:
    """The vector of every step, value by value as Arrow reads the raw columns."""
    table = index.steps.arrow()
    rows: list[list[float]] = [[] for _ in range(len(table))]
    for part in parts:
        values = table[feature_column("steps", part["path"])].to_pylist()
        for row, value in zip(rows, values, strict=True):
            several = value if isinstance(value, list) else [value]
            chosen = range(len(several)) if part["select"] is None else part["select"]
            row += [float(several[i]) for i in chosen]
    return np.array(rows, np.float32).reshape(len(table), -1)


@pytest.mark.parametrize("name", NAMES)
def test_the_vectors_of_a_dataset_are_the_registrys_columns_side_by_side(oxe_root: Path, name: str) -> None:
    dataset = Catalog(oxe_root).open(name)
    spec = load_registry().dataset(name)
    for which in VECTORS:
        parts = [part.model_dump() for part in getattr(spec, which)]
        for index in open_splits(dataset):
            vector = dataset_vector(dataset, which, None, steps=index.steps)
            assert vector.size == sum(part["dims"] for part in parts)
            assert len(vector.names) == len(vector.modes) == vector.size
            assert vector.modes == tuple(part["mode"] for part in parts for _ in range(part["dims"]))
            if parts:
                np.testing.assert_array_equal(index.steps.array(which), read_rows(index, parts), strict=True)


@pytest.fixture
def bridge(oxe_root: Path) -> Dataset:
    return Catalog(oxe_root).open("bridge")


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
    for index in open_splits(bridge):
        values, there = vector.take(index.steps, np.arange(len(index.steps)))
        np.testing.assert_array_equal(values, read_rows(index, expected), strict=True)
        assert there.all()


def test_chosen_values_are_named_after_their_column_or_as_was_said(bridge: Dataset) -> None:
    columns = ["reward", ("observation/state", [6, 1]), {"path": "is_last", "names": ["end"], "mode": "flag"}]
    vector = chosen_vector(bridge, "action", columns)
    assert vector.names == ("reward[0]", "observation/state[6]", "observation/state[1]", "end")
    assert vector.modes == ("absolute", "absolute", "absolute", "flag")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["observation/stat"], "no column 'observation/stat'; did you mean 'observation/state'"),
        (["language"], "no column 'language'"),
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
    modes = ("delta", "velocity", "absolute", "flag")
    assert mode_codes(Vector(modes, modes), 6).tolist() == [0, 0, 1, 2, 0, 0]
