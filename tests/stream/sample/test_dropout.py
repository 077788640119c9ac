"""Dropout of states and history frames, and delays of chunks: drawn by sample, alike everywhere, each by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import (
    ArgumentError,
    Frames,
    Loader,
    Normalize,
    SampleSource,
    Vector,
    Workers,
    digest,
    load_loader,
    make_loader,
    samples,
)
from stream.sample.dropout import Delay, Dropout
from tests.fixtures.command import run

MIXTURE = "bridge,droid"
CAMERAS = ["primary", "wrist"]
PLAIN: dict[str, Any] = {
    "frames": Frames([-2, 0, "goal"], cameras=CAMERAS, size=(32, 32), edges="repeat"),
    "state": Vector(2, start=-1),
    "action": Vector(6),
}
ONE_CAMERA: dict[str, Any] = {"frames": Frames([-2, 0], cameras=["primary"], edges="repeat")}
STATE: dict[str, Any] = {"state": Vector(2, start=-1, dropout=0.4)}
HISTORY: dict[str, Any] = {"frames": replace(PLAIN["frames"], history_dropout=0.4)}
DELAY: dict[str, Any] = {"action": Vector(6, min_delay=1, max_delay=4)}
ALL: dict[str, Any] = {**STATE, **HISTORY, **DELAY}


def open_loader(root: Path, mixture: Any = MIXTURE, *, batch_size: int = 64, **arguments: Any) -> Loader:
    return make_loader(root, mixture, batch_size=batch_size, **{"seed": 3, **PLAIN, **arguments})


def assert_equal(batch: Mapping[str, Any], expected: Mapping[str, Any], *, but: tuple[str, ...] = ()) -> None:
    for key in expected.keys() - set(but):
        np.testing.assert_array_equal(batch[key], expected[key], err_msg=key)


@pytest.mark.parametrize("probability", [0.1, 0.5, 1.0])
def test_a_share_of_the_samples_loses_a_part(probability: float) -> None:
    dropout = Dropout.of("state", probability, seed=5)
    assert dropout is not None
    numbers = np.arange(10**12, 10**12 + 200_000)
    drawn = dropout.draw(numbers)
    assert abs(drawn.mean() - probability) < 0.005
    np.testing.assert_array_equal(dropout.draw(numbers[7:9]), drawn[7:9])
    # Neighbours are independent.
    assert abs((drawn[1:] & drawn[:-1]).mean() - probability**2) < 0.005


def test_parts_and_seeds_are_drawn_independently() -> None:
    numbers = np.arange(200_000)
    drawn = [
        dropout.draw(numbers)
        for part, seed in (("state", 0), ("history", 0), ("state", 1))
        if (dropout := Dropout.of(part, 0.5, seed=seed))
    ]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert abs((drawn[first] & drawn[second]).mean() - 0.25) < 0.005


def test_each_delay_within_the_limits_of_a_member_is_as_likely() -> None:
    members, numbers = np.repeat([0, 1, 2], 100_000), np.arange(300_000)
    drawn = Delay.of((0, 2, 3), (4, 2, 5), seed=1).draw(members, numbers)
    for member, (least, most) in enumerate(((0, 4), (2, 2), (3, 5))):
        shares = np.bincount(drawn[members == member], minlength=7) / 100_000
        expected = [(least <= delay <= most) / (most - least + 1) for delay in range(7)]
        np.testing.assert_allclose(shares, expected, atol=0.006)


@pytest.mark.parametrize("normalize", [None, "q01_q99", {"method": "mean_std", "keys": ["action"]}], ids=str)
def test_a_dropped_state_is_0_with_mask_false_after_the_normalisation(frames_root: Path, normalize: Any) -> None:
    plain, dropping = (open_loader(frames_root, normalize=normalize, **more) for more in ({}, STATE))
    dropped = 0
    for step in range(4):
        batch, expected = dropping.batch_at(step), plain.batch_at(step)
        assert batch.keys() == expected.keys()
        is_dropped = ~batch["state_mask"].any(axis=(1, 2))
        dropped += is_dropped.sum()
        assert expected["state_mask"].any(axis=(1, 2)).all() and not batch["state"][is_dropped].any()
        for key in ("state", "state_mask"):
            np.testing.assert_array_equal(batch[key][~is_dropped], expected[key][~is_dropped])
        assert_equal(batch, expected, but=("state", "state_mask"))
    assert abs(dropped / 256 - 0.4) < 0.1


@pytest.mark.parametrize("decode", ["host", "device"])
def test_dropped_history_is_black_in_all_cameras_and_other_frames_stay(frames_root: Path, decode: Any) -> None:
    frames = Frames([-3, "-2..-1", 0, "-1..1", 2, "goal", "last"], cameras=CAMERAS, edges="repeat")
    dropping = replace(frames, history_dropout=0.5, decode=decode)
    batch = open_loader(frames_root, frames=dropping).batch_on_host(2)
    expected = open_loader(frames_root, frames=frames).batch_at(2)
    assert batch.keys() == expected.keys()
    is_inside = expected["frames_mask/primary"][:, :2].any(axis=1)
    is_dropped = is_inside & ~batch["frames_mask/primary"][:, :2].any(axis=1)
    assert 0.3 * is_inside.sum() < is_dropped.sum() < 0.7 * is_inside.sum()
    for camera in CAMERAS:
        pictures, mask = (batch[f"{key}/{camera}"] for key in ("frames", "frames_mask"))
        assert not pictures[is_dropped, :2].any() and not mask[is_dropped, :2].any()
        for key in ("frames", "frames_mask"):
            full_key = f"{key}/{camera}"
            np.testing.assert_array_equal(batch[full_key][:, 2:], expected[full_key][:, 2:])
            kept = batch[f"frames_mask/{camera}"][:, :2].any(axis=1)
            np.testing.assert_array_equal(batch[full_key][kept], expected[full_key][kept])
    changed = [f"{key}/{camera}" for key in ("frames", "frames_mask") for camera in CAMERAS]
    assert_equal(batch, expected, but=(*changed, "frames_jpeg"))


def test_dropped_frames_are_not_read(frames_root: Path) -> None:
    plain, dropping = (
        open_loader(frames_root, frames=Frames([-3, -2, -1, 0], edges="repeat", history_dropout=probability))
        for probability in (0.0, 1.0)
    )
    sizes = []
    for loader in (plain, dropping):
        batches = iter(loader)
        next(batches)
        sizes.append(loader.stats()["bytes"])
        batches.close()
    assert 0 < sizes[1] < 0.5 * sizes[0]


def test_dropped_frames_stay_black_where_frames_are_augmented(frames_root: Path) -> None:
    pytest.importorskip("torch")
    from stream.torch import to_device

    frames = replace(HISTORY["frames"], augment={"library": "tensorflow", "brightness": (0.1, 0.4)})
    loader = open_loader(frames_root, frames=frames)
    on_host, on_device = (next(to_device(loader, "cpu", augment=place)) for place in ("host", "device"))
    for batch in (on_host, on_device):
        history, mask = (batch[key][:, 0] for key in ("frames/primary", "frames_mask/primary"))
        is_shown = history.flatten(1).any(dim=1)
        assert not is_shown[~mask & (batch["step"] >= 2)].any() and is_shown[mask].all()
    assert not on_host["frames_mask/primary"][on_host["step"] >= 2, 0].all()
    assert (on_host["frames_mask/primary"] == on_device["frames_mask/primary"]).all()


def test_a_delay_comes_with_its_prefix_mask_and_changes_no_action(frames_root: Path) -> None:
    batch, expected = (open_loader(frames_root, **more).batch_at(1) for more in (DELAY, {}))
    delay, prefix = batch["action_delay"], batch["action_prefix_mask"]
    assert batch.keys() - expected.keys() == {"action_delay", "action_prefix_mask"}
    assert (delay.dtype, delay.shape, prefix.dtype, prefix.shape) == (np.int32, (64,), bool, (64, 6))
    assert set(delay.tolist()) == {1, 2, 3, 4}
    assert [row.tolist() for row in prefix] == [[step < steps for step in range(6)] for steps in delay]
    assert_equal(batch, expected)


def test_a_delay_in_seconds_is_in_the_steps_of_each_dataset(frames_root: Path) -> None:
    loader = open_loader(frames_root, "bridge,rt1", **ONE_CAMERA, action=Vector("2s", min_delay="0.2s", max_delay="1s"))
    delays = [set[int](), set[int]()]
    for step in range(3):
        batch = loader.batch_at(step)
        for member, delay in zip(batch["dataset"].tolist(), batch["action_delay"].tolist(), strict=True):
            delays[member].add(delay)
    # bridge has 5 steps a second, rt1 3.
    assert delays == [{1, 2, 3, 4, 5}, {1, 2, 3}]


@pytest.mark.parametrize("alone", [STATE, HISTORY, DELAY], ids=["state", "history", "delay"])
def test_what_else_is_drawn_shifts_no_draw(frames_root: Path, alone: dict[str, Any]) -> None:
    everything = open_loader(frames_root, language=["language"], **ALL).batch_at(5)
    batch = open_loader(frames_root, **alone).batch_at(5)
    plain = open_loader(frames_root).batch_at(5)
    keys = [
        key
        for key, value in batch.items()
        if key not in plain or not np.array_equal(np.asarray(value), np.asarray(plain[key]))
    ]
    assert keys
    for key in keys:
        np.testing.assert_array_equal(batch[key], everything[key])


def test_workers_ranks_and_resumed_runs_draw_the_same(frames_root: Path) -> None:
    arguments: dict[str, Any] = {**ALL, "batch_size": 8, "normalize": "q01_q99"}
    loader = open_loader(frames_root, **arguments)
    expected = [loader.batch_at(step) for step in range(4)]
    for workers in (Workers(0, threads=2), Workers(2)):
        batches = iter(open_loader(frames_root, num_workers=workers, **arguments))
        assert [digest(next(batches)) for _ in range(4)] == [digest(batch) for batch in expected]
        batches.close()
    resumed = iter(open_loader(frames_root, num_workers=2, **arguments))
    resumed.set_state(loader.state_at(2))
    assert digest(next(resumed)) == digest(expected[2])
    resumed.close()
    ranks = [open_loader(frames_root, rank=rank, world_size=4, **arguments).batch_at(3) for rank in range(4)]
    for key in ("state", "state_mask", "frames/wrist", "frames_mask/wrist", "action_delay", "action_prefix_mask"):
        np.testing.assert_array_equal(np.concatenate([rank[key] for rank in ranks]), expected[3][key])


def test_a_saved_loader_a_replay_and_single_samples_are_the_same(frames_root: Path, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {**ALL, "batch_size": 8}
    loader = open_loader(frames_root, normalize="mean_std", **arguments)
    loader.save(tmp_path / "loader.json")
    replayed = load_loader(tmp_path / "loader.json")
    assert replayed.spec == loader.spec and "dropout=0.4" in repr(loader.spec)
    for step in (0, 9_001):
        assert digest(replayed.batch_at(step)) == digest(loader.batch_at(step))
    options = ("--loader", str(tmp_path / "loader.json"), "--step", "9001", "--digest")
    assert digest(loader.batch_at(9_001)) in run("replay", *options, module="pairstream").out
    elements = samples(frames_root, MIXTURE, **{"seed": 3, **PLAIN, **ALL})
    batch = open_loader(frames_root, **arguments).batch_at(2)
    for row in range(8):
        for key in ("state", "state_mask", "action_delay", "frames/primary", "frames_mask/primary"):
            np.testing.assert_array_equal(elements[16 + row][key], batch[key][row])


def test_a_sample_is_drawn_again_in_each_epoch_and_by_another_seed(frames_root: Path) -> None:
    def drawn(seed: int) -> tuple[np.ndarray, int]:
        arguments: dict[str, Any] = {"num_epochs": 2, "shuffle": "none", "seed": seed, "batch_size": 8}
        loader = open_loader(frames_root, "bridge", **{**ALL, **ONE_CAMERA, **arguments})
        steps = range(-(-2 * loader.sizes["bridge"] // 8))
        batches = [loader.batch_at(step) for step in steps]
        columns = [(batch["action_delay"], batch["state_mask"].any(axis=(1, 2))) for batch in batches]
        return np.concatenate([np.stack(parts, axis=1) for parts in columns]), loader.sizes["bridge"]

    (first, size), (second, _) = drawn(1), drawn(2)
    for column in range(2):
        assert (first[:size, column] != first[size : 2 * size, column]).any()
        assert (first[:, column] != second[:, column]).any()


def test_off_batches_states_and_files_are_as_without_the_arguments(frames_root: Path, tmp_path: Path) -> None:
    off = {
        "frames": replace(PLAIN["frames"], history_dropout=0),
        "state": replace(PLAIN["state"], dropout=0.0),
        "action": replace(PLAIN["action"], min_delay=0, max_delay=0),
    }
    plain, explicit = open_loader(frames_root), open_loader(frames_root, **off)
    assert digest(plain.batch_at(1)) == digest(explicit.batch_at(1))
    assert explicit.state_at(1) == plain.state_at(1)
    assert not [name for name in plain.content if "dropout" in name or "delay" in name]
    explicit.save(tmp_path / "loader.json")
    saved = json.loads((tmp_path / "loader.json").read_text())["sample"]
    assert saved["state"] == {"steps": 2, "start": -1} and "history_dropout" not in saved["frames"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (STATE, "state.dropout: 0.4 was 0"),
        (HISTORY, "frames.history_dropout: 0.4 was 0.0"),
        (DELAY, "action.max_delay: 4 was 0"),
    ],
    ids=["state", "history", "delay"],
)
def test_a_state_of_another_dropout_or_delay_is_a_warning(
    frames_root: Path, caplog: pytest.LogCaptureFixture, changed: dict[str, Any], named: str
) -> None:
    plain, other = open_loader(frames_root), open_loader(frames_root, **changed)
    assert other.step_of(plain.state_at(3)) == 3 and named in caplog.text
    caplog.clear()
    assert plain.step_of(other.state_at(3)) == 3 and named.split(":")[0] in caplog.text
    caplog.clear()
    assert other.step_of(other.state_at(3)) == 3 and not caplog.text


def test_relative_actions_are_relative_to_the_true_state(frames_root: Path) -> None:
    state = Vector(space="eef", on_unknown_units="keep")
    action = replace(state, steps=4, relative_to="state", poses="body", rotation="rot6d_rows")
    plain, dropping = (
        open_loader(
            frames_root,
            "bridge",
            **ONE_CAMERA,
            action=action,
            state=replace(state, dropout=dropout),
            normalize="mean_std",
        )
        for dropout in (0.0, 1.0)
    )
    batch, expected = dropping.batch_at(0), plain.batch_at(0)
    assert expected["action_mask"].any() and not batch["state_mask"].any()
    assert_equal(batch, expected, but=("state", "state_mask"))


class Subtract:
    """Subtracts the state from the action, as a caller's transform in front of the normalisation."""

    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        size = min(batch["action"].shape[-1], batch["state"].shape[-1])
        action = batch["action"].copy()
        action[..., :size] -= batch["state"][:, -1:, :size]
        return {**batch, "action": np.where(batch["action_mask"], action, 0).astype(np.float32)}


