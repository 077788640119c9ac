"""Octo's batches against a slow reading of its ``chunk_act_obs``, goal relabelling and masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import Loader, make_loader
from stream.adapters import octo
from tests.stream.adapters.raw import Raw, keep_units, places, statistics_of

OXE: dict[str, Any] = {"action": {"space": "oxe"}}


def open_octo(root: Path, mixture: str = "viola", *, shuffle: str = "none", **options: Any) -> Loader:
    sample = keep_units(octo.sample(**{"normalize": False, **options}))
    return make_loader(root, mixture, batch_size=40, shuffle=shuffle, **sample)


@pytest.mark.parametrize(("width", "ahead"), [(1, 1), (2, 4), (3, 5)])
def test_chunks_masks_and_histories_without_goals(frames_root: Path, width: int, ahead: int) -> None:
    loader = open_octo(frames_root, window_size=width, action_horizon=ahead, goals=False)
    raw, batch = Raw(frames_root, "viola", **OXE), loader.batch_at(0)
    seen = batch["observation"]
    assert sorted(places(loader)) == sorted(raw.rows)
    for row, (episode, t) in enumerate(places(loader)):
        goal = raw.length[episode] - 1
        for w in range(width):
            observed_step = t - width + 1 + w
            step = max(observed_step, 0)
            assert (seen["timestep"][row, w], seen["timestep_pad_mask"][row, w]) == (step, observed_step >= 0)
            for h in range(ahead):
                np.testing.assert_array_equal(batch["action"][row, w, h], raw.action(episode, min(step + h, goal)))
                done = goal - (t - (width + 1) + w + h) <= 0
                assert seen["task_completed"][row, w, h] == done
                assert (batch["action_pad_mask"][row, w, h] == (not done)).all()


def test_a_row_keeps_its_goal_image_or_its_instruction(frames_root: Path) -> None:
    loader = open_octo(frames_root, sizes={"primary": (64, 64)})
    raw, batch = Raw(frames_root, "viola", **OXE), loader.batch_at(0)
    task, masks, kept = batch["task"], batch["task"]["pad_mask_dict"], 0
    for row, (episode, t) in enumerate(places(loader)):
        last, goal = raw.length[episode] - 1, int(task["timestep"][row])
        if masks["image_primary"][row]:
            kept += 1
            assert (task["language_instruction"][row], masks["language_instruction"][row]) == (b"", False)
            assert min(t + 1, last) <= goal <= last
            np.testing.assert_array_equal(task["image_primary"][row], raw.value("frames/primary", episode, goal)[0])
        else:
            text = raw.batch["language"][raw.rows[episode, t]]
            assert task["language_instruction"][row] == text.encode() and masks["language_instruction"][row]
            assert not task["image_primary"][row].any() and goal == last
        steps = t - 1 + np.arange(2)[:, None] + np.arange(4)
        np.testing.assert_array_equal(batch["observation"]["task_completed"][row], steps - 2 >= goal)
    assert 10 < kept < 30


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_the_probability_of_goal_images(frames_root: Path, probability: float) -> None:
    masks = open_octo(frames_root, "droid", keep_image_prob=probability).batch_at(0)["task"]["pad_mask_dict"]
    texts = np.array([ref.language != "" for ref in open_octo(frames_root, "droid").describe(0)])
    assert not texts.all()
    assert masks["image_primary"].tolist() == [probability == 1 or not text for text in texts]
    assert masks["language_instruction"].tolist() == [probability == 0 and bool(text) for text in texts]


def test_a_camera_that_a_dataset_lacks_is_padding(frames_root: Path) -> None:
    loader = open_octo(frames_root, "bridge,viola", shuffle="global")
    batch = loader.batch_at(0)
    has_wrist = np.array([ref.dataset == "viola" for ref in loader.describe(0)])
    mask = batch["observation"]["pad_mask_dict"]["image_wrist"]
    np.testing.assert_array_equal(mask, np.repeat(has_wrist[:, None], 2, axis=1))
    np.testing.assert_array_equal(batch["observation"]["image_wrist"].any(axis=(2, 3, 4)), mask)
    assert batch["observation"]["image_wrist"].shape == (40, 2, 128, 128, 3)
    assert set(batch["dataset_name"]) == {b"bridge", b"viola"}


def test_actions_have_mean_0_and_deviation_1_and_the_gripper_stays(frames_root: Path) -> None:
    plain, scaled = (open_octo(frames_root, normalize=normalize).batch_at(0)["action"] for normalize in (False, True))
    numbers = statistics_of(open_octo(frames_root, normalize=True))["action"]["viola"]
    expected = (plain - numbers.mean) / numbers.std
    np.testing.assert_allclose(scaled[..., :6], expected[..., :6], atol=1e-4)
    np.testing.assert_array_equal(scaled[..., 6], plain[..., 6])


@pytest.mark.parametrize(("width", "ahead"), [(1, 1), (2, 4), (3, 5)])
def test_steps_without_an_action_are_no_part_of_the_episode(frames_root: Path, width: int, ahead: int) -> None:
    arguments: dict[str, Any] = {"window_size": width, "action_horizon": ahead, "sizes": {"primary": (64, 64)}}
    loader = open_octo(frames_root, "bridge", proprio=True, **arguments)
    raw = Raw(
        frames_root,
        "bridge",
        action={"space": "oxe", "on_unknown_units": "keep"},
        state={"space": "eef", "on_unknown_units": "keep"},
    )
    batch = loader.batch_at(0)
    seen, cut = batch["observation"], 0
    for row, (episode, t) in enumerate(places(loader)):
        last = raw.length[episode] - 2
        for w, observed_step in enumerate(range(t - width + 1, t + 1)):
            step = max(observed_step, 1)
            cut += observed_step == 0
            assert (seen["timestep"][row, w], seen["timestep_pad_mask"][row, w]) == (step - 1, observed_step >= 1)
            frame = raw.value("frames/primary", episode, step)[0]
            np.testing.assert_array_equal(seen["image_primary"][row, w], frame)
            np.testing.assert_array_equal(seen["proprio"][row, w], raw.value("state", episode, step))
            chunk = [raw.action(episode, min(step + h, last)) for h in range(ahead)]
            np.testing.assert_array_equal(batch["action"][row, w], chunk)
    assert seen["pad_mask_dict"]["image_primary"].all() and bool(cut) == (width > 1)


def test_a_goal_is_never_a_step_without_an_action(frames_root: Path) -> None:
    loader = open_octo(frames_root, "bridge", keep_image_prob=1.0, sizes={"primary": (64, 64)})
    raw, goals_at_t = Raw(frames_root, "bridge", **OXE), 0
    for number in range(4):
        batch = loader.batch_at(number)
        task, masks = batch["task"], batch["task"]["pad_mask_dict"]
        assert masks["image_primary"].all()
        for row, (episode, t) in enumerate(places(loader, number)):
            goal, last = 1 + int(task["timestep"][row]), raw.length[episode] - 2
            assert t <= goal <= last
            goals_at_t += t == goal < last
            np.testing.assert_array_equal(task["image_primary"][row], raw.value("frames/primary", episode, goal)[0])
            steps = t - 1 + np.arange(2)[:, None] + np.arange(4)
            np.testing.assert_array_equal(batch["observation"]["task_completed"][row], steps - 2 >= goal)
    assert goals_at_t
