"""openpi's batches: keys, images, tails, padding and normalisation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stream import ArgumentError, Frames, Loader, Select, Vector, make_loader
from stream.adapters import openpi
from tests.stream.adapters.raw import UNITS, Raw, changed, keep_units, places, statistics_of


def open_openpi(
    root: Path, mixture: str = "viola", *, units: Any = UNITS, shuffle: str = "none", **options: Any
) -> Loader:
    sample = keep_units(changed(openpi.sample(action_horizon=6, **options), **units))
    return make_loader(root, mixture, batch_size=32, shuffle=shuffle, **sample)


def test_keys_types_and_shapes_are_those_of_openpi(frames_root: Path) -> None:
    batch = open_openpi(frames_root).batch_at(0)
    assert list(batch) == ["image", "image_mask", "state", "actions", "prompt"]
    assert list(batch["image"]) == list(batch["image_mask"]) == ["base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"]
    for name, image in batch["image"].items():
        assert (image.shape, image.dtype.name) == ((32, 224, 224, 3), "uint8")
        mask = batch["image_mask"][name]
        assert (mask.dtype.name, mask.tolist()) == ("bool", [name != "right_wrist_0_rgb"] * 32)
    assert (batch["state"].shape, batch["state"].dtype) == ((32, 32), np.float32)
    assert (batch["actions"].shape, batch["actions"].dtype) == ((32, 6, 32), np.float32)
    assert all(isinstance(text, str) for text in batch["prompt"])


def test_a_chunk_repeats_the_last_action_of_the_episode_and_pads_with_zeros(frames_root: Path) -> None:
    loader = open_openpi(frames_root, normalize=False)
    raw = Raw(frames_root, "viola", **UNITS)
    batch, repeated = loader.batch_at(0), 0
    for row, (episode, step) in enumerate(places(loader)):
        last = raw.length[episode] - 2  # viola has no displacement at its last step
        assert step <= last
        steps = [min(step + ahead, last) for ahead in range(6)]
        repeated += steps[-1] < step + 5
        np.testing.assert_array_equal(
            batch["actions"][row, :, :7], [raw.action(episode, action_step) for action_step in steps]
        )
        np.testing.assert_array_equal(batch["state"][row, :7], raw.value("state", episode, step))
        assert batch["prompt"][row] == raw.batch["language"][raw.rows[episode, step]]
    assert repeated > 3
    assert not batch["actions"][..., 7:].any() and not batch["state"][..., 7:].any()


@pytest.mark.parametrize("preset", ["pi0", "pi05"])
def test_values_are_normalised_by_the_statistics_of_all_members(frames_root: Path, preset: openpi.Preset) -> None:
    plain, scaled = (
        open_openpi(frames_root, "droid,viola", preset=preset, normalize=normalize).batch_at(0)
        for normalize in (False, True)
    )
    statistics = statistics_of(open_openpi(frames_root, "droid,viola", preset=preset))
    for key, name in (("actions", "action"), ("state", "state")):
        numbers = statistics[name]["viola"]
        assert np.array_equal(numbers.mean, statistics[name]["droid"].mean)
        expected = (plain[key][..., :7] - numbers.mean) / (numbers.std + 1e-6)
        if preset == "pi05":
            expected = (plain[key][..., :7] - numbers.q01) / (numbers.q99 - numbers.q01 + 1e-6) * 2 - 1
        np.testing.assert_allclose(scaled[key][..., :7], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("preset", "value"), [("pi0", 0), ("pi05", -1), ("pi0_fast", -1)])
def test_a_dimension_that_does_not_vary_is_what_openpi_makes_of_it(
    frames_root: Path, preset: openpi.Preset, value: float
) -> None:
    arguments: Any = {"units": {"action": {"space": "oxe"}}, "preset": preset}
    loader = open_openpi(frames_root, "language_table", **arguments)
    numbers = statistics_of(loader)["action"]["language_table"]
    still = np.flatnonzero(numbers.min == numbers.max)
    plain = open_openpi(frames_root, "language_table", **arguments, normalize=False)
    assert numbers.mean[still].tolist() == [0, 0, 0, 0, 1]
    assert (plain.batch_at(0)["actions"][..., still] == numbers.mean[still]).all()
    assert (loader.batch_at(0)["actions"][..., still] == value).all()


def test_frames_keep_their_shape_between_black_borders(frames_root: Path) -> None:
    batch = open_openpi(frames_root, image_size=(48, 96)).batch_at(0)
    raw = Raw(frames_root, "viola", **UNITS)
    frame = raw.value("frames/primary", *places(open_openpi(frames_root))[0])[0]
    image = batch["image"]["base_0_rgb"][0]
    assert not image[:, :24].any() and not image[:, 72:].any()
    inner = np.asarray(Image.fromarray(frame).resize((48, 48), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(image[:, 24:72], inner)


def test_a_camera_that_a_dataset_lacks_is_black_and_masked(frames_root: Path) -> None:
    loader = open_openpi(frames_root, "bridge,viola", shuffle="global")
    batch = loader.batch_at(0)
    has_wrist = [ref.dataset == "viola" for ref in loader.describe(0)]
    assert batch["image_mask"]["left_wrist_0_rgb"].tolist() == has_wrist
    assert batch["image"]["left_wrist_0_rgb"].any(axis=(1, 2, 3)).tolist() == has_wrist
    assert 0 < sum(has_wrist) < 32


def test_pi0_fast_has_its_own_views_all_valid_and_no_padding(frames_root: Path) -> None:
    batch = open_openpi(frames_root, preset="pi0_fast").batch_at(0)
    assert list(batch["image"]) == ["base_0_rgb", "base_1_rgb", "wrist_0_rgb"]
    assert all(mask.all() for mask in batch["image_mask"].values()) and not batch["image"]["base_1_rgb"].any()
    assert (batch["state"].shape, batch["actions"].shape) == ((32, 7), (32, 6, 7))


def test_droid_draws_cameras_and_instructions_as_openpi_does(frames_root: Path) -> None:
    """openpi takes a camera with probability 1/2 and an instruction with 1/3; empty ones are not drawn here."""
    sample = openpi.sample("pi05_droid", image_size=(64, 64), normalize=False)
    batches = make_loader(frames_root, "droid", batch_size=256, **sample)
    action, state = openpi.DROID_COLUMNS
    assert batches.spec.action == Vector(16, columns=action) and batches.spec.state == Vector(columns=state)
    plain = make_loader(
        frames_root,
        "droid",
        batch_size=256,
        frames=Frames([0], cameras=openpi.DROID_EXTERIOR),
        action=batches.spec.action,
        state=batches.spec.state,
        select=batches.spec.select,
        columns=openpi.DROID_TEXTS,
    )
    first, counts = 0, Counter[tuple[int, int]]()
    for step in range(6):
        batch, raw = batches.batch_at(step), plain.batch_at(step)
        for row, text in enumerate(batch["prompt"]):
            texts = [raw[name][row] for name in openpi.DROID_TEXTS]
            instructions = [stored_text for stored_text in texts if stored_text]
            assert text in (instructions or [""])
            if len(instructions) == len(set(instructions)) > 1:
                counts[len(instructions), instructions.index(text)] += 1
        image = batch["image"]["base_0_rgb"]
        shown = [(image == raw[f"frames/{name}"][:, 0]).all(axis=(1, 2, 3)) for name in openpi.DROID_EXTERIOR]
        assert (shown[0] ^ shown[1]).all()
        first += int(shown[0].sum())
        assert (batch["actions"][..., :8] >= -10).all() and not batch["actions"][..., 8:].any()
        np.testing.assert_array_equal(batch["state"][:, :8], raw["state"])
    rows = 6 * 256
    assert abs(first - rows / 2) < 4 * np.sqrt(rows / 4)
    (split,), (episodes,) = batches.data.sample_index.splits, batches.data.sample_index.episodes
    paths = split.episodes.take_texts("episode_metadata/file_path", episodes.astype(np.int64))
    assert all("success" in path for path in paths)
    assert counts
    for num_texts in {num_texts for num_texts, _ in counts}:
        drawn_counts = [counts[num_texts, number] for number in range(num_texts)]
        assert max(drawn_counts) - min(drawn_counts) < 6 * np.sqrt(sum(drawn_counts))


JOINT: dict[str, Any] = {"space": "joint", "on_unknown_units": "keep"}
JOINTS: dict[str, Any] = {"action": JOINT, "state": JOINT}


@pytest.mark.parametrize("preset", ["pi0", "pi05"])
def test_delta_joint_actions_are_relative_to_the_state_and_so_are_their_statistics(
    frames_root: Path, preset: openpi.Preset
) -> None:
    """As ``DeltaActions`` and ``compute_norm_stats.py``: chunks of every step, the last action repeated."""
    options: dict[str, Any] = {"preset": preset, "units": JOINTS}
    absolute = open_openpi(frames_root, "droid", **options, normalize=False)
    delta = open_openpi(frames_root, "droid", **options, normalize=False, use_delta_joint_actions=True)
    scaled = open_openpi(frames_root, "droid", **options, use_delta_joint_actions=True)
    num_rows, chunks = sum(absolute.sizes.values()), []
    is_joint = np.arange(32) < 7
    for step in range(num_rows // 32 + 1):
        batch = absolute.batch_at(step)
        expected = batch["actions"] - (batch["state"] * is_joint)[:, None]
        np.testing.assert_array_equal(delta.batch_at(step)["actions"], expected)
        chunks.append(expected)
    values = np.concatenate(chunks)[:num_rows, :, :8].reshape(-1, 8).astype(np.float64)
    numbers = statistics_of(scaled)["action"]["droid"]
    np.testing.assert_allclose(numbers.mean, values.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(numbers.std, values.std(axis=0), atol=1e-6)
    np.testing.assert_allclose(numbers.q01, np.quantile(values, 0.01, axis=0), atol=1e-6)
    normalize: Any = scaled.normalize
    batch, raw = scaled.batch_at(0), absolute.batch_at(0)
    commands = normalize.denormalize(batch["actions"][..., :8], dataset="droid", state=raw["state"][:, :8])
    np.testing.assert_allclose(commands, raw["actions"][..., :8], atol=1e-5)


def test_statistics_of_absolute_actions_count_every_chunk_with_its_repeated_tail(frames_root: Path) -> None:
    """As ``compute_norm_stats.py``, also without ``DeltaActions``; viola has no action at its last step."""
    plain, scaled = (open_openpi(frames_root, "viola", normalize=normalize) for normalize in (False, True))
    num_rows = sum(plain.sizes.values())
    batches = [plain.batch_at(step) for step in range(num_rows // 32 + 1)]
    actions = np.concatenate([batch["actions"] for batch in batches])[:num_rows, :, :7].reshape(-1, 7)
    states = np.concatenate([batch["state"] for batch in batches])[:num_rows, :7]
    numbers = statistics_of(scaled)
    for name in ("mean", "std", "min", "max"):
        expected = getattr(actions.astype(np.float64), name)(axis=0)
        np.testing.assert_allclose(getattr(numbers["action"]["viola"], name), expected, atol=1e-6)
    np.testing.assert_allclose(numbers["action"]["viola"].q99, np.quantile(actions, 0.99, axis=0), atol=1e-6)
    assert numbers["state"]["viola"].count == len(states) + len(plain.data.sample_index.episodes[0])


def test_openpi_s_own_file_gives_commands_too(frames_root: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"units": JOINTS, "use_delta_joint_actions": True}
    own: Any = open_openpi(frames_root, "droid", **options)
    own.normalize.export(tmp_path / "norm_stats.json", format="openpi")
    theirs: Any = open_openpi(frames_root, "droid", **options, normalize=str(tmp_path / "norm_stats.json"))
    raw = open_openpi(frames_root, "droid", units=JOINTS, normalize=False).batch_at(0)
    actions, state = theirs.batch_at(0)["actions"][..., :8], raw["state"][:, :8]
    np.testing.assert_allclose(actions, own.batch_at(0)["actions"][..., :8], atol=1e-5)
    commands = theirs.normalize.denormalize(actions, dataset="droid", state=state)
    np.testing.assert_allclose(commands, raw["actions"][..., :8], atol=1e-5)


def test_the_gripper_of_droid_stays_absolute(frames_root: Path) -> None:
    absolute, delta = (
        make_loader(
            frames_root,
            "droid",
            batch_size=8,
            **openpi.sample("pi0_droid", normalize=False, use_delta_joint_actions=is_delta),
        ).batch_at(0)
        for is_delta in (False, True)
    )
    np.testing.assert_array_equal(delta["actions"][..., 7:], absolute["actions"][..., 7:])
    np.testing.assert_array_equal(
        delta["actions"][..., :7], absolute["actions"][..., :7] - absolute["state"][:, None, :7]
    )


def test_actions_that_are_displacements_are_not_made_relative_again(frames_root: Path) -> None:
    """As openpi's configuration of LIBERO once did."""
    with pytest.raises(ArgumentError, match=r"relative_to='state' with space='eef_delta', .* displacements already"):
        open_openpi(frames_root, use_delta_joint_actions=True)
    with pytest.raises(ArgumentError, match="dataset viola: action: x is a displacement"):
        open_openpi(frames_root, units={}, use_delta_joint_actions=True)


