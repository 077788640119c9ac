"""Samples of a range of episodes: the rows of the index that are samples, as stretches of consecutive rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stream.base.errors import FormatError
from stream.format.index import SplitIndex
from stream.format.names import HOLE
from stream.order.member import OpenMember
from stream.order.splits import EpisodeRange
from stream.sample.choices import Choice, Samples
from stream.sample.window import Window

_DAMAGED = "the file is damaged. Check it with `pairstream verify`, or copy it again"

_CHUNK = 1 << 20
"""Samples that a choice looks at together."""


class SampleRun:
    """The samples of a range of episodes.

    A sample is a row of ``records`` in the layout ``pairs``, and a row of ``steps`` in the layout ``frames``.

    Args:
        split_index: Index of the split.
        split: Number of the split.
        episodes: Episodes.
        member: Member that the split belongs to.
        by_episode: True if samples are drawn from episodes in turn.

    Attributes:
        split: Number of the split.
        num_samples: Count of samples.
        chosen: Rows of the samples, int64, or None if the stretches have all of them.
        stretch_firsts: First row of each stretch of consecutive rows, int64; one stretch for ``chosen``, and one of all
            ``episodes`` if drawn by episode.
        stretch_lengths: Count of rows of each stretch, int64.
        episodes: Numbers of the episodes with samples, int32 [n].
        episode_first: First sample of each episode, as a row or an index in ``chosen``, int64 [n]; if drawn by episode.
        episode_samples: Count of samples of each episode, int64 [n]; if drawn by episode.
        longest: Steps of the longest episode; only in the layout ``frames``.
        left_out: Count of the samples that were left out, by condition: ``window`` for steps too close to an edge of
            the episode, ``actions`` for steps that lack actions, ``holes``, or the label of a choice.

    Raises:
        FormatError: The index leads outside of its tables.
    """

    def __init__(
        self, split_index: SplitIndex, split: int, episodes: EpisodeRange, *, member: OpenMember, by_episode: bool
    ) -> None:
        self.split = split
        self.left_out: dict[str, int] = {}
        self.longest = 0
        self.chosen: np.ndarray | None = None
        edges = _episode_edges(split_index, episodes, member.samples)
        first, counts = edges[:-1], np.diff(edges)
        if member.samples == "steps":
            self.longest = int(counts.max(initial=0))
            first, counts = self._within("window", edges, first, counts, member.margins)
            if any(member.action_margins):
                first, counts = self._within("actions", edges, first, counts, member.action_margins)
        if member.selection or member.has_holes:
            self.chosen = self._choose(split_index, edges, first, counts, member)
            chosen_edges = np.searchsorted(self.chosen, edges)
            first, counts = chosen_edges[:-1], np.diff(chosen_edges)
        has_samples = counts > 0
        self.num_samples = int(counts.sum())
        self.episodes = (episodes.start + np.flatnonzero(has_samples)).astype(np.int32)
        first, counts = first[has_samples], counts[has_samples]
        self.stretch_firsts = np.zeros(1, np.int64)
        if by_episode:
            self.episode_first, self.episode_samples = first, counts
            self.stretch_lengths = np.array([len(first)])
        elif self.chosen is not None:
            self.stretch_lengths = np.array([self.num_samples])
        else:
            # Episodes whose samples touch share a stretch; without margins all episodes of a range are one stretch.
            begins = np.concatenate([[True], first[1:] != first[:-1] + counts[:-1]])[: len(first)]
            self.stretch_firsts = first[begins]
            self.stretch_lengths = np.add.reduceat(counts, np.flatnonzero(begins)) if len(counts) else counts

    def _within(
        self, reason: str, edges: np.ndarray, first: np.ndarray, counts: np.ndarray, margins: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return first row and count of the samples of each episode that also lie within margins of its edges."""
        inner_first = np.maximum(first, edges[:-1] + margins[0])
        inner_counts = np.maximum(np.minimum(first + counts, edges[1:] - margins[1]) - inner_first, 0)
        self.left_out[reason] = int(counts.sum() - inner_counts.sum())
        return inner_first, inner_counts

    def _choose(
        self, split_index: SplitIndex, edges: np.ndarray, first: np.ndarray, counts: np.ndarray, member: OpenMember
    ) -> np.ndarray:
        """Return the rows that are samples of an episode and that all choices keep, int64."""
        first_row, stop_row = int(edges[0]), int(edges[-1])
        # Rows that are samples so far: the running sum of +1 at the first sample of each episode, -1 after its last.
        change = np.zeros(stop_row - first_row + 1, np.int8)
        has_samples = counts > 0
        np.add.at(change, first[has_samples] - first_row, 1)
        np.add.at(change, (first + counts)[has_samples] - first_row, -1)
        is_kept = np.cumsum(change[:-1], dtype=np.int8).astype(bool)

        for choice in member.selection:
            self._leave_out(choice.label, is_kept, _select(choice, split_index, first_row, stop_row, member.samples))
        if member.has_holes:
            incomplete = steps_with_missing_frames(split_index, member.window, member.cameras)
            is_complete = np.ones(len(is_kept), bool)
            is_complete[incomplete[(incomplete >= first_row) & (incomplete < stop_row)] - first_row] = False
            self._leave_out("holes", is_kept, is_complete)

        return first_row + np.flatnonzero(is_kept)

    def _leave_out(self, label: str, is_kept: np.ndarray, is_chosen: np.ndarray) -> None:
        self.left_out[label] = self.left_out.get(label, 0) + int((is_kept & ~is_chosen).sum())
        is_kept &= is_chosen


