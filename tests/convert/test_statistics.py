from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from convert.registry import Part
from convert.sidecars import write_sidecar
from convert.statistics import column_values, part_names, vector_statistics
from stream.manifest import Statistics


def part(path: str, dims: int, **more: Any) -> Part:
    return Part(path=path, dims=dims, quantity="other", mode="absolute", **more)


def vectors(values: np.ndarray, *, mask: list[bool] | None = None) -> pa.Array:
    flat = pa.array(values.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1], mask=pa.array(mask) if mask else None)


def write(tmp_path: Path, *tables: dict[str, pa.Array]) -> list[Path]:
    paths = []
    for index, columns in enumerate(tables):
        paths.append(tmp_path / f"{index}.steps.arrow")
        write_sidecar(paths[-1], pa.table(columns))
    return paths


def test_the_statistics_of_several_shards_are_numpys_on_the_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shards = [rng.normal(3, 5, (rows, 3)).astype(np.float32) for rows in (500, 0, 1, 900)]
    paths = write(tmp_path, *({"action": vectors(values)} for values in shards))
    found = vector_statistics(paths, [part("action", 3)])
    whole = np.concatenate(shards).astype(np.float64)
    assert found.count == len(whole)
    assert found.nonfinite == (0, 0, 0)
    for name, expected in {
        "mean": whole.mean(0),
        "std": whole.std(0),
        "min": whole.min(0),
        "max": whole.max(0),
        "q01": np.quantile(whole, 0.01, axis=0),
        "q99": np.quantile(whole, 0.99, axis=0),
    }.items():
        np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-8, err_msg=name)


def test_the_order_of_the_shards_makes_no_difference(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    paths = write(tmp_path, *({"x": vectors(rng.normal(size=(300, 2)).astype(np.float32))} for _ in range(5)))
    assert vector_statistics(paths, [part("x", 2)]) == vector_statistics(paths[::-1], [part("x", 2)])


def test_parts_are_joined_in_their_order_with_the_values_they_select(tmp_path: Path) -> None:
    pose = np.arange(12, dtype=np.float32).reshape(3, 4)
    (path,) = write(tmp_path, {"pose": vectors(pose), "open": pa.array([True, False, True])})
    found = vector_statistics([path], [part("open", 1), part("pose", 2, select=(3, 0))])
    assert found.names == ("open[0]", "pose[3]", "pose[0]")
    assert found.max == (1.0, 11.0, 8.0)
    assert found.min == (0.0, 3.0, 0.0)


def test_nan_infinity_and_absent_rows_are_counted_and_left_out(tmp_path: Path) -> None:
    values = np.array([[1, np.nan], [np.inf, 2], [3, -np.inf], [9, 9]], np.float32)
    (path,) = write(tmp_path, {"x": vectors(values, mask=[False, False, False, True])})
    found = vector_statistics([path], [part("x", 2)])
    assert found.count == 4
    assert found.nonfinite == (2, 3)
    assert found.mean == (2.0, 2.0)
    assert found.max == (3.0, 2.0)


@pytest.mark.parametrize("tables", [[], [{"x": vectors(np.zeros((0, 2), np.float32))}]], ids=["no shard", "no step"])
def test_without_any_step_there_are_no_numbers(tmp_path: Path, tables: list[dict[str, pa.Array]]) -> None:
    found = vector_statistics(write(tmp_path, *tables), [part("x", 2)])
    nothing = (None, None)
    assert found == Statistics(
        names=("x[0]", "x[1]"),
        count=0,
        nonfinite=(0, 0),
        **dict.fromkeys(("mean", "std", "min", "max", "q01", "q99"), nothing),
    )


def test_numbers_have_nine_digits_so_that_the_order_of_a_sum_does_not_show(tmp_path: Path) -> None:
    (path,) = write(tmp_path, {"x": pa.array([0.1, 0.2, 0.4], pa.float32())})
    (mean,) = vector_statistics([path], [part("x", 1)]).mean
    assert mean == pytest.approx(0.2333333, rel=1e-6)
    assert len(repr(mean)) <= 11


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bool", "int8", "uint8", "int64", "uint64"])
def test_scalar_columns_of_any_type_become_floats_with_nan_for_absent_rows(dtype: str) -> None:
    kind = pa.from_numpy_dtype(np.dtype(dtype))
    found = column_values(pa.array([1, None, 0], pa.int8()).cast(kind))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [[1], [np.nan], [0]])


@pytest.mark.parametrize("dtype", ["float16", "float32", "bool", "int32"])
def test_vectors_with_absent_rows_become_floats_also_in_a_slice(dtype: str) -> None:
    values = np.array([[0, 1], [1, 0], [0, 0], [1, 1]]).astype(dtype)
    found = column_values(vectors(values, mask=[False, True, False, False])[1:])
    np.testing.assert_array_equal(found, [[np.nan, np.nan], [0, 0], [1, 1]])


def test_names_are_the_registrys_or_made_of_path_and_place() -> None:
    parts = [part("pose", 2, names=("x", "y")), part("state", 2, select=(5, 1)), part("gripper", 1)]
    assert part_names(parts) == ("x", "y", "state[5]", "state[1]", "gripper[0]")