class Words:
    """A tokenizer with openpi's signature: the lengths of words, and how many values the state has."""

    def tokenize(self, prompt: str, state: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.array([len(word) for word in prompt.split()] + [0] * 20)[:20]
        tokens[19] = 0 if state is None else len(state)
        return tokens, tokens > 0


@pytest.mark.parametrize(("preset", "dims"), [("pi0", 0), ("pi05", 7)])
def test_a_tokenizer_takes_the_prompt_and_for_pi05_the_state(
    frames_root: Path, preset: openpi.Preset, dims: int
) -> None:
    batch = open_openpi(frames_root, preset=preset, tokenizer=Words()).batch_at(0)
    texts = open_openpi(frames_root).batch_at(0)["prompt"]
    tokens, mask = batch["tokenized_prompt"], batch["tokenized_prompt_mask"]
    assert "prompt" not in batch and (tokens.dtype, mask.dtype) == (np.int32, bool)
    np.testing.assert_array_equal(tokens[0], Words().tokenize(texts[0], np.zeros(dims) if dims else None)[0])


def test_what_does_not_fit_the_model_is_an_error(frames_root: Path) -> None:
    with pytest.raises(ArgumentError, match="action of viola has 7 dimensions, the model takes 6"):
        open_openpi(frames_root, action_dim=6)
    with pytest.raises(ArgumentError, match="preset='pi1'; expected one of pi0, pi05, pi0_fast, pi0_droid, pi05_droid"):
        open_openpi(frames_root, preset="pi1")
    for preset in ("pi0_fast", "pi0_fast_droid"):
        with pytest.raises(ArgumentError, match=r"pi0_fast takes an object with tokenize\(prompt, state, actions\)"):
            openpi.sample(preset, tokenizer=Words())
    with pytest.raises(ArgumentError, match=r"tokenizer='words'; pi0 takes an object with tokenize\(prompt, state\)"):
        openpi.sample(tokenizer="words")


DROID_VIEWS = {
    "pi0_droid": ["base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"],
    "pi05_droid": ["base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"],
    "pi0_fast_droid": ["base_0_rgb", "base_1_rgb", "wrist_0_rgb"],
}


@pytest.mark.parametrize("preset", DROID_VIEWS)
def test_a_preset_of_droid_has_its_model_and_16_joint_actions(frames_root: Path, preset: openpi.Preset) -> None:
    sample = openpi.sample(preset)
    loader = make_loader(frames_root, "droid", batch_size=8, **sample)
    batch, dims = loader.batch_at(0), 8 if "fast" in preset else 32
    assert (batch["actions"].shape, batch["state"].shape) == ((8, 16, dims), (8, dims))
    assert list(batch["image"]) == DROID_VIEWS[preset]
    assert loader.normalize is not None
    assert loader.normalize.method == ("openpi_pi0" if preset == "pi0_droid" else "openpi_pi05")
    assert sample.select.where == [list(condition) for condition in openpi.DROID_SUCCESS]
    assert loader.describe()["droid"]["left_out"]["where"] > 0
    with pytest.raises(ArgumentError, match="no dataset of the mixture stores"):
        make_loader(frames_root, "viola", batch_size=8, **replace(sample, select=Select()))
