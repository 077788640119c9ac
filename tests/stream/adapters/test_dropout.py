"""Dropout and delays in the batches of trainers: masks in the trainer's keys, or one error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Loader, make_loader
from stream.adapters import gr00t, lerobot, octo, openpi, openvla, umi
from stream.adapters.sample import TrainerSample
from tests.stream.adapters.raw import UNITS, changed, keep_units

DELAY = {"max_delay": 3}
SAMPLES: dict[str, TrainerSample] = {
    "openpi": openpi.sample(action_horizon=6),
    "openvla_oft": openvla.sample("openvla_oft"),
    "gr00t": gr00t.sample(action_horizon=6),
    "lerobot": lerobot.sample("pi0", chunk_size=6),
    "octo": octo.sample(window_size=1),
    "umi": umi.sample(action_horizon=4, down_sample_steps=2, low_dim_obs_horizon=1, img_obs_horizon=1),
}


def open_loader(root: Path, sample: TrainerSample, mixture: str = "viola") -> Loader:
    return make_loader(root, mixture, batch_size=64, **keep_units(sample))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_delay_passes_through(frames_root: Path, name: str) -> None:
    batch = open_loader(frames_root, changed(SAMPLES[name], action=DELAY)).batch_at(0)
    plain = open_loader(frames_root, SAMPLES[name]).batch_at(0)
    assert batch.keys() - plain.keys() == {"action_delay", "action_prefix_mask"}
    action = batch["actions"] if "actions" in batch else batch["action"]
    action = action["action"] if isinstance(action, dict) else action[:, 0] if name == "octo" else action
    prefix, delay = batch["action_prefix_mask"], batch["action_delay"]
    assert prefix.shape == action.shape[:2] and delay.dtype == np.int32
    np.testing.assert_array_equal(prefix, np.arange(prefix.shape[1]) < delay[:, None])
    # Of UMI too a delay counts steps of the chunk, which are every second step of the episode.
    assert set(delay.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("preset", ["pi0", "pi05"])
def test_a_dropped_state_of_openpi_is_0(frames_root: Path, preset: Any) -> None:
    sample = changed(openpi.sample(preset), **UNITS)
    plain, dropping = (
        open_loader(frames_root, changed(sample, state={"dropout": dropout})).batch_at(0) for dropout in (0.0, 0.5)
    )
    is_dropped = ~dropping["state"].any(axis=1)
    assert 20 < is_dropped.sum() < 44 and plain["state"].any(axis=1).all()
    np.testing.assert_array_equal(dropping["state"][~is_dropped], plain["state"][~is_dropped])
    np.testing.assert_array_equal(dropping["actions"], plain["actions"])


@pytest.mark.parametrize(
    "sample",
    [SAMPLES["gr00t"], SAMPLES["lerobot"], openpi.sample(normalize=False), SAMPLES["umi"]],
    ids=["gr00t", "lerobot", "openpi without normalisation", "umi without normalisation"],
)
def test_a_state_is_not_dropped_where_the_trainer_normalises(frames_root: Path, sample: TrainerSample) -> None:
    with pytest.raises(ArgumentError, match=r"dropout=0.5.*raw states.*normalize=True.*state_dropout_prob"):
        open_loader(frames_root, changed(sample, state={"dropout": 0.5}))


def test_octo_ignores_dropped_observations_and_states(frames_root: Path) -> None:
    sample = octo.sample(window_size=3, proprio=True, sizes={"primary": (64, 64)})
    plain, dropping = (
        open_loader(frames_root, changed(sample, **changes)).batch_at(0)
        for changes in ({}, {"frames": {"history_dropout": 0.5}, "state": {"dropout": 0.5}})
    )
    seen, expected = dropping["observation"], plain["observation"]
    mask, masks = seen["timestep_pad_mask"], seen["pad_mask_dict"]
    has_history = expected["timestep_pad_mask"][:, 1]
    is_dropped = has_history & ~mask[:, 1]
    assert 10 < is_dropped.sum() < has_history.sum() - 10
    assert not seen["image_primary"][is_dropped, :2].any() and not mask[is_dropped, :2].any()
    assert not masks["image_primary"][is_dropped, :2].any() and masks["image_primary"][:, 2].all()
    np.testing.assert_array_equal(mask[~is_dropped], expected["timestep_pad_mask"][~is_dropped])
    np.testing.assert_array_equal(seen["image_primary"][~is_dropped], expected["image_primary"][~is_dropped])
    np.testing.assert_array_equal(seen["image_primary"][:, 2], expected["image_primary"][:, 2])
    has_state = masks["proprio"].all(axis=1)
    assert 10 < has_state.sum() < 54 and (masks["proprio"].any(axis=1) == has_state).all()
    assert not seen["proprio"][~has_state].any()
    np.testing.assert_array_equal(seen["proprio"][has_state], expected["proprio"][has_state])
    np.testing.assert_array_equal(dropping["task"]["image_primary"], plain["task"]["image_primary"])


def test_dropped_images_are_padding_to_lerobot(frames_root: Path) -> None:
    sample = lerobot.sample("diffusion")
    plain, dropping = (
        open_loader(frames_root, replace(sample, frames=replace(sample.frames, history_dropout=dropout))).batch_at(0)
        for dropout in (0.0, 0.5)
    )
    key = "observation.images.primary"
    is_dropped = dropping[f"{key}_is_pad"] & ~plain[f"{key}_is_pad"]
    assert 15 < is_dropped[:, 0].sum() < 45 and not is_dropped[:, 1].any()
    assert not dropping[key][is_dropped].any()
    is_shown = ~dropping[f"{key}_is_pad"]
    np.testing.assert_array_equal(dropping[key][is_shown], plain[key][is_shown])
