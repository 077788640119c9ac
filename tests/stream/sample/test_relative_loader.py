"""Loaders of relative chunks: batches, exact statistics of what they hold, and the way back to commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stream
from stream import ArgumentError, Normalize, Vector, load_normalize, make_loader
from stream.sample.rotations import from_matrix, to_matrix

LENGTH = 5
ARGUMENTS: dict[str, Any] = {"batch_size": 16, "frames": [0], "seed": 3}
KEEP: dict[str, Any] = {"on_unknown_units": "keep"}
JOINT = {"space": "joint", **KEEP}
POSES: dict[str, Any] = {"space": "eef", **KEEP, "relative_to": "state", "poses": "body", "rotation": "rot6d_rows"}
EEF = Vector(space="eef", on_unknown_units="keep")


def open_joints(root: Path, **options: Any) -> stream.Loader:
    vector = Vector(LENGTH, **{**JOINT, "relative_to": "state", **options.pop("action", {})})
    return make_loader(root, "droid", action=vector, state=Vector(**JOINT), **{**ARGUMENTS, **options})


def open_poses(root: Path, **options: Any) -> stream.Loader:
    vector = Vector(LENGTH, **{**POSES, **options.pop("action", {})})
    return make_loader(root, "bridge", action=vector, **{"state": EEF, **ARGUMENTS, **options})


def test_joints_are_relative_to_the_state_of_their_sample(frames_root: Path) -> None:
    plain = make_loader(frames_root, "droid", action=Vector(LENGTH, **JOINT), state=Vector(**JOINT), **ARGUMENTS)
    loader = open_joints(frames_root)
    for step in range(3):
        batch, absolute = loader.batch_at(step), plain.batch_at(step)
        expected = absolute["action"].copy()
        expected[..., :7] -= absolute["state"][:, None, :7]
        np.testing.assert_array_equal(batch["action"], np.where(absolute["action_mask"], expected, 0))
        np.testing.assert_array_equal(batch["action_mask"], absolute["action_mask"])
        np.testing.assert_array_equal(batch["state"], absolute["state"])
    without_state = make_loader(
        frames_root, "droid", action=Vector(LENGTH, **JOINT, relative_to="state"), state=None, **ARGUMENTS
    )
    assert without_state.batch_at(0)["action"].shape == batch["action"].shape


def test_poses_are_in_the_frame_of_the_tool(frames_root: Path) -> None:
    plain = make_loader(
        frames_root, "bridge", action=Vector(LENGTH, space="eef", **KEEP), state=EEF, **ARGUMENTS
    ).batch_at(1)
    loader = open_poses(frames_root)
    batch = loader.batch_at(1)
    assert loader.action_names["bridge"] == ("x", "y", "z", "r00", "r01", "r02", "r10", "r11", "r12", "gripper")
    turn = to_matrix(plain["state"][:, 3:6], "euler_xyz")
    for row, step in np.argwhere(plain["action_mask"].all(axis=2)).tolist():
        action = plain["action"][row, step]
        position = turn[row].T @ (action[:3] - plain["state"][row, :3])
        rotation = from_matrix(turn[row].T @ to_matrix(action[3:6], "euler_xyz"), "rot6d_rows")
        np.testing.assert_allclose(batch["action"][row, step], [*position, *rotation, action[6]], atol=1e-6)
    np.testing.assert_array_equal(batch["action_mask"][..., 0], plain["action_mask"][..., 0])


def test_a_state_of_several_steps_is_relative_too(frames_root: Path) -> None:
    loader = open_poses(frames_root, state=Vector(2, start=-1, **POSES))
    batch = loader.batch_at(0)
    assert batch["state"].shape == (16, 2, 10)
    np.testing.assert_allclose(batch["state"][:, 1, :9], [[0, 0, 0, 1, 0, 0, 0, 1, 0]] * 16, atol=1e-6)
    assert not batch["state"][~batch["state_mask"]].any()


@pytest.mark.parametrize("open_loader", [open_joints, open_poses])
@pytest.mark.parametrize("tails", ["real", "complete", "repeat"])
@pytest.mark.parametrize("per_step", [False, True])
def test_statistics_are_those_of_the_chunks(open_loader: Any, tails: Any, per_step: bool, frames_root: Path) -> None:
    loader = open_loader(frames_root, action={"per_step": per_step}, num_epochs=1, split="train", shuffle="none")
    rows, masks = [], []
    lengths = {ref.episode: 0 for step in range(loader.num_steps or 0) for ref in loader.describe(step)}
    for step in range(loader.num_steps or 0):
        batch = loader.batch_at(step)
        rows.append(batch["action"])
        masks.append(batch["action_mask"])
        for episode, t in zip(batch["episode"].tolist(), batch["step"].tolist(), strict=True):
            lengths[episode] = max(lengths[episode], t + 1)
    values, mask = np.concatenate(rows), np.concatenate(masks)
    places = [place for step in range(loader.num_steps or 0) for place in loader.describe(step)]
    left = np.array([lengths[ref.episode] - ref.step for ref in places])
    if tails == "complete":
        mask = mask & (left >= LENGTH)[:, None, None]
    elif tails == "repeat":
        last = np.minimum(np.arange(LENGTH), left[:, None] - 1)
        values, mask = (np.take_along_axis(array, last[..., None], axis=1) for array in (values, mask))
    statistics = Normalize(loader, tails=tails, keys=["action"]).statistics["action"][loader.dataset_names[0]]
    assert statistics.mean.shape == ((LENGTH, values.shape[2]) if per_step else (values.shape[2],))
    for index in np.ndindex(statistics.mean.shape):
        cell = (slice(None), *index) if per_step else (slice(None), slice(None), *index)
        numbers = values[cell][mask[cell]].astype(np.float64)
        expected = {"mean": numbers.mean(), "std": numbers.std(), "min": numbers.min(), "max": numbers.max()}
        expected |= {"q01": np.quantile(numbers, 0.01), "q99": np.quantile(numbers, 0.99)}
        for name, number in expected.items():
            assert getattr(statistics, name)[index] == pytest.approx(number, rel=1e-6, abs=1e-9), (name, index)


@pytest.mark.parametrize("open_loader", [open_joints, open_poses])
@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("relative_to", ["state", "previous"])
def test_a_robot_gets_the_commands_back(
    open_loader: Any, per_step: bool, relative_to: str, frames_root: Path, tmp_path: Path
) -> None:
    action = {"per_step": per_step, "relative_to": relative_to}
    normalize = {"method": "mean_std", "keys": ["action"]}
    loader = open_loader(frames_root, action=action, normalize=normalize)
    plain = make_loader(
        frames_root,
        loader.dataset_names[0],
        action=Vector(LENGTH, space=loader.spec.action.space, **KEEP),
        state=loader.spec.state,
        **ARGUMENTS,
    )
    assert loader.normalize is not None
    loader.normalize.save(tmp_path / "normalize.json")
    on_robot = load_normalize(tmp_path / "normalize.json")
    batch, expected = loader.batch_at(2), plain.batch_at(2)
    for row in np.flatnonzero(expected["action_mask"].all(axis=(1, 2))).tolist():
        for normalizer in (loader.normalize, on_robot):
            commands = normalizer.denormalize(
                batch["action"][row], state=expected["state"][row], dataset=loader.dataset_names[0]
            )
            np.testing.assert_allclose(commands, expected["action"][row], atol=2e-5)
    with pytest.raises(ArgumentError, match="need the state of the observation"):
        on_robot.denormalize(batch["action"][0], dataset=loader.dataset_names[0])


def test_a_file_of_other_chunks_is_refused(frames_root: Path, tmp_path: Path) -> None:
    normalize = Normalize(open_joints(frames_root), keys=["action"])
    normalize.save(tmp_path / "normalize.json")
    for other in ({"relative_to": None}, {"relative_to": "first"}, {"absolute": ["joint_7"]}):
        with pytest.raises(ArgumentError, match="the statistics belong to other data"):
            load_normalize(tmp_path / "normalize.json", open_joints(frames_root, action=other))
    longer = make_loader(
        frames_root, "droid", action=Vector(8, **JOINT, relative_to="state"), state=Vector(**JOINT), **ARGUMENTS
    )
    with pytest.raises(ArgumentError, match="the statistics belong to other data: steps"):
        load_normalize(tmp_path / "normalize.json", longer)


def test_workers_ranks_and_a_saved_loader_give_the_same_batches(frames_root: Path, tmp_path: Path) -> None:
    loader = open_poses(frames_root, normalize="q01_q99")
    loader.save(tmp_path / "loader.json")
    expected = [stream.digest(loader.batch_at(step)) for step in range(3)]
    assert [stream.digest(stream.load_loader(tmp_path / "loader.json").batch_at(step)) for step in range(3)] == expected
    with_workers = open_poses(frames_root, normalize="q01_q99", num_workers=2, num_steps=3)
    assert [stream.digest(batch) for batch in with_workers] == expected
    halves = [loader.with_ranks(rank, 2).batch_at(1)["action"] for rank in range(2)]
    np.testing.assert_array_equal(np.concatenate(halves), loader.batch_at(1)["action"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"poses": "body"}, "poses='body' without relative_to; add relative_to='state'"),
        ({"relative_to": "now"}, "relative_to='now'; expected one of None, 'state', 'first', 'previous'"),
        ({"relative_to": "state", "rotation": "rotvec"}, "rotation='rotvec' with poses='componentwise'"),
        ({"relative_to": "state", "space": "oxe"}, "whose actions are displacements already"),
        ({"relative_to": "state", "reduce": "mean"}, "cannot be combined with reduce and between"),
        ({"rotation": "euler"}, "rotation='euler'; expected one of None, 'euler_xyz'"),
        ({"absolute": "gripper"}, "absolute='gripper'; expected a list of names or quantities"),
        ({"relative_to": "state"}, "dataset bridge: action: x is a displacement, so it is relative already"),
    ],
)
def test_what_cannot_be_relative_is_one_sentence(frames_root: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_loader(
            frames_root, "bridge", action={"steps": 4, **fields} if "reduce" not in fields else fields, **ARGUMENTS
        )


def test_statistics_of_absolute_actions_do_not_bind_to_relative_ones(frames_root: Path) -> None:
    absolute = Normalize(open_joints(frames_root, action={"relative_to": None}))
    for relative_to in ("state", "first", "previous"):
        with pytest.raises(
            ArgumentError, match=r"the statistics belong to other data: (columns|conversion) of the action"
        ):
            open_joints(frames_root, action={"relative_to": relative_to}, normalize=absolute)
