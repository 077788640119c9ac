"""Statistics of derived columns are exact, whatever the size of the split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from convert.index.derived import part_names, vector_field
from convert.index.statistics import split_statistics
from convert.registry.dataset import Part
from stream.base.errors import FormatError
from stream.format.manifest import Statistics
from stream.format.names import table_file
from stream.format.schema import STEP_FIELDS
from stream.format.statistics import describe_values
from tests.fixtures.datasets.arrow_part import write_part

NUMBERS = ("mean", "std", "min", "max", "q01", "q99")


def parts_of(dims: int) -> tuple[Part, ...]:
    return (Part(path="x", dims=dims, quantity="other", kind="absolute"),)


def write_steps(folder: Path, **vectors: np.ndarray) -> Path:
    rows = len(next(iter(vectors.values())))
    fields = [vector_field(name, parts_of(values.shape[1])) for name, values in vectors.items()]
    zeros = pa.array(np.zeros(rows, np.int32))
    texts = pa.array([""] * rows, pa.large_string()).dictionary_encode()
    columns = [
        pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=field.type)
        for field, values in zip(fields, vectors.values(), strict=True)
    ]
    table = pa.Table.from_arrays([zeros, zeros, texts, *columns], schema=pa.schema([*STEP_FIELDS, *fields]))
    write_part(folder / table_file("steps"), table)
    return folder


def nine_digits(numbers: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{number:.9g}") for number in numbers)


@pytest.mark.parametrize("rows", [1, 2, 100, 101, 200_001])
def test_the_statistics_are_numpys_in_float64(rows: int, tmp_path: Path) -> None:
    values = np.random.default_rng(rows).normal(3, 5, (rows, 3)).astype(np.float32)
    actual = split_statistics(write_steps(tmp_path, action=values), {"action": parts_of(3)})
    complete_bytes = values.astype(np.float64)
    assert actual == {
        "action": Statistics(
            names=("x[0]", "x[1]", "x[2]"),
            count=rows,
            nonfinite=(0, 0, 0),
            mean=nine_digits(complete_bytes.mean(0)),
            std=nine_digits(complete_bytes.std(0)),
            min=nine_digits(complete_bytes.min(0)),
            max=nine_digits(complete_bytes.max(0)),
            q01=nine_digits(np.quantile(complete_bytes, 0.01, axis=0)),
            q99=nine_digits(np.quantile(complete_bytes, 0.99, axis=0)),
        )
    }


@given(arrays.arrays(np.float32, st.integers(1, 300), elements=st.floats(width=32)))
def test_the_statistics_of_any_values_are_numpys_on_the_finite_ones(values: np.ndarray) -> None:
    finite = values[np.isfinite(values)].astype(np.float64)
    actual = describe_values(values.copy())
    assert actual["nonfinite"] == len(values) - len(finite)
    if not len(finite):
        assert [actual[key] for key in NUMBERS] == [None] * 6
        return
    expected = [finite.mean(), finite.std(), finite.min(), finite.max(), *np.quantile(finite, (0.01, 0.99))]
    scale = np.abs(finite).max()
    np.testing.assert_allclose(
        np.array([actual[key] for key in NUMBERS], float), expected, rtol=1e-8, atol=1e-9 * scale
    )


def test_a_constant_is_its_own_mean_and_does_not_vary() -> None:
    actual = describe_values(np.full(300_001, 0.02, np.float32))
    assert {actual[key] for key in ("mean", "min", "max", "q01", "q99")} == {float(f"{np.float32(0.02):.9g}")}
    assert actual["std"] == 0


def test_the_order_of_the_steps_makes_no_difference() -> None:
    values = np.random.default_rng(1).normal(size=200_000).astype(np.float32)
    assert describe_values(values.copy()) == describe_values(values[::-1].copy())


def test_nan_and_infinity_are_counted_and_left_out(tmp_path: Path) -> None:
    values = np.array([[1, np.nan], [np.inf, 2], [3, -np.inf], [np.nan, np.nan]], np.float32)
    actual = split_statistics(write_steps(tmp_path, state=values), {"state": parts_of(2)})["state"]
    assert actual.count == 4
    assert actual.nonfinite == (2, 3)
    assert actual.mean == (2.0, 2.0)
    assert actual.max == (3.0, 2.0)


def test_without_any_step_there_are_no_numbers(tmp_path: Path) -> None:
    folder = write_steps(tmp_path, action=np.zeros((0, 2), np.float32))
    assert split_statistics(folder, {"action": parts_of(2)})["action"] == Statistics(
        names=("x[0]", "x[1]"), count=0, nonfinite=(0, 0), **dict.fromkeys(NUMBERS, (None, None))
    )


def test_numbers_have_nine_digits_so_that_the_order_of_a_sum_does_not_show() -> None:
    mean = describe_values(np.array([0.1, 0.2, 0.4], np.float32))["mean"]
    assert mean == pytest.approx(0.2333333, rel=1e-6)
    assert len(repr(mean)) <= 11


def test_derived_columns_of_another_size_than_the_registrys_are_refused(tmp_path: Path) -> None:
    folder = write_steps(tmp_path, action=np.zeros((3, 2), np.float32))
    with pytest.raises(FormatError, match=r"steps\.arrow: no column 'action' of 3 float32 numbers"):
        split_statistics(folder, {"action": parts_of(3)})
    with pytest.raises(FormatError, match=r"steps\.arrow: no column 'state' of 2 float32 numbers"):
        split_statistics(folder, {"action": parts_of(2), "state": parts_of(2)})


def test_names_are_the_registrys_or_made_of_path_and_place() -> None:
    def part(path: str, dims: int, **more: object) -> Part:
        return Part.model_validate({"path": path, "dims": dims, "quantity": "other", "kind": "flag", **more})

    parts = (part("pose", 2, names=("x", "y")), part("state", 2, select=(5, 1)), part("gripper", 1))
    assert part_names(parts) == ("x", "y", "state[5]", "state[1]", "gripper[0]")
