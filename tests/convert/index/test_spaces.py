"""Canonical spaces against values that the transforms of OpenVLA and Octo gave; tests/data/spaces says how."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy.spatial.transform import Rotation

from convert.index.derived import derive_vector
from convert.index.operations import OPERATIONS, Rows
from convert.registry.registry import load_registry
from convert.registry.space import MappedVector, OperationName, Term
from stream.format.schema import feature_column
from tests.fixtures.datasets.spaces import mapped_vectors

DATA = Path(__file__).resolve().parents[2] / "data" / "spaces"
DATASETS = load_registry().datasets
SPACES = {
    name: (space, mapped_vectors(spec)["action_joint" if name == "robo_set" else "action_oxe"])
    for name, spec in DATASETS.items()
    if (space := spec.spaces["joint" if name == "robo_set" else "oxe"]).follows
}
"""Datasets with a transform in OpenVLA or Octo; that of robo_set gives joints."""


@cache
def golden() -> dict[str, np.ndarray]:
    with np.load(DATA / "synthetic.npz") as stored:
        return dict(stored)


def inputs(name: str) -> pa.Table:
    """Return the features of a dataset's episodes as columns of ``steps``."""
    lengths = golden()["lengths"]
    columns: dict[str, pa.Array] = {"episode": pa.array(np.repeat(np.arange(len(lengths)), lengths), pa.int32())}
    for key, values in golden().items():
        dataset, _, path = key.partition("|")
        if dataset == name and path not in ("openvla", "octo"):
            flat = pa.array(values.reshape(-1))
            columns[feature_column("steps", path)] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return pa.table(columns)


def test_26_of_29_datasets_and_bridge_dataset_have_a_transform() -> None:
    assert len(SPACES) == 27
    assert {key.split("|")[0] for key in golden() if key.endswith(("|openvla", "|octo"))} == set(SPACES)


@pytest.mark.parametrize("name", SPACES)
def test_oxe_is_what_the_transform_gives(name: str) -> None:
    space, vector = SPACES[name]
    expected = golden()[f"{name}|{space.follows}"]
    actual = derive_vector(inputs(name), vector)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_steps_of_other_episodes_are_never_seen() -> None:
    table = inputs("bridge_dataset")
    lengths = golden()["lengths"]
    for vector in mapped_vectors(DATASETS["bridge_dataset"]).values():
        complete_bytes = derive_vector(table, vector)
        item = [
            derive_vector(table[stop - n : stop], vector) for n, stop in zip(lengths, np.cumsum(lengths), strict=True)
        ]
        np.testing.assert_array_equal(complete_bytes, np.concatenate(item))


def test_a_space_without_rows_is_empty() -> None:
    for vector in mapped_vectors(DATASETS["furniture_bench_dataset_converted_externally_to_rlds"]).values():
        table = inputs("furniture_bench_dataset_converted_externally_to_rlds")
        columns = {name: table.column(name)[:0] for name in table.column_names}
        for term in vector.terms:
            columns.setdefault(str(term.path), pa.array([], pa.list_(pa.float32(), 35)))
        assert derive_vector(pa.table(columns), vector).shape == (0, len(vector.names))


def test_a_padded_dimension_and_a_missing_value_are_nan() -> None:
    vector = MappedVector((Term(path="x"), Term(pad=2), Term(fill=0.5)), ("a", "b", "c", "d"))
    actual = derive_vector(pa.table({"episode": pa.array([0, 0], pa.int32()), "x": pa.array([1.0, None])}), vector)
    np.testing.assert_array_equal(actual, np.array([[1, np.nan, np.nan, 0.5], [np.nan] * 3 + [0.5]], np.float32))


ANGLES = Rotation.random(200, random_state=0)


@pytest.mark.parametrize(
    ("operation", "values"),
    [
        ("axis_angle", ANGLES.as_rotvec()),
        ("quaternion_xyzw", ANGLES.as_quat()),
        ("quaternion_wxyz", ANGLES.as_quat()[:, [3, 0, 1, 2]]),
        ("matrix", ANGLES.as_matrix().reshape(-1, 9)),
    ],
)
def test_rotations_become_roll_pitch_and_yaw_about_fixed_axes(operation: OperationName, values: np.ndarray) -> None:
    rows = Rows.of(np.zeros(len(values), int), None)
    actual = OPERATIONS[operation](values.astype(np.float32), rows, ())
    np.testing.assert_allclose(actual, ANGLES.as_euler("xyz"), atol=2e-5)


def test_turned_is_the_rotation_from_each_step_to_the_next_about_fixed_axes() -> None:
    rows = Rows.of(np.repeat([0, 1], 100), None)
    actual = OPERATIONS["turned"](ANGLES.as_euler("xyz").astype(np.float32), rows, ())
    turned = Rotation.from_euler("xyz", actual[:99])
    assert np.isnan(actual[[99, 199]]).all()
    np.testing.assert_allclose((turned * ANGLES[:99]).as_matrix(), ANGLES[1:100].as_matrix(), atol=1e-5)


@pytest.mark.parametrize(
    ("operation", "values", "expected"),
    [
        ("binarize", [0, 0.5, 1, 0.5, 0.02, 0.3], [0, 1, 1, 0, 0, 0.3]),
        ("relative_to_absolute", [0, 0.1, 0.5, 0, -1, 0], [1, 1, 0, 0, 1, 1]),
        ("relative_to_absolute", [0, -0.2, 0], [0, 1, 1]),
        ("relative_to_absolute", [0, 0.05], [1, 1]),
        ("since_last", [1, 3, 6], [np.nan, 2, 3]),
        ("reached", [1, 3, 6], [2, 3, np.nan]),
    ],
)
def test_an_operation_over_an_episode(operation: OperationName, values: list[float], expected: list[float]) -> None:
    twice = np.array([values, values], np.float32).reshape(-1, 1)
    actual = OPERATIONS[operation](twice, Rows.of(np.repeat([3, 7], len(values)), None), ())
    np.testing.assert_array_equal(actual[:, 0], np.array(expected * 2, np.float32))


@pytest.mark.parametrize(("values", "expected"), [([0.08, 0, 0.1], [1, 0, 1]), ([0.04], [0.5])])
def test_fraction_goes_from_closed_to_open(values: list[float], expected: list[float]) -> None:
    actual = OPERATIONS["fraction"](
        np.array(values, np.float32)[:, None], Rows.of(np.zeros(len(values)), None), (0, 0.08)
    )
    np.testing.assert_allclose(actual[:, 0], expected)


def test_a_velocity_is_multiplied_by_the_time_of_a_step() -> None:
    values = np.array([[5], [-10]], np.float32)
    assert OPERATIONS["per_step"](values, Rows.of(np.zeros(2), 5.0), ()).tolist() == [[1], [-2]]
