"""OpenVLA's and OpenVLA-OFT's batches: prompt, bins, normalisation, complete chunks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stream import Loader, digest, make_loader
from stream.adapters import openvla
from tests.stream.adapters.raw import Raw, changed, keep_units, places, statistics_of

OXE: dict[str, Any] = {"action": {"space": "oxe"}}


def open_openvla(
    root: Path, mixture: str = "bridge", *, batch_size: int = 16, shuffle: str = "none", **options: Any
) -> Loader:
    return make_loader(root, mixture, batch_size=batch_size, shuffle=shuffle, **openvla.sample(**options))


def test_keys_types_and_shapes(frames_root: Path) -> None:
    batch = open_openvla(frames_root).batch_at(0)
    arrays = {key: (value.shape, value.dtype.name) for key, value in batch.items() if isinstance(value, np.ndarray)}
    assert arrays == {
        "image": ((16, 224, 224, 3), "uint8"),
        "actions": ((16, 1, 7), "float32"),
        "action_bins": ((16, 1, 7), "int64"),
    }
    sample = keep_units(openvla.sample("openvla_oft", num_actions_chunk=4))
    oft = make_loader(frames_root, "bridge,viola", batch_size=16, shuffle="none", **sample).batch_at(0)
    assert (oft["actions"].shape, oft["proprio"].shape) == ((16, 4, 7), (16, 7))
    assert oft["image_wrist"].shape == (16, 224, 224, 3)
    assert set(oft["dataset_names"]) == {"bridge", "viola"}


def test_the_preset_of_oft_has_its_defaults_of_libero(frames_root: Path) -> None:
    def load(**options: Any) -> Loader:
        return make_loader(frames_root, "viola", batch_size=8, **openvla.sample(**options))

    batch = load(preset="openvla_oft").batch_at(0)
    assert batch["actions"].shape == (8, 8, 7) and {"image_wrist", "proprio"} <= batch.keys()
    chosen = load(num_actions_chunk=8, wrist=True, proprio=True)
    assert digest(chosen.batch_at(0)) == digest(batch)
    plain = load(preset="openvla_oft", num_actions_chunk=1, wrist=False, proprio=False)
    assert digest(plain.batch_at(0)) == digest(load().batch_at(0))


def test_steps_that_openvla_drops_are_no_samples(frames_root: Path) -> None:
    loader = open_openvla(frames_root, batch_size=32)
    raw = Raw(frames_root, "bridge", **OXE)
    ends = {(episode, step) for episode, count in raw.length.items() for step in (0, count - 1)}
    steps, action = raw.index.steps, raw.index.steps.array("action_oxe")
    every = list(zip(steps.array("episode").tolist(), steps.array("step").tolist(), strict=True))
    assert {key for key, row in zip(every, action, strict=True) if np.isnan(row).all()} == ends
    assert set(places(loader)) == set(raw.rows) == set(every) - ends


def test_every_chunk_is_complete(frames_root: Path) -> None:
    loader = open_openvla(frames_root, num_actions_chunk=4, batch_size=20, normalize=False)
    raw = Raw(frames_root, "bridge", **OXE)
    batch = loader.batch_at(0)
    assert sum(loader.sizes.values()) == sum(count - 2 - 3 for count in raw.length.values()) == 20
    for row, (episode, step) in enumerate(places(loader)):
        expected = [raw.action(episode, step + ahead) for ahead in range(4)]
        np.testing.assert_array_equal(batch["actions"][row], expected)


def test_actions_are_scaled_by_quantiles_and_the_gripper_is_not(frames_root: Path) -> None:
    plain, scaled = (open_openvla(frames_root, normalize=value).batch_at(0)["actions"] for value in (False, True))
    numbers = statistics_of(open_openvla(frames_root))["action"]["bridge"]
    expected = (2 * (plain - numbers.q01) / (numbers.q99 - numbers.q01) - 1).clip(-1, 1)
    np.testing.assert_allclose(scaled[..., :6], expected[..., :6], atol=1e-5)
    np.testing.assert_array_equal(scaled[..., 6], plain[..., 6])
    assert np.abs(scaled).max() == 1


def test_dimensions_that_do_not_vary_are_zero(frames_root: Path) -> None:
    loader = open_openvla(frames_root, "language_table,roboturk", shuffle="global")
    statistics = statistics_of(loader)["action"]
    batch, num_constant = loader.batch_at(0), 0
    for row, ref in enumerate(loader.describe(0)):
        dims = statistics[ref.dataset].min == statistics[ref.dataset].max
        num_constant += int(dims.sum())
        assert not batch["actions"][row][:, dims].any()
    assert num_constant


def test_bins_are_those_of_the_action_tokenizer(frames_root: Path) -> None:
    batch = open_openvla(frames_root).batch_at(0)
    bins = batch["action_bins"]
    assert bins.min() >= 1 and bins.max() <= 256
    centres = (openvla.BINS[:-1] + openvla.BINS[1:]) / 2
    np.testing.assert_allclose(centres[(bins - 1).clip(0, 254)], batch["actions"], atol=1 / 255 + 1e-6)


class Beyond:
    """Actions of -3 and 3 by turns."""

    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "action": np.where(np.arange(batch["action"].shape[-1]) % 2, 3, -3) + 0 * batch["action"]}


def test_actions_beyond_the_bins_are_in_the_first_and_the_last(frames_root: Path) -> None:
    sample = openvla.sample(normalize=False)
    beyond = replace(sample, transforms=[Beyond(), *sample.transforms])
    batch = make_loader(frames_root, "bridge", batch_size=16, **beyond).batch_at(0)
    np.testing.assert_array_equal(batch["action_bins"], np.where(batch["actions"] < 0, 1, 256))


def test_prompt_and_examples(frames_root: Path) -> None:
    loader = open_openvla(frames_root, num_actions_chunk=2)
    batch = loader.batch_at(0)
    rows = openvla.examples(batch)
    for ref, prompt, row in zip(loader.describe(0), batch["prompt"], rows, strict=True):
        assert prompt == f"What action should the robot take to {ref.language.lower()}?"
        assert row["task"]["language_instruction"].decode() == ref.language.lower()
    np.testing.assert_array_equal(rows[3]["observation"]["image_primary"][0], batch["image"][3])
    np.testing.assert_array_equal(rows[3]["action"], batch["actions"][3])
    assert rows[3]["dataset_name"] == "bridge"


def test_samples_without_an_instruction_are_left_out(frames_root: Path) -> None:
    loader = open_openvla(frames_root, "droid")
    assert loader.describe()["droid"]["left_out"]["where"] > 0
    assert all(ref.language for step in range(4) for ref in loader.describe(step))
    every = changed(openvla.sample(), select={"where": None})
    assert make_loader(frames_root, "droid", batch_size=4, **every).sizes["droid"] > loader.sizes["droid"]
