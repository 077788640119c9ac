"""Samples of UMI's ``UmiDataset``: poses in the frame of the tool, steps apart, complete chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Loader, Vector, make_loader
from stream.adapters import umi
from stream.sample.rotations import Stored, to_matrix
from tests.fixtures.arrays import written as files
from tests.fixtures.arrays.converted import convert
from tests.stream.adapters.raw import Raw, changed, keep_units, places, statistics_of

POSE: dict[str, Any] = {"space": "eef", "on_unknown_units": "keep"}
STRIDE, HORIZON = 2, 4
LAST = STRIDE * (HORIZON - 1)


def open_umi(root: Path, mixture: str = "bridge", *, batch_size: int = 16, **options: Any) -> Loader:
    sample = umi.sample(**{"action_horizon": HORIZON, "down_sample_steps": STRIDE, "image_size": (64, 64), **options})
    return make_loader(root, mixture, batch_size=batch_size, shuffle="none", **keep_units(sample))


def matrix(pose: np.ndarray, form: Stored) -> np.ndarray:
    transform = np.eye(4)
    transform[:3, :3], transform[:3, 3] = to_matrix(pose[3:6], form), pose[:3]
    return transform


def ten_numbers(base: np.ndarray, pose: np.ndarray, form: Stored = "euler_xyz") -> np.ndarray:
    """Return a pose in the frame of a base, as position, two rows and gripper."""
    relative = np.linalg.inv(matrix(base, form)) @ matrix(pose, form)
    return np.concatenate([relative[:3, 3], relative[0, :3], relative[1, :3], pose[6:]])


def expected_steps(episode: int, step: int) -> tuple[list[int], list[int], list[int]]:
    """Return the steps of the actions, of the poses and of the images of a sample."""
    before = [max(step - STRIDE, 0), step]
    return [step + STRIDE * number for number in range(HORIZON)], before, [before[0] if step >= STRIDE else step, step]


def test_chunks_and_observations_are_poses_in_the_frame_of_the_tool(frames_root: Path) -> None:
    loader, raw = open_umi(frames_root), Raw(frames_root, "bridge", action=POSE, state=Vector(**POSE))
    batch, starts = loader.batch_at(0), 0
    observation = batch["obs"]
    assert list(observation) == [
        *("camera0_rgb", "robot0_eef_pos", "robot0_eef_rot_axis_angle", "robot0_gripper_width"),
    ]
    assert (observation["camera0_rgb"].shape, batch["action"].shape) == ((16, 2, 3, 64, 64), (16, HORIZON, 10))
    for row, (episode, step) in enumerate(places(loader)):
        actions, poses, images = expected_steps(episode, step)
        starts += images[0] != poses[0]
        base = raw.value("state", episode, step)
        chunk = [ten_numbers(base, raw.action(episode, action_step)) for action_step in actions]
        np.testing.assert_allclose(batch["action"][row], chunk, atol=1e-6)
        seen = np.array([ten_numbers(base, raw.value("state", episode, pose_step)) for pose_step in poses])
        np.testing.assert_allclose(observation["robot0_eef_pos"][row], seen[:, :3], atol=1e-6)
        np.testing.assert_allclose(observation["robot0_eef_rot_axis_angle"][row], seen[:, 3:9], atol=1e-6)
        np.testing.assert_array_equal(observation["robot0_gripper_width"][row], seen[:, 9:].astype(np.float32))
        for position, image_step in enumerate(images):
            frame = raw.value("frames/primary", episode, image_step)[0].transpose(2, 0, 1)
            np.testing.assert_allclose(observation["camera0_rgb"][row, position], frame / 255, atol=1e-6)
    assert starts  # UMI repeats the image of t there, and the pose of step 0


def test_chunks_are_complete(frames_root: Path) -> None:
    loader, raw = open_umi(frames_root), Raw(frames_root, "bridge", action=POSE, state=Vector(**POSE))
    assert sum(loader.sizes.values()) == sum(max(0, length - LAST) for length in raw.length.values())


def test_ranges_are_those_of_the_steps_of_all_samples(frames_root: Path) -> None:
    plain, scaled = (open_umi(frames_root, normalize=normalize) for normalize in (False, True))
    batches = [plain.batch_at(step) for step in range(sum(plain.sizes.values()) // 16)]
    leftover = sum(plain.sizes.values()) % 16
    batches.append({"action": plain.batch_at(len(batches))["action"][:leftover]})
    actions = np.concatenate([batch["action"] for batch in batches]).reshape(-1, 10)
    numbers = statistics_of(scaled)["action"]["bridge"]
    for name in ("min", "max", "mean", "std"):
        expected = getattr(actions.astype(np.float64), name)(axis=0)
        np.testing.assert_allclose(getattr(numbers, name), expected, atol=1e-6)
    for name, share in (("q01", 0.01), ("q99", 0.99)):
        np.testing.assert_allclose(getattr(numbers, name), np.quantile(actions, share, axis=0), atol=1e-6)
    batch, raw_batch = scaled.batch_at(1), plain.batch_at(1)
    low, high = actions.min(axis=0), actions.max(axis=0)
    expected = (raw_batch["action"] - low) * 2 / (high - low) - 1
    expected[..., 3:9] = raw_batch["action"][..., 3:9]
    np.testing.assert_allclose(batch["action"], expected, atol=1e-5)
    for key in ("eef_rot_axis_angle", "eef_pos"):
        is_same = np.array_equal(batch["obs"][f"robot0_{key}"], raw_batch["obs"][f"robot0_{key}"])
        assert is_same == (key == "eef_rot_axis_angle")


def test_a_prediction_becomes_poses_for_the_robot(frames_root: Path) -> None:
    loader = open_umi(frames_root, normalize=True)
    raw = Raw(frames_root, "bridge", action=POSE, state=Vector(**POSE))
    normalize: Any = loader.normalize
    batch = loader.batch_at(1)
    for row, (episode, step) in enumerate(places(loader, 1)):
        state = raw.value("state", episode, step)
        commands = normalize.denormalize(batch["action"][row], dataset="bridge", state=state)
        expected = np.array([raw.action(episode, action) for action in expected_steps(episode, step)[0]])
        np.testing.assert_allclose(commands[:, [0, 1, 2, 6]], expected[:, [0, 1, 2, 6]], atol=1e-5)
        turns = [to_matrix(values[:, 3:6], "euler_xyz") for values in (commands, expected)]
        np.testing.assert_allclose(turns[0], turns[1], atol=1e-5)


def test_umi_s_own_data_give_the_poses_and_widths_of_later_steps(tmp_path: Path) -> None:
    lengths = (12, 15)
    written = files.write_umi(tmp_path / "cup.zarr.zip", lengths=lengths)
    assert convert(f"umi:{tmp_path / 'cup.zarr.zip'}", tmp_path / "root") == 0
    sample = umi.sample(action_horizon=HORIZON, down_sample_steps=STRIDE, num_robots=1)
    loader = make_loader(tmp_path / "root", "cup", batch_size=8, shuffle="none", **sample)
    assert sum(loader.sizes.values()) == sum(length - LAST for length in lengths)
    keys = ("robot0_eef_pos", "robot0_eef_rot_axis_angle", "robot0_gripper_width")
    batch = loader.batch_at(1)
    seen = np.concatenate([batch["obs"][key] for key in keys], axis=-1)
    for row, (episode, step) in enumerate(places(loader, 1)):
        poses = np.concatenate([written[episode].numbers[key] for key in keys], axis=-1)
        actions, observed, _ = expected_steps(episode, step)
        for values, steps in ((batch["action"][row], actions), (seen[row], observed)):
            expected = [ten_numbers(poses[step], poses[number], "rotvec") for number in steps]
            np.testing.assert_allclose(values, expected, atol=1e-5)


def test_two_arms_have_their_own_base_and_their_pose_in_the_frame_of_each_other(tmp_path: Path) -> None:
    written = files.write_umi(tmp_path / "cloth.zarr.zip", lengths=(12, 15), robots=2)
    assert convert(f"umi:{tmp_path / 'cloth.zarr.zip'}", tmp_path / "root") == 0
    sample = umi.sample(action_horizon=HORIZON, down_sample_steps=STRIDE, num_robots=2)
    loader = make_loader(tmp_path / "root", "cloth", batch_size=8, shuffle="none", **sample)
    batch = loader.batch_at(1)
    assert batch["action"].shape == (8, HORIZON, 20)
    keys = ("eef_pos", "eef_rot_axis_angle", "gripper_width")
    for row, (episode, step) in enumerate(places(loader, 1)):
        actions, observed, _ = expected_steps(episode, step)
        poses = [
            np.concatenate([written[episode].numbers[f"robot{robot}_{key}"] for key in keys], axis=-1)
            for robot in range(2)
        ]
        for robot, other in ((0, 1), (1, 0)):
            chunk = [ten_numbers(poses[robot][step], poses[robot][number], "rotvec") for number in actions]
            np.testing.assert_allclose(batch["action"][row, :, 10 * robot : 10 * robot + 10], chunk, atol=1e-5)
            seen = np.array([ten_numbers(poses[other][step], poses[robot][number], "rotvec") for number in observed])
            observation = {key: values[row] for key, values in batch["obs"].items()}
            np.testing.assert_allclose(observation[f"robot{robot}_eef_pos_wrt{other}"], seen[:, :3], atol=1e-5)
            rotation = observation[f"robot{robot}_eef_rot_axis_angle_wrt{other}"]
            np.testing.assert_allclose(rotation, seen[:, 3:9], atol=1e-5)


def test_one_observation_without_history(oxe_root: Path, frames_root: Path) -> None:
    options: dict[str, Any] = {"low_dim_obs_horizon": 1, "img_obs_horizon": 1, "normalize": True}
    batches = [open_umi(root, **options).batch_at(0) for root in (oxe_root, frames_root)]
    for batch in batches:
        assert batch["obs"]["camera0_rgb"].shape == (16, 1, 3, 64, 64)
        assert not batch["obs"]["robot0_eef_pos"].any()


def test_what_does_not_fit_is_an_error(frames_root: Path) -> None:
    with pytest.raises(ArgumentError, match="preset='dp'; expected one of umi"):
        umi.sample("dp")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="down_sample_steps=0"):
        umi.sample(down_sample_steps=0)
    axis_angle = changed(umi.sample(action_horizon=2), action={"rotation": "rotvec"})
    with pytest.raises(ArgumentError, match=r"action of bridge is x, y, z, .*; UMI takes 10 numbers of each robot"):
        make_loader(frames_root, "bridge", batch_size=4, **keep_units(axis_angle))
