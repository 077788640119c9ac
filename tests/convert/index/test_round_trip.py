"""Deltas lead from one pose to the next, and grippers are 1 when open, in the sample of every dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy.spatial.transform import Rotation

from convert.index.derived import derive_vector
from convert.registry.registry import load_registry
from convert.run.command import main as convert
from stream.format.names import DerivedName
from stream.format.spaces import EEF_NAMES
from tests.fixtures.datasets.sampled_steps import EPISODES, STEPS, sampled_steps

NAMES = list(load_registry().datasets)
GRIPPER = EEF_NAMES.index("gripper")


def column(name: str, column: DerivedName) -> np.ndarray:
    """The values of a space, [episodes, steps, dimensions]; skips where the dataset does not map to it."""
    spec, table = sampled_steps(name)
    if column not in spec.vectors:
        pytest.skip(f"{column}: {spec.spaces[column.partition('_')[2]].unmapped}")  # type: ignore[index]
    return derive_vector(table, spec.vectors[column]).reshape(EPISODES, STEPS, -1)


def drift(deltas: np.ndarray, poses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distance (m) and angle (rad) from each pose to the sum of the deltas up to it, [steps - 1]; NaN as unknown."""
    locations = poses[0, :3] + np.cumsum(deltas[:-1, :3], axis=0, dtype=np.float64)
    distance = np.linalg.norm(locations - poses[1:, :3], axis=1)
    if not (np.isfinite(deltas[:-1, 3:6]).all() and np.isfinite(poses[:, 3:6]).all()):
        return distance, np.full(len(distance), np.nan)
    stored = Rotation.from_euler("xyz", poses[:, 3:6])
    reached, angles = stored[0], []
    for delta, pose in zip(deltas[:-1, 3:6], stored[1:], strict=True):
        reached = Rotation.from_euler("xyz", delta) * reached
        angles.append((reached.inv() * pose).magnitude())
    return distance, np.array(angles)


@pytest.mark.parametrize("name", NAMES)
def test_the_sum_of_the_deltas_of_an_episode_is_its_last_pose(name: str) -> None:
    deltas, poses = column(name, "action_eef_delta"), column(name, "state_eef")
    available = np.isfinite(deltas[0, 1, :3]) & np.isfinite(poses[0, 1, :3])
    assert available[:2].all()
    # Two datasets move in a plane.
    deltas[..., :3][..., ~available] = poses[..., :3][..., ~available] = 0
    for item, pose in zip(deltas, poses, strict=True):
        assert np.abs(np.diff(pose[:, :3], axis=0)).sum() > 0.1
        distance, angle = drift(item, pose)
        assert distance.max() < 1e-5
        assert not (angle > 1e-3).any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("space", ["action_eef_delta", "state_eef"])
def test_a_gripper_goes_from_0_to_1(name: str, space: DerivedName) -> None:
    values = column(name, space)[..., GRIPPER]
    if np.isnan(values).all():
        pytest.skip("no gripper")
    assert (np.nanmin(values), np.nanmax(values)) == (0, 1)


@pytest.mark.parametrize("name", NAMES)
def test_the_gripper_of_the_action_opens_where_that_of_the_state_does(name: str) -> None:
    action, state = (column(name, space)[..., GRIPPER] for space in ("action_eef_delta", "state_eef"))
    present = np.isfinite(action) & np.isfinite(state)
    if not present.any():
        pytest.skip("no gripper in one of the two")
    assert np.corrcoef(action[present], state[present])[0, 1] > 0.4


def test_real_episodes_of_bridge_come_back_to_their_poses(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--source", str(shared_data), "--output", str(tmp_path), "--image-size", "16", "--num-workers", "1"]
    assert convert(["--datasets", "bridge_dataset", *arguments]) == 0, capsys.readouterr().err
    path = tmp_path / "bridge_dataset" / "1.0.0" / "train" / "steps.arrow"
    table = pa.ipc.open_file(path).read_all()
    lasts: dict[str, list[tuple[float, float]]] = {"action_eef_delta": [], "action_": []}
    for episode in range(25):
        rows = table.filter(pa.compute.equal(table["episode"], episode))
        poses = np.array(rows["state_eef"].to_pylist())
        for name, actual in lasts.items():
            distance, angle = drift(np.array(rows[name].to_pylist())[:, :7], poses)
            actual.append((distance[-1], angle[-1]))
        assert ((poses[:, GRIPPER] >= 0) & (poses[:, GRIPPER] <= 1)).all()
    reached, commanded = (np.median(np.array(actual), axis=0) for actual in lasts.values())
    assert reached[0] < 1e-6 and reached[1] < 1e-5
    # Commands are in the same units and about the same axes; the arm does not reach all of them.
    assert commanded[0] < 0.05 and commanded[1] < 0.2
