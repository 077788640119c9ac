"""Sums and means of actions: deltas add, velocities become distances, and rotations have neither."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stream import ArgumentError, Vector, make_loader
from stream.base.errors import FormatError
from stream.batch.vectors import DatasetVector, check_reduction, sum_scale
from stream.sample.vector import Reduction
from tests.stream.crafted_root import CraftedRoot

VECTOR = DatasetVector(("x", "y", "open", "z"), ("displacement", "velocity", "flag", "velocity"))
VELOCITIES = ["droid", "berkeley_cable_routing", "robo_set", "stanford_robocook_converted_externally_to_rlds"]


def test_velocities_are_multiplied_by_the_time_of_a_step() -> None:
    result = sum_scale(VECTOR, 5.0)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, np.array([1, 0.2, 1, 0.2], np.float32))


def test_without_a_rate_velocities_are_refused_and_all_else_is_kept() -> None:
    with pytest.raises(
        ArgumentError, match=r"dataset bridge: action=Vector\(reduce='sum'\) would add up velocities \(y\).*reduce=None"
    ):
        check_reduction("sum", VECTOR, None, dataset="bridge")
    without = DatasetVector(("x", "g"), ("displacement", "absolute"))
    check_reduction("sum", without, None, dataset="bridge")
    assert sum_scale(without, None).tolist() == [1, 1]


FURNITURE = "furniture_bench_dataset_converted_externally_to_rlds"
REDUCED: tuple[Reduction, ...] = ("sum", "mean")


def pose(quantity: str, kind: str) -> DatasetVector:
    return DatasetVector(("x", "qx"), ("displacement", kind), quantities=("ee_position", quantity))


@pytest.mark.parametrize("quantity", ["ee_rotation_quaternion", "ee_pose_matrix"])
@pytest.mark.parametrize("kind", ["displacement", "velocity"])
def test_changes_that_are_multiplied_have_no_sum(quantity: str, kind: str) -> None:
    for how in REDUCED:
        with pytest.raises(
            ArgumentError, match=rf"dataset arm: action=Vector\(reduce='{how}'\) .*matrices \(qx\).*'eef_delta'"
        ):
            check_reduction(how, pose(quantity, kind), 5.0, dataset="arm")
    for held in ("target", "absolute", "flag"):
        check_reduction("sum", pose(quantity, held), 5.0, dataset="arm")


@pytest.mark.parametrize(
    ("quantity", "message"),
    [
        ("ee_rotation_quaternion", "add up quaternions or matrices"),
        ("ee_pose_matrix", "add up quaternions or matrices"),
        ("ee_rotation_euler", "average angles that jump"),
        ("ee_rotation_axis_angle", "average angles that jump"),
        ("base_rotation", "average angles that jump"),
    ],
)
def test_poses_that_jump_have_no_mean(quantity: str, message: str) -> None:
    for kind in ("target", "absolute"):
        with pytest.raises(
            ArgumentError, match=rf"dataset arm: action=Vector\(reduce='mean'\) would {message}.* \(qx\)"
        ):
            check_reduction("mean", pose(quantity, kind), 5.0, dataset="arm")
        check_reduction("first", pose(quantity, kind), 5.0, dataset="arm")
        check_reduction("mean", pose("joint_position", kind), 5.0, dataset="arm")
    check_reduction("mean", pose(quantity, "flag"), 5.0, dataset="arm")
    if "jump" in message:
        check_reduction("mean", pose(quantity, "displacement"), 5.0, dataset="arm")


def test_a_dataset_of_quaternions_is_refused_at_once_and_its_eef_delta_is_summed(oxe_root: Path) -> None:
    mixture = {"bridge": 1, FURNITURE: 1}
    for how in REDUCED:
        with pytest.raises(
            ArgumentError, match=rf"dataset {FURNITURE}: action=Vector\(reduce='{how}'\) would add up quaternions"
        ):
            make_loader(oxe_root, mixture, batch_size=8, action=Vector(reduce=how))
    summed, windows = (
        make_loader(oxe_root, mixture, batch_size=8, action=Vector(space="eef_delta", reduce=how)).batch_at(0)
        for how in ("sum", None)
    )
    real = summed["action_mask"][:, 3:6].all(axis=1)
    total = windows["action"].sum(axis=1)
    assert real.any()
    np.testing.assert_allclose(summed["action"][real, :6], total[real, :6], atol=1e-5)
    for kept in (None, "first"):
        make_loader(oxe_root, mixture, batch_size=8, action=Vector(reduce=kept))
    make_loader(oxe_root, mixture, batch_size=8, action=Vector(space="eef_delta", reduce="mean"))


@pytest.mark.parametrize("name", VELOCITIES)
def test_the_sum_of_a_dataset_of_velocities_is_a_distance(oxe_root: Path, name: str) -> None:
    """Mix velocities with a larger dataset of deltas, whose sums stay unchanged."""
    mixture = {name: 1, "bridge": 1}
    summed = make_loader(oxe_root, mixture, batch_size=16, action=Vector(reduce="sum"))
    batch, windows = summed.batch_at(0), make_loader(oxe_root, mixture, batch_size=16).batch_at(0)
    rate = summed.data.datasets[0].manifest.spec["control_frequency"]
    kinds = [np.array(vector.kinds) for vector in summed.data.spec.actions]
    assert set(batch["dataset"].tolist()) == {0, 1}
    for number, result, window in zip(batch["dataset"], batch["action"], windows["action"], strict=True):
        kind, total = kinds[number], window.sum(axis=0)[: len(kinds[number])]
        for name, factor in (("velocity", 1 / rate), ("displacement", 1)):
            np.testing.assert_allclose(result[: len(kind)][kind == name], total[kind == name] * factor, rtol=1e-5)


def test_a_dataset_of_velocities_without_a_rate_is_refused_at_once(oxe_root: Path, tmp_path: Path) -> None:
    root = CraftedRoot(oxe_root, tmp_path)
    root.set("spec/control_frequency", None)
    columns = {"bridge": [{"path": "action/world_vector", "kind": "velocity"}]}
    with pytest.raises(ArgumentError, match=r"dataset bridge: .* velocities \(action/world_vector\[0\]\)"):
        make_loader(root.root, "bridge", batch_size=4, action=Vector(columns=columns, reduce="sum"))
    for how in (None, "mean", "first"):
        make_loader(root.root, "bridge", batch_size=4, action=Vector(columns=columns, reduce=how))


def test_a_rate_that_is_none_is_refused(oxe_root: Path, tmp_path: Path) -> None:
    root = CraftedRoot(oxe_root, tmp_path)
    for rate in (0, -1.0, "5", True, 1e9):
        root.set("spec/control_frequency", rate)
        with pytest.raises(FormatError, match=r"field spec\.control_frequency"):
            make_loader(root.root, "bridge", batch_size=4)