def test_transformed_statistics_and_the_transforms_in_front_have_the_true_state(frames_root: Path) -> None:
    normalize = {"method": "mean_std", "statistics": "transformed", "over": "samples"}
    plain, dropping = (
        open_loader(frames_root, "bridge", **ONE_CAMERA, transforms=[Subtract()], normalize=normalize, **more)
        for more in ({}, {"state": replace(PLAIN["state"], dropout=0.9)})
    )
    assert dropping.normalize is not None and plain.normalize is not None
    assert dropping.normalize.describe() == plain.normalize.describe()
    batch, expected = dropping.batch_at(0), plain.batch_at(0)
    assert not batch["state_mask"].any(axis=(1, 2)).all()
    assert_equal(batch, expected, but=("state", "state_mask"))


@pytest.mark.parametrize("over", ["dataset", "samples"])
def test_stored_statistics_count_every_state(frames_root: Path, over: Any) -> None:
    plain, dropping = (
        open_loader(frames_root, state=replace(PLAIN["state"], dropout=dropout)) for dropout in (0.0, 1.0)
    )
    assert Normalize(dropping, over=over).describe() == Normalize(plain, over=over).describe()
    # A transform that changes no vector is none of the mistakes that stored statistics are checked for.
    open_loader(frames_root, **ALL, transforms=[Keep()], normalize={"method": "mean_std", "over": over})


