"""Vectors of every so many-th step of the episode, and of repeated edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Loader, Normalize, Select, Vector, digest, load_loader, load_normalize, make_loader

ARGUMENTS: dict[str, Any] = {"batch_size": 16, "frames": [0], "seed": 3}
JOINT: dict[str, Any] = {"space": "joint", "on_unknown_units": "keep"}


def open_joints(root: Path, action: Vector, **options: Any) -> Loader:
    return make_loader(root, "droid", action=action, state=Vector(**JOINT), **{**ARGUMENTS, **options})


def lengths_of(loader: Loader) -> dict[int, int]:
    (index,) = loader.data.sample_index.splits
    return dict(enumerate(index.episodes.array("num_steps").tolist()))


@pytest.mark.parametrize("relative_to", [None, "state", "first"])
def test_a_stride_takes_every_third_step_of_a_longer_window(frames_root: Path, relative_to: Any) -> None:
    longer = open_joints(frames_root, Vector(12, start=-2, relative_to=relative_to, **JOINT)).batch_at(1)
    batch = open_joints(frames_root, Vector(4, start=-2, stride=3, relative_to=relative_to, **JOINT)).batch_at(1)
    for key in ("action", "action_mask"):
        np.testing.assert_array_equal(batch[key], longer[key][:, ::3])
    assert not batch["action_mask"].all()


def test_the_step_before_is_that_of_the_chunk(frames_root: Path) -> None:
    plain = open_joints(frames_root, Vector(3, stride=3, **JOINT)).batch_at(0)
    batch = open_joints(frames_root, Vector(3, stride=3, relative_to="previous", **JOINT)).batch_at(0)
    valid = batch["action_mask"][:, 1:].all(axis=(1, 2))
    expected = np.diff(plain["action"][valid, :, :7].astype(np.float64), axis=1)
    np.testing.assert_allclose(batch["action"][valid, 1:, :7], expected, atol=1e-7)
    assert valid.sum() > 3


def test_a_time_is_a_stride_at_the_rate_of_each_dataset(frames_root: Path) -> None:
    loader = make_loader(frames_root, "bridge,droid", action=Vector("1s", stride="0.2s"), **ARGUMENTS)
    span = loader.data.spec.action_span  # bridge has 5 steps a second, droid 15
    assert (span.strides, span.lengths) == ((1, 3), (5, 5))
    with pytest.raises(ArgumentError, match=r"action.stride='0.01s': expected 1 to 100,000 steps, and it is 0 at the"):
        make_loader(frames_root, "bridge", action=Vector(4, stride="0.01s"), **ARGUMENTS)


def test_future_actions_are_counted_in_strides(frames_root: Path) -> None:
    loader = open_joints(
        frames_root, Vector(4, stride=3, **JOINT), select=Select(min_future_actions=4), num_epochs=1, shuffle="none"
    )
    lengths, drawn = lengths_of(loader), 0
    for step in range(loader.num_steps or 0):
        batch, refs = loader.batch_at(step), loader.describe(step)
        drawn += len(refs)
        assert batch["action_mask"][: len(refs)].all()
    assert drawn == sum(max(0, length - 9) for length in lengths.values()) > 0


def test_edges_repeat_the_ends_of_the_episode_before_the_chunk_becomes_relative(frames_root: Path) -> None:
    every = {"num_epochs": 1, "shuffle": "none", "batch_size": 64}
    plain = open_joints(frames_root, Vector(1, **JOINT), **every)
    rows = {}
    for step in range(plain.num_steps or 0):
        batch = plain.batch_at(step)
        for row, ref in enumerate(plain.describe(step)):
            rows[ref.episode, ref.step] = batch["action"][row, 0], batch["state"][row]
    chunk = Vector(4, start=-3, stride=3, edges="repeat", relative_to="state", **JOINT)
    loader = open_joints(frames_root, chunk, **every)
    lengths, beyond = lengths_of(loader), 0
    batch = loader.batch_at(0)
    for row, ref in enumerate(loader.describe(0)):
        steps = [ref.step - 3, ref.step, ref.step + 3, ref.step + 6]
        beyond += steps[0] < 0 or steps[-1] >= lengths[ref.episode]
        shown = [min(max(step, 0), lengths[ref.episode] - 1) for step in steps]
        expected = np.stack([rows[ref.episode, step][0] for step in shown])
        expected[:, :7] -= rows[ref.episode, ref.step][1][:7]
        np.testing.assert_array_equal(batch["action"][row], expected)
    assert batch["action_mask"].all() and beyond > 5


@pytest.mark.parametrize("tails", ["complete", "repeat"])
@pytest.mark.parametrize("per_step", [False, True])
def test_tails_count_the_chunks_of_absolute_actions(frames_root: Path, tails: Any, per_step: bool) -> None:
    loader = open_joints(frames_root, Vector(4, stride=2, per_step=per_step, **JOINT), num_epochs=1, shuffle="none")
    lengths, chunks = lengths_of(loader), []
    for step in range(loader.num_steps or 0):
        batch = loader.batch_at(step)
        for row, ref in enumerate(loader.describe(step)):
            left = (lengths[ref.episode] - 1 - ref.step) // 2
            if tails == "repeat" or left >= 3:
                chunks.append(batch["action"][row, np.minimum(np.arange(4), left)])
    values = np.stack(chunks).astype(np.float64)
    numbers = Normalize(loader, tails=tails).statistics["action"]["droid"]
    pooled = values if per_step else values.reshape(-1, 8)
    assert numbers.count == len(pooled)
    for name in ("mean", "std", "min", "max"):
        np.testing.assert_allclose(getattr(numbers, name), getattr(pooled, name)(axis=0), atol=1e-6)
    np.testing.assert_allclose(numbers.q01, np.quantile(pooled, 0.01, axis=0), atol=1e-6)


def test_statistics_of_another_stride_are_refused(frames_root: Path, tmp_path: Path) -> None:
    def chunk(**fields: Any) -> Loader:
        return open_joints(frames_root, Vector(4, relative_to="state", **JOINT, **fields))

    Normalize(chunk(stride=3), keys=["action"]).save(tmp_path / "normalize.json")
    load_normalize(tmp_path / "normalize.json", chunk(stride=3))
    for fields in ({}, {"stride": 2}, {"stride": 3, "edges": "repeat"}):
        with pytest.raises(ArgumentError, match="the statistics belong to other data: steps of the action"):
            load_normalize(tmp_path / "normalize.json", chunk(**fields))


def test_a_saved_loader_ranks_and_members_keep_the_stride(frames_root: Path, tmp_path: Path) -> None:
    loader = open_joints(frames_root, Vector(4, stride=3, edges="repeat", relative_to="state", **JOINT))
    loader.save(tmp_path / "loader.json")
    batch = loader.batch_at(2)
    assert digest(load_loader(tmp_path / "loader.json").batch_at(2)) == digest(batch)
    halves = [loader.with_ranks(rank, 2).batch_at(2)["action"] for rank in range(2)]
    np.testing.assert_array_equal(np.concatenate(halves), batch["action"])
    own = {"droid": {"weight": 1, "action": {"stride": 3}}}
    of_member = make_loader(frames_root, own, action=Vector(4, **JOINT), state=None, **ARGUMENTS).batch_at(0)
    of_all = make_loader(frames_root, "droid", action=Vector(4, stride=3, **JOINT), state=None, **ARGUMENTS).batch_at(0)
    np.testing.assert_array_equal(of_member["action"], of_all["action"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stride": 0}, "stride=0; expected a whole number >= 1"),
        ({"stride": "-0.1s"}, "stride='-0.1s'; expected steps, or seconds above 0"),
        ({"edges": "drop"}, "edges='drop'; expected one of 'mask', 'repeat'"),
        ({"stride": 2, "reduce": "mean"}, "stride=2 with reduce='mean', which takes every step of the window"),
        (
            {"stride": 2, "between": "frames", "steps": None},
            "between='frames' with stride: the frames define the steps",
        ),
        ({"edges": "repeat", "reduce": "first"}, "edges='repeat' cannot be combined with reduce and between"),
    ],
)
def test_what_does_not_fit_is_one_sentence(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Vector(**{"steps": 4, **fields})