def _episode_edges(split_index: SplitIndex, episodes: EpisodeRange, samples: Samples) -> np.ndarray:
    """Return the first row of each episode of a range, and the end of the last one, int64 [n + 1].

    Raises:
        FormatError: The rows lead outside of the table, or contradict ``num_steps``.
    """
    column, num_rows = "first_steps_row" if samples == "steps" else "first_record", len(split_index.table(samples))
    first_rows = np.append(split_index.episodes.array(column), num_rows)
    edges = first_rows[episodes.start : episodes.stop + 1].astype(np.int64)
    path = split_index.episodes.path
    if edges[0] < 0 or edges[-1] > num_rows or (edges[1:] < edges[:-1]).any():
        raise FormatError(f"{path}: {column} leads outside of {num_rows:,} {samples}; {_DAMAGED}")
    if samples == "steps":
        num_steps = split_index.episodes.array("num_steps")[episodes.start : episodes.stop]
        if (num_steps != np.diff(edges)).any():
            raise FormatError(f"{path}: num_steps contradicts {column}; {_DAMAGED}")
    return edges


def _select(choice: Choice, split_index: SplitIndex, first_row: int, stop_row: int, samples: Samples) -> np.ndarray:
    """Return which samples a choice keeps, bool; memory holds the result, and the columns of a million samples."""
    starts = range(first_row, stop_row, _CHUNK)
    parts = [choice.select(split_index, slice(start, min(start + _CHUNK, stop_row)), samples) for start in starts]
    return np.concatenate([np.zeros(0, bool), *parts])


def steps_with_missing_frames(split_index: SplitIndex, window: Window, cameras: Sequence[int]) -> np.ndarray:
    """Return the rows of ``steps`` whose window has a missing frame that is not random.

    Args:
        split_index: Index of a split in the layout ``frames``.
        window: Window of the dataset.
        cameras: Numbers of the cameras that are loaded.

    Returns:
        int64, sorted, without duplicates.
    """
    records = split_index.records
    missing = np.flatnonzero(records.array("num_bytes") == len(HOLE))
    missing = missing[np.isin(records.take("camera", missing), list(cameras))]
    rows, steps, episodes = (records.take(column, missing) for column in ("steps_row", "step", "episode"))
    num_steps = split_index.episodes.take("num_steps", episodes)
    sample_rows = [rows[:0]]
    if window.takes_last:
        # Every step of an episode takes its last step: from the row of step 0 to that of the missing frame.
        is_last = steps == num_steps - 1
        episode_rows = zip(rows[is_last], steps[is_last], strict=True)
        sample_rows += [np.arange(last_row - last_step, last_row + 1) for last_row, last_step in episode_rows]
    for distance in window.fixed:
        # The frame at step s is taken by the sample at t = s - distance.
        sample_steps = steps - distance
        is_inside = (sample_steps >= 0) & (sample_steps < num_steps)
        sample_rows.append(rows[is_inside] - distance)
    return np.unique(np.concatenate(sample_rows).astype(np.int64))
