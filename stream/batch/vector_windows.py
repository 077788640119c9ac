"""Windows of actions and states: read from the index, cut at the frames of a sample, reduced to one action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stream.batch.mapped import MappedIndex
from stream.batch.spec import BatchSpec
from stream.batch.vectors import kind_codes, reduce_window, sum_scale
from stream.order.rows import Rows
from stream.sample.window import Window


class Origin(NamedTuple):
    """Origin of each row of a batch, int64 [b]; 0 where the index does not describe a row.

    Attributes:
        episode: Episode in the split.
        step: Step t in the episode.
        steps_row: Row of step t in ``steps``.
        num_steps: Steps of the episode, at least 1.
        first_record: First record of the episode, 0 in the layout ``pairs``.
        valid: Mask of the rows that the index describes, bool [b].
    """

    episode: np.ndarray
    step: np.ndarray
    steps_row: np.ndarray
    num_steps: np.ndarray
    first_record: np.ndarray
    valid: np.ndarray


class VectorWindow(NamedTuple):
    """A vector at W steps of each row, or of each interval: [b, ..., W].

    Attributes:
        values: float32 [b, ..., W, size], 0 where ``mask`` is False.
        mask: Mask of the values, bool [b, ..., W, size].
        inside: Mask of the steps that are in the window of their member and in their episode, or repeat one of its
            edges, bool [b, ..., W].
        steps_rows: Row of each step in ``steps``, int64 [b, ..., W]; only those in ``inside`` exist.
    """

    values: np.ndarray
    mask: np.ndarray
    inside: np.ndarray
    steps_rows: np.ndarray


class VectorReader:
    """Reader of the derived column of action or state.

    Attributes:
        firsts: First step of each member's window, from t, int64 [M].
        strides: Steps of the episode from one step of the window to the next, int64 [M].
        longest: Steps of the longest window, W.
        size: Dimensions of the largest vector.
    """

    def __init__(self, spec: BatchSpec, mapped_index: MappedIndex, vector_name: str) -> None:
        self._index = mapped_index
        vectors, span = spec.read_vectors[vector_name], spec.span_of(vector_name)
        self.firsts, self.strides = np.array(span.firsts, np.int64), np.array(span.strides, np.int64)
        self.longest = span.longest
        self._repeats_edges = vector_name in spec.repeated_edges
        self._is_used = np.arange(span.longest) < np.array(span.lengths)[:, None]  # [M, W]
        vector_sizes = np.array([vector.size for vector in vectors])
        self.size = int(max(vector_sizes))
        self._dims = np.arange(self.size)
        self._has_dim = self._dims < vector_sizes[:, None]  # [M, size]
        # Columns that a caller chose are read split by split.
        column_widths = [vector.size if vector.chosen is None else 0 for vector in vectors]
        steps = [split_index.steps if column_widths[split_index.member] else None for split_index in spec.splits]
        self._starts = mapped_index.starts(steps, spec.derived[vector_name], 4)
        self._widths = np.array([column_widths[split_index.member] for split_index in spec.splits])
        self._has_gaps = spec.derived[vector_name] not in ("action", "state")

    def read(self, rows: Rows, origin: Origin, values: np.ndarray, mask: np.ndarray) -> VectorWindow:
        """Fill the arrays with the windows of some rows; chosen columns are 0, with the mask of the derived one."""
        distances = self.firsts[rows.member][:, None] + self.strides[rows.member][:, None] * np.arange(self.longest)
        if self._repeats_edges:
            last_distances = origin.num_steps - 1 - origin.step
            distances = np.clip(distances, -origin.step[:, None], last_distances[:, None])
        step_numbers = origin.step[:, None] + distances
        inside = (step_numbers >= 0) & (step_numbers < origin.num_steps[:, None]) & self._is_used[rows.member]
        np.logical_and(inside[:, :, None], self._has_dim[rows.member][:, None], out=mask)

        # The numbers of a step follow one another, and so do the steps of an episode.
        row_widths = self._widths[rows.split]
        steps_rows = origin.steps_row[:, None] + distances
        step_start = self._starts[rows.split][:, None] + steps_rows * row_widths[:, None]
        number_index = step_start[:, :, None] + self._dims
        # Masked values are number 0 of the region, which is 0.
        number_index *= mask
        values[:] = self._index.float32[number_index]
        if self._has_gaps:
            # In a canonical space a NaN is a number that the step does not have.
            mask &= ~np.isnan(values) | (row_widths == 0)[:, None, None]
            values[~mask] = 0
        return VectorWindow(values, mask, inside, steps_rows)


def interval_positions(windows: Sequence[Window]) -> np.ndarray:
    """Return the positions of actions in a window from the first to the last frame, by interval between two frames.

    Args:
        windows: Frames of each member at fixed distances, ascending, F of each.

    Returns:
        int64 [members, F - 1, W], W being the longest interval; -1 beyond the end of an interval.

    >>> interval_positions([Window.at([0, 2, 3])])[0].tolist()
    [[0, 1], [2, -1]]
    """
    distances = np.stack([window.low for window in windows])
    starts, lengths = distances[:, :-1] - distances[:, :1], np.diff(distances, axis=1)
    offsets = np.arange(lengths.max())
    return np.where(offsets < lengths[..., None], starts[..., None] + offsets, -1)


def cut_intervals(
    window: VectorWindow, positions: np.ndarray, first_steps: np.ndarray, frame_steps: np.ndarray
) -> VectorWindow:
    """Return the steps of each interval of a window.

    Args:
        window: Actions from the first to the last frame.
        positions: Positions in the window, int64 [b, I, W], -1 for none.
        first_steps: Step of the window's first position, int64 [b].
        frame_steps: Steps of the frames, int64 [b, I + 1]. Between repeated frames of an edge there are no actions.
    """
    row_numbers, steps = np.arange(len(positions))[:, None, None], first_steps[:, None, None] + positions
    exists = (positions >= 0) & (steps >= frame_steps[:, :-1, None]) & (steps < frame_steps[:, 1:, None])
    inside = window.inside[row_numbers, positions] & exists
    mask = window.mask[row_numbers, positions] & exists[..., None]
    values = np.where(mask, window.values[row_numbers, positions], 0)
    return VectorWindow(values, mask, inside, window.steps_rows[row_numbers, positions])


class Reducer:
    """Reduction of windows of actions to one action each."""

    def __init__(self, spec: BatchSpec) -> None:
        assert spec.reduction is not None
        self._reduction = spec.reduction
        num_dims = max(vector.size for vector in spec.actions)
        self._kinds = np.array([kind_codes(vector, num_dims) for vector in spec.actions])
        self._scale = np.ones((len(spec.actions), num_dims), np.float32)
        if spec.reduction == "sum":
            for scale, vector, rate in zip(self._scale, spec.actions, spec.rates, strict=True):
                scale[: vector.size] = sum_scale(vector, rate)

    def reduce(self, window: VectorWindow, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return one action for each window, float32 [b, ..., size], and its mask, bool."""
        shape = window.inside.shape[:-1]
        num_intervals = int(np.prod(shape[1:], dtype=np.int64))
        # Not -1, which arrays without dimensions would leave open.
        values, mask, inside = (
            array.reshape(len(members) * num_intervals, *array.shape[len(shape) :]) for array in window[:3]
        )
        if num_intervals > 1 or len(shape) > 1:
            # Repeated edges put the steps before an episode first; the reduction takes those of the episode.
            order = np.argsort(~inside, axis=1, kind="stable")
            values, mask = (np.take_along_axis(array, order[..., None], axis=1) for array in (values, mask))
        window_members = np.repeat(members, num_intervals)
        num_steps = inside.sum(axis=1)
        reduced = reduce_window(values, num_steps, self._reduction, self._kinds[window_members])
        reduced = reduced * self._scale[window_members]
        # A sum or mean needs all steps.
        valid = mask[:, 0] if self._reduction == "first" else mask.sum(axis=1) == num_steps[:, None]
        valid = valid & (num_steps > 0)[:, None] if len(shape) > 1 else valid
        size = values.shape[-1]
        return np.where(valid, reduced, 0).reshape(*shape, size), valid.reshape(*shape, size)