class Keep:
    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch


class Rename:
    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"proprio" if key == "state" else key: value for key, value in batch.items()}


def test_transforms_after_the_normalisation_get_the_dropped_state(frames_root: Path) -> None:
    normalize = Normalize(open_loader(frames_root))
    loader = open_loader(frames_root, **STATE, transforms=[normalize, Rename()])
    expected = open_loader(frames_root, **STATE, normalize=normalize).batch_at(0)
    np.testing.assert_array_equal(loader.batch_at(0)["proprio"], expected["state"])
    with pytest.raises(ArgumentError, match=r"a transform returned NoneType as state; expected the array of 64 rows"):
        open_loader(frames_root, **STATE, transforms=[Rename()]).batch_at(0)


@pytest.mark.parametrize("layout", ["pairs", "frames"])
def test_batches_of_pairs_and_batches_without_frames_drop_states_and_draw_delays(
    layout: str, oxe_root: Path, frames_root: Path
) -> None:
    arguments: dict[str, Any] = {"frames": None if layout == "frames" else [0], **STATE, **DELAY}
    root = oxe_root if layout == "pairs" else frames_root
    batch = open_loader(root, normalize="q01_q99", **arguments).batch_at(0)
    assert 0 < (~batch["state_mask"].any(axis=(1, 2))).sum() < 64
    assert set(batch["action_delay"].tolist()) == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"state": {"dropout": 1.5}}, r"state: dropout=1.5; expected a probability from 0 to 1"),
        ({"state": {"dropout": float("nan")}}, r"dropout=nan; expected a probability"),
        ({"state": {"dropout": 10**400}}, r"dropout=1000.*; expected a probability"),
        ({"state": {"dropout": np.array([0.1, 0.2])}}, r"dropout=array.*; expected a probability"),
        ({"state": {"dropout": True}}, r"dropout=True; expected a probability"),
        ({"action": {"dropout": 0.1}}, r"action=Vector\(dropout=0.1\): only the state is dropped"),
        ({"state": {"max_delay": 2}}, r"state=Vector\(max_delay=2\): only the action has a delay"),
        ({"frames": {"steps": [-1, 0], "history_dropout": "0.1"}}, r"history_dropout='0.1'; expected a probability"),
        ({"frames": {"steps": [0, "goal", "-2..0"], "history_dropout": 0.1}}, r"frames before t, and there are none"),
        ({"frames": {"history_dropout": 0.1}}, r"frames before t, and there are none"),
        ({"action": {"steps": 4, "max_delay": 4}}, r"0 to 4 steps of bridge, whose chunk has 4; expected"),
        ({"action": {"steps": 4, "max_delay": "2s"}}, r"0 to 10 steps of bridge, whose chunk has 4; expected"),
        ({"action": {"steps": 9, "min_delay": "1s", "max_delay": 2}}, r"5 to 2 steps of bridge, whose chunk has 9"),
        ({"action": {"steps": 4, "min_delay": 3, "max_delay": 2}}, r"min_delay=3 with max_delay=2; expected"),
        ({"action": {"steps": 4, "min_delay": 1}}, r"min_delay=1 without max_delay; give max_delay"),
        ({"action": {"steps": 4, "max_delay": -1}}, r"max_delay=-1; expected a whole number >= 0"),
        ({"action": {"steps": 4, "max_delay": None}}, r"max_delay=None; expected a whole number >= 0"),
        ({"action": {"steps": 4, "reduce": "first", "max_delay": 2}}, r"max_delay=2 with reduce='first'"),
        ({"action": {"between": "frames", "max_delay": 2}}, r"max_delay=2 with between='frames'"),
        ({"action": {"steps": 4, "start": -1, "max_delay": 2}}, r"max_delay=2 with start=-1"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_one_error(frames_root: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        open_loader(frames_root, "bridge", **{**ONE_CAMERA, **arguments})


@pytest.mark.parametrize("part", [STATE, HISTORY, DELAY], ids=["state", "history", "delay"])
def test_a_source_that_knows_no_epoch_refuses_to_draw(frames_root: Path, part: dict[str, Any]) -> None:
    history_dropout = part["frames"].history_dropout if "frames" in part else 0.0
    arguments = {**PLAIN, **part, "frames": replace(ONE_CAMERA["frames"], history_dropout=history_dropout)}
    with pytest.raises(ArgumentError, match=r"SampleSource cannot draw .*(dropout=0.4|max_delay=4)"):
        SampleSource(frames_root, "bridge", **arguments)
