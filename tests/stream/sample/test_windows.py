"""Windows of frames: random ones, pairs from frames, cameras that are missing, and wrong ones.

What each row has is compared with loops over the source in ``tests/reference``.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import Frames, make_loader
from stream.base.errors import ArgumentError
from stream.batch.assemble import Assembler


def test_random_distances_are_drawn_evenly(frames_root: Path) -> None:
    frames = Frames(("1..5", "-2..1", "1..5"), edges="repeat")
    loader = make_loader(frames_root, "bridge", batch_size=1024, frames=frames)
    # Distances that reach beyond no episode's edge from steps 2 to 4.
    batches = [loader.batch_at(step) for step in range(4)]
    inner = np.concatenate([(b["step"] >= 2) & (b["step"] <= 4) for b in batches])
    steps = np.concatenate([b["frame_step"] - b["step"][:, None] for b in batches])[inner]
    for position, values in ((0, range(1, 6)), (1, range(-2, 2))):
        counts = np.array([(steps[:, position] == value).sum() for value in values])
        expected = counts.sum() / len(counts)
        # The 99.99 % quantiles of chi-square for 4 and 3 degrees of freedom.
        assert ((counts - expected) ** 2 / expected).sum() < (23.5 if position == 0 else 21.1)
    # Two entries of the same range are drawn apart.
    assert 0.1 < (steps[:, 0] == steps[:, 2]).mean() < 0.3


def test_goals_are_drawn_evenly_from_the_rest_of_the_episode(frames_root: Path) -> None:
    loader = make_loader(frames_root, "bridge", batch_size=2048, frames=("goal",))
    batch = loader.batch_at(0)
    (split,) = loader.data.sample_index.splits
    remaining = split.episodes.array("num_steps")[batch["episode"]] - 1 - batch["step"]
    positions = (batch["frame_step"][:, 0] - batch["step"] - 0.5) / remaining
    assert positions.min() > 0
    assert positions.max() < 1
    assert abs(positions.mean() - 0.5) < 0.03
    chosen = remaining == 4
    counts = np.bincount((batch["frame_step"][:, 0] - batch["step"])[chosen] - 1, minlength=4)
    expected = counts.sum() / 4
    assert ((counts - expected) ** 2 / expected).sum() < 21.1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"action": 7},
        {"action": {"space": "oxe", "reduce": "mean", "on_unmapped": "drop"}},
        {"samples_per_episode": 1},
        {"action": None, "state": None, "language": None},
    ],
    ids=str,
)
def test_a_pair_from_frames_is_bitwise_the_stored_pair(
    options: dict[str, Any], oxe_root: Path, frames_root: Path
) -> None:
    pairs = make_loader(oxe_root, "oxe29", batch_size=64, seed=1, **options)
    frames = make_loader(frames_root, "oxe29", batch_size=64, seed=1, **options)
    chosen = make_loader(frames_root, "oxe29", batch_size=64, seed=1, frames=(0, "offset"), **options)
    for step in (0, 3, 10**6):
        expected, batch, more = (loader.batch_at(step) for loader in (pairs, frames, chosen))
        assert batch.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(batch[key], value, err_msg=key)
            np.testing.assert_array_equal(more[key], value, err_msg=key)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"frames": {"cameras": "ceiling"}}, r"no dataset of the mixture stores 'ceiling'; they store .*primary.*wrist"),
    ({"frames": (0, "0.6s")}, r"seconds need a fixed rate, which these datasets do not have: \w+, \w+"),
    (
        {"frames": (0, 500)},
        r"language_table: split .* has 4 episodes, but the window takes 501 steps, and the longest episode has 14 "
        r".edges='repeat' takes all.; "
        r".*bridge: .* has 10 .*; .*; and 24 more\. Change split, window",
    ),
    ({"frames": ()}, "expected a list of 1 to 1024"),
    ({"frames": ("5..1",)}, r"expected a range A\.\.B with A <= B"),
    ({"frames": ("tomorrow",)}, "expected a number of steps"),
    ({"frames": {"edges": "reflect"}}, "edges='reflect'; expected one of 'drop', 'repeat'"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=str)
def test_a_wrong_window_is_one_clear_error(arguments: dict[str, Any], message: str, frames_root: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_loader(frames_root, "oxe29", batch_size=4, **arguments)


def test_the_pictures_of_a_missing_camera_are_black_in_memory_that_held_others(frames_root: Path) -> None:
    cameras = ("primary", "wrist")
    data = make_loader(frames_root, {"bridge": 1, "viola": 1}, batch_size=16, frames=Frames(cameras=cameras)).data
    rows = data.plan.rows(np.arange(16))
    assembler = Assembler(data.spec)
    out = assembler.empty(len(rows))
    for values in out.values():
        values.view(np.uint8)[...] = 255
    assembler.assemble(rows, out)
    has_wrist = rows.member == data.names.index("viola")
    assert 0 < has_wrist.sum() < 16
    np.testing.assert_array_equal(out["frames_mask/wrist"], has_wrist[:, None].repeat(2, axis=1))
    assert not out["frames/wrist"][~has_wrist].any()
    assert (out["frames/wrist"][has_wrist] != 255).any(axis=(2, 3, 4)).all()


# taco_play has 15 steps a second, bridge 5, rt1 3.
@pytest.mark.parametrize(
    ("frames", "slow"),
    [
        ((0, "-0.1s"), "bridge (5.0 Hz), rt1 (3.0 Hz)"),
        ((0, "0.2s", "0.4s"), "rt1 (3.0 Hz)"),
        (("0.4s", 0, "0.45s"), "bridge (5.0 Hz), rt1 (3.0 Hz)"),
        ((0, "0s", "0.4s"), None),
        ((0, 1, "0.4s", "0.4s"), None),
        (("-0.4s", "0.4s"), None),
    ],
    ids=str,
)
def test_times_that_are_one_step_name_the_datasets(
    frames: tuple[int | str, ...], slow: str | None, frames_root: Path
) -> None:
    message = rf"the same step at the rate of {re.escape(slow or '')}; give longer times"
    with pytest.raises(ArgumentError, match=message) if slow else contextlib.nullcontext():
        make_loader(frames_root, "bridge,rt1,taco_play", batch_size=4, frames=Frames(frames, edges="repeat"))


@pytest.mark.parametrize("frames", [range(-1, 2), np.array([-1, 0, 1]), [np.int64(-1), np.int8(0), 1]], ids=repr)
def test_frames_may_be_a_range_or_an_array(frames: Any, frames_root: Path) -> None:
    loader = make_loader(frames_root, "bridge", batch_size=4, frames=frames)
    batch = loader.batch_at(0)
    np.testing.assert_array_equal(batch["frame_step"], batch["step"][:, None] + np.arange(-1, 2))
    steps = loader.spec.frames and loader.spec.frames.steps
    assert steps == json.loads(json.dumps(steps)) == [-1, 0, 1]


def test_a_pairs_root_names_the_layout_that_has_other_cameras_and_frames(oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match=r"stores 'wrist'; .*--layout frames --cameras all"):
        make_loader(oxe_root, "viola", batch_size=4, frames=Frames(cameras="wrist"))
    message = r"dataset bridge: its pairs hold the frames t \+ \{0, 5\}.*--layout frames"
    for frames in ([0, 1], ["goal"], [-1, 0], ["0..5"]):
        with pytest.raises(ArgumentError, match=message):
            make_loader(oxe_root, "bridge", batch_size=4, frames=frames)
