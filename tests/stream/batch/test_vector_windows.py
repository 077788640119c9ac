"""Actions between the frames of a sample, by hand; ``tests/reference`` has them for random arguments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stream.batch.vector_windows import Reducer, VectorWindow, cut_intervals, interval_positions
from stream.batch.vectors import DatasetVector
from stream.sample.window import Window

FRAMES = [-2, 0, 3]
"""Frames of an episode of 6 steps, whose action at step s is 10 + s."""
ACTIONS = {
    0: ([[0, 0, 0], [10, 11, 12]], [[0, 0, 0], [1, 1, 1]]),  # both first frames are step 0
    1: ([[0, 10, 0], [11, 12, 13]], [[0, 1, 0], [1, 1, 1]]),
    2: ([[10, 11, 0], [12, 13, 14]], [[1, 1, 0], [1, 1, 1]]),
    3: ([[11, 12, 0], [13, 14, 0]], [[1, 1, 0], [1, 1, 0]]),  # the last frame is step 5, whose action comes after it
    5: ([[13, 14, 0], [0, 0, 0]], [[1, 1, 0], [0, 0, 0]]),
}


def intervals_at(steps: list[int]) -> VectorWindow:
    first_steps = np.array(steps) + FRAMES[0]
    window_steps = first_steps[:, None] + np.arange(5)
    inside = (window_steps >= 0) & (window_steps < 6)
    values = np.where(inside, 10 + window_steps, 0)[..., None].astype(np.float32)
    positions = interval_positions([Window.at(FRAMES)])[np.zeros(len(steps), int)]
    shown = np.clip(np.array(steps)[:, None] + FRAMES, 0, 5)
    return cut_intervals(VectorWindow(values, inside[..., None], inside, window_steps), positions, first_steps, shown)


def test_intervals_have_the_actions_between_the_frames_that_are_shown() -> None:
    window = intervals_at(list(ACTIONS))
    values, mask = zip(*ACTIONS.values(), strict=True)
    np.testing.assert_array_equal(window.values[..., 0], values)
    np.testing.assert_array_equal(window.mask[..., 0], mask)
    np.testing.assert_array_equal(window.inside, mask)


@pytest.mark.parametrize("reduction", ["first", "mean", "sum"])
@pytest.mark.parametrize("steps", [list(ACTIONS), [], [1]])
def test_each_interval_is_reduced_by_itself(reduction: Any, steps: list[int]) -> None:
    vector = DatasetVector(("x",), ("displacement",))
    spec: Any = SimpleNamespace(reduction=reduction, actions=(vector,), action_size=1, rates=(5.0,))
    values, mask = Reducer(spec).reduce(intervals_at(steps), np.zeros(len(steps), int))
    assert values.shape == mask.shape == (len(steps), 2, 1)
    for row, step in enumerate(steps):
        for number, (actions, real) in enumerate(zip(*ACTIONS[step], strict=True)):
            there = [action for action, is_there in zip(actions, real, strict=True) if is_there]
            reduced = {"first": there[:1], "mean": np.mean(there or [0]), "sum": sum(there)}[reduction]
            np.testing.assert_array_equal(values[row, number], reduced or [0])
            assert mask[row, number, 0] == bool(there)


def test_an_action_that_lacks_a_number_has_no_sum() -> None:
    window = intervals_at([1])
    window.mask[0, 1, 1] = False
    vector = DatasetVector(("x",), ("displacement",))
    for reduction, expected in (("sum", [True, False]), ("mean", [True, False]), ("first", [True, True])):
        spec: Any = SimpleNamespace(reduction=reduction, actions=(vector,), action_size=1, rates=(None,))
        values, mask = Reducer(spec).reduce(window, np.zeros(1, int))
        assert mask[0, :, 0].tolist() == expected
        assert (values[~mask] == 0).all()


@pytest.mark.parametrize("reduction", ["first", "mean", "sum"])
def test_vectors_without_dimensions_are_reduced_to_some_without(reduction: Any) -> None:
    spec: Any = SimpleNamespace(reduction=reduction, actions=(DatasetVector((), ()),), action_size=0, rates=(None,))
    for shape in ((2, 3), (2, 4, 3), (0, 3)):
        values, mask = np.zeros((*shape, 0), np.float32), np.zeros((*shape, 0), bool)
        window = VectorWindow(values, mask, np.ones(shape, bool), np.zeros(shape, int))
        values, mask = Reducer(spec).reduce(window, np.zeros(shape[0], int))
        assert values.shape == mask.shape == (*shape[:-1], 0)
