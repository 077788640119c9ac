"""LeRobot's batches: windows, padding and statistics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Loader, Vector, make_loader
from stream.adapters import lerobot
from stream.adapters.sample import NO_VECTOR
from tests.stream.adapters.raw import Raw, changed, places

WINDOWS = {"act": (None, range(100)), "diffusion": (range(-1, 1), range(-1, 15)), "smolvla": (range(0, 1), range(50))}
WINDOWS |= dict.fromkeys(("pi0", "pi05", "pi0_fast"), (None, range(50)))


def open_lerobot(root: Path, preset: lerobot.Policy = "act", **options: Any) -> Loader:
    return make_loader(root, "viola", batch_size=12, shuffle="none", **lerobot.sample(preset, **options))


@pytest.mark.parametrize("policy", WINDOWS)
def test_windows_repeat_the_edges_of_the_episode(frames_root: Path, policy: lerobot.Policy) -> None:
    loader = open_lerobot(frames_root, policy)
    raw, batch = Raw(frames_root, "viola"), loader.batch_at(0)
    seen, ahead = WINDOWS[policy]
    image, state = batch["observation.images.primary"], batch["observation.state"]
    for row, (episode, t) in enumerate(places(loader)):
        last = raw.length[episode] - 1
        steps = [min(max(t + distance, 0), last) for distance in ahead]
        np.testing.assert_array_equal(batch["action"][row], [raw.action(episode, step) for step in steps])
        assert batch["action_is_pad"][row].tolist() == [not 0 <= t + distance <= last for distance in ahead]
        for position, distance in enumerate(seen or [0]):
            step = min(max(t + distance, 0), last)
            index = (row, position) if seen else (row,)
            frame = raw.value("frames/primary", episode, step)[0]
            np.testing.assert_array_equal(image[index], frame.transpose(2, 0, 1).astype(np.float32) / np.float32(255))
            np.testing.assert_array_equal(state[index], raw.value("state", episode, step))
            if seen:
                assert batch["observation.state_is_pad"][row, position] == (t + distance < 0)
                assert batch["observation.images.primary_is_pad"][row, position] == (t + distance < 0)
    assert ("observation.state_is_pad" in batch) == (seen is not None)


def test_before_the_episode_is_padding_and_the_camera_is_there(frames_root: Path) -> None:
    batch = open_lerobot(frames_root, "smolvla", n_obs_steps=3, chunk_size=5).batch_at(0)
    at = batch["frame_index"]
    assert (at == 0).any()
    assert batch["observation.images.primary_padding_mask"].all()
    for key in ("observation.state_is_pad", "observation.images.primary_is_pad"):
        np.testing.assert_array_equal(batch[key], at[:, None] + np.arange(-2, 1) < 0)
    np.testing.assert_array_equal(batch["action_is_pad"][at == 0], [[True, True, False, False, False]] * sum(at == 0))


def test_diffusion_leaves_out_the_last_seven_steps(frames_root: Path) -> None:
    loader = open_lerobot(frames_root, "diffusion")
    raw = Raw(frames_root, "viola")
    assert set(places(loader)) == {(e, s) for e, s in raw.rows if s < raw.length[e] - 7}
    fewer = make_loader(frames_root, "viola", batch_size=4, **lerobot.sample("diffusion", drop_n_last_frames=8))
    assert sum(fewer.sizes.values()) == sum(s < raw.length[e] - 8 for e, s in raw.rows)
    assert sum(open_lerobot(frames_root).sizes.values()) == len(raw.rows)


def test_indices_time_and_task(frames_root: Path) -> None:
    loader = open_lerobot(frames_root)
    batch = loader.batch_at(0)
    assert list(zip(batch["episode_index"], batch["frame_index"], strict=True)) == places(loader)
    np.testing.assert_array_equal(batch["timestamp"], (batch["frame_index"] / 20).astype(np.float32))
    assert batch["task"] == [ref.language for ref in loader.describe(0)]


def test_cameras_take_the_names_of_the_policy(frames_root: Path) -> None:
    cameras = {"observation.images.top": "primary", "observation.images.hand": "wrist"}
    batch = open_lerobot(frames_root, cameras=cameras).batch_at(0)
    assert batch["observation.images.hand"].shape == (12, 3, 64, 64)
    assert batch["observation.images.hand_padding_mask"].all()


def test_a_camera_that_no_dataset_stores_is_an_error_or_masked(frames_root: Path) -> None:
    sample = lerobot.sample(cameras=["primary", "wrist"], image_size=(32, 48))
    with pytest.raises(ArgumentError, match="no dataset of the mixture stores 'wrist'"):
        make_loader(frames_root, "bridge", batch_size=4, **sample)
    masked = changed(sample, frames={"on_missing_camera": "mask"})
    batch = make_loader(frames_root, "bridge", batch_size=4, **masked).batch_at(0)
    assert batch["observation.images.wrist"].shape == (4, 3, 32, 48)
    assert not batch["observation.images.wrist"].any() and batch["observation.images.primary"].any()
    assert not batch["observation.images.wrist_padding_mask"].any()
    with pytest.raises(ArgumentError, match="on_missing_camera='mask' takes its size from size="):
        make_loader(frames_root, "bridge", batch_size=4, **changed(masked, frames={"size": None}))


def test_statistics_are_those_of_the_data(frames_root: Path) -> None:
    loader = open_lerobot(frames_root)
    stats = lerobot.dataset_stats(loader)
    raw = Raw(frames_root, "viola", split="train")
    assert set(stats) == {"action", "observation.state", "observation.images.primary"}
    np.testing.assert_allclose(stats["action"]["mean"], raw.batch["action"][:, 0].mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(stats["observation.state"]["max"], raw.batch["state"].max(axis=0), atol=1e-6)
    assert stats["observation.images.primary"]["std"].shape == (3, 1, 1)


def test_features_are_those_of_the_batch_and_of_the_statistics(frames_root: Path) -> None:
    cameras = {"observation.images.top": "primary", "observation.images.hand": "wrist"}
    for options in ({"cameras": cameras}, {"cameras": cameras, "image_size": (32, 48)}):
        loader = open_lerobot(frames_root, **options)
        inputs, outputs = lerobot.features(loader)
        batch, stats = loader.batch_at(0), lerobot.dataset_stats(loader)
        assert list(inputs) == ["observation.images.top", "observation.images.hand", "observation.state"]
        assert [feature["type"] for feature in inputs.values()] == ["VISUAL", "VISUAL", "STATE"]
        assert (list(outputs), outputs["action"]["type"]) == (["action"], "ACTION")
        for key, feature in inputs.items():
            assert batch[key].shape[1:] == feature["shape"]
        assert batch["action"].shape[2:] == stats["action"]["mean"].shape == outputs["action"]["shape"]
        assert stats["observation.state"]["mean"].shape == inputs["observation.state"]["shape"]
        assert stats.keys() == inputs.keys() | outputs.keys()
    for preset in ("diffusion", "smolvla"):
        assert lerobot.features(open_lerobot(frames_root, preset, cameras=cameras))[0]["observation.images.top"] == {
            "type": "VISUAL",
            "shape": (3, 64, 64),
        }


def test_without_a_state_there_is_no_feature_of_it(frames_root: Path) -> None:
    loader = make_loader(frames_root, "viola", batch_size=4, **replace(lerobot.sample(), state=NO_VECTOR))
    assert list(lerobot.features(loader)[0]) == ["observation.images.primary"]
    assert not [key for key in loader.batch_at(0) if "state" in key]


JOINT: dict[str, Any] = {"space": "joint", "on_unknown_units": "keep"}


def open_joints(root: Path, **options: Any) -> Loader:
    sample = changed(lerobot.sample("pi0", chunk_size=6, **options), action=JOINT, state=JOINT)
    return make_loader(root, "droid", batch_size=12, shuffle="none", **sample)


@pytest.mark.parametrize("excluded", [["gripper"], ["Joint_7", "GRIP"], []])
def test_statistics_of_relative_actions_are_those_of_complete_chunks(frames_root: Path, excluded: list[str]) -> None:
    """As LeRobot's ``compute_relative_action_stats``; batches stay absolute for its preprocessor."""
    loader = open_joints(frames_root, use_relative_actions=True, relative_exclude_joints=excluded)
    absolute = open_joints(frames_root)
    np.testing.assert_array_equal(loader.batch_at(0)["action"], absolute.batch_at(0)["action"])
    raw = Raw(frames_root, "droid", action=JOINT, state=Vector(**JOINT))
    names = lerobot.action_feature_names(loader)
    is_relative = [not any(text.lower() in name.lower() for text in excluded) for name in names]
    chunks = [
        [raw.action(episode, step + ahead) - raw.value("state", episode, step) * is_relative for ahead in range(6)]
        for episode, step in raw.rows
        if step + 6 <= raw.length[episode]
    ]
    values = np.array(chunks, np.float64).reshape(-1, 8)
    stats, plain = lerobot.dataset_stats(loader), lerobot.dataset_stats(absolute)
    for name, expected in (
        *(("mean", values.mean(axis=0)), ("std", values.std(axis=0)), ("min", values.min(axis=0))),
        *(("max", values.max(axis=0)), ("q01", np.quantile(values, 0.01, axis=0))),
        ("q99", np.quantile(values, 0.99, axis=0)),
    ):
        np.testing.assert_allclose(stats["action"][name], expected, atol=1e-5, err_msg=name)
    np.testing.assert_array_equal(stats["observation.state"]["mean"], plain["observation.state"]["mean"])
    assert (np.abs(stats["action"]["mean"] - plain["action"]["mean"])[is_relative] > 1e-3).all()


def test_names_of_the_action_say_which_dimensions_stay_absolute(frames_root: Path) -> None:
    names = lerobot.action_feature_names(
        open_lerobot(frames_root, "pi0", use_relative_actions=True, relative_exclude_joints=["axis_angle"])
    )
    assert names[3] == "rx ee_rotation_axis_angle" and names[0] == "x"


def test_what_cannot_be_relative_is_an_error(frames_root: Path) -> None:
    loader = open_lerobot(frames_root, "pi0", use_relative_actions=True)
    with pytest.raises(ArgumentError, match="dataset viola: action: x is a displacement, so it is relative already"):
        lerobot.dataset_stats(loader)
    with pytest.raises(ArgumentError, match="use_relative_actions with n_obs_steps=2: LeRobot subtracts the state of"):
        lerobot.sample("diffusion", use_relative_actions=True)
    with pytest.raises(ArgumentError, match="relative_exclude_joints='gripper'; expected a list of texts"):
        lerobot.sample("pi0", relative_exclude_joints="gripper")


def test_an_unknown_policy_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="preset='act2'; expected one of act, diffusion, smolvla, pi0, pi05"):
        lerobot.sample("act2")  # type: ignore[arg-type]
