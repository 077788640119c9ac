"""Samples of a range of episodes: the rows of the index that are samples, with runs of neighbours kept as ranges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stream.base.errors import FormatError
from stream.format.index import SplitIndex
from stream.format.names import HOLE
from stream.order.choices import Choice, Samples
from stream.order.member import OpenMember
from stream.order.splits import EpisodeRange
from stream.order.window import Window

_DAMAGED = "the file is damaged. Check it with `pairstream verify`, or copy it again"

_CHUNK = 1 << 20
"""Samples that a choice looks at together."""


class SampleRun:
    """The samples of a range of episodes.

    A sample is a row of ``records`` in the layout ``pairs``, and a row of ``steps`` in the layout ``frames``.

    Args:
        index: Index of the split.
        split: Number of the split.
        episodes: Episodes.
        member: Member that the split belongs to.
        by_episode: True if samples are drawn from episodes in turn.

    Attributes:
        split: Number of the split.
        num_samples: Count of samples.
        chosen: Rows of the samples, int64, or None if the runs have all of them.
        run_first, run_lengths: First row and count of each run of neighbours, int64; one run for ``chosen``, and one
            run of all ``episodes`` if drawn by episode.
        episodes: Numbers of the episodes with samples, int32 [n].
        episode_first: First sample of each of them, as a row or an index in ``chosen``, int64 [n]; if drawn by episode.
        episode_samples: Count of samples of each of them, int64 [n]; if drawn by episode.
        longest: Steps of the longest episode; only in the layout ``frames``.
        left_out: Count of the samples that were left out, by condition: ``window`` for steps too close to an edge of
            the episode, ``actions`` for those that lack actions, ``holes``, or the label of a choice.

    Raises:
        FormatError: The index leads outside of its tables.
    """

    def __init__(
        self, index: SplitIndex, split: int, episodes: EpisodeRange, *, member: OpenMember, by_episode: bool
    ) -> None:
        self.split = split
        self.left_out: dict[str, int] = {}
        self.longest = 0
        self.chosen: np.ndarray | None = None
        here = slice(episodes.start, episodes.stop)
        kind = member.samples
        column, table = "first_steps_row" if kind == "steps" else "first_record", index.table(kind)
        # First row of each episode, and the end of the last one.
        edges = np.append(index.episodes.array(column), len(table))[episodes.start : episodes.stop + 1].astype(np.int64)
        if edges[0] < 0 or edges[-1] > len(table) or (edges[1:] < edges[:-1]).any():
            raise FormatError(f"{index.episodes.path}: {column} leads outside of {len(table):,} {kind}; {_DAMAGED}")
        first, counts = edges[:-1], np.diff(edges)
        if kind == "steps":
            if (index.episodes.array("num_steps")[here] != counts).any():
                raise FormatError(f"{index.episodes.path}: num_steps contradicts {column}; {_DAMAGED}")
            self.longest = int(counts.max(initial=0))
            first, counts = self._within("window", edges, first, counts, member.margins)
            if any(member.action_margins):
                first, counts = self._within("actions", edges, first, counts, member.action_margins)
        if member.selection or member.has_holes:
            # +1 where the samples of an episode begin, -1 where they end.
            change = np.zeros(int(edges[-1] - edges[0]) + 1, np.int8)
            some = counts > 0
            np.add.at(change, first[some] - edges[0], 1)
            np.add.at(change, (first + counts)[some] - edges[0], -1)
            keep = np.cumsum(change[:-1], dtype=np.int8).astype(bool)
            for choice in member.selection:
                self._leave_out(choice.label, keep, _select(choice, index, int(edges[0]), int(edges[-1]), kind))
            if member.has_holes:
                sound = np.ones(len(keep), bool)
                holes = steps_with_holes(index, member.window, member.cameras)
                sound[holes[(holes >= edges[0]) & (holes < edges[-1])] - edges[0]] = False
                self._leave_out("holes", keep, sound)
            self.chosen = edges[0] + np.flatnonzero(keep)
            places = np.searchsorted(self.chosen, edges)
            first, counts = places[:-1], np.diff(places)
        some = counts > 0
        self.num_samples = int(counts.sum())
        self.episodes = (episodes.start + np.flatnonzero(some)).astype(np.int32)
        first, counts = first[some], counts[some]
        self.run_first = np.zeros(1, np.int64)
        if by_episode:
            self.episode_first, self.episode_samples = first, counts
            self.run_lengths = np.array([len(first)])
        elif self.chosen is not None:
            self.run_lengths = np.array([self.num_samples])
        else:
            begins = np.concatenate([[True], first[1:] != first[:-1] + counts[:-1]])[: len(first)]
            self.run_first = first[begins]
            self.run_lengths = np.add.reduceat(counts, np.flatnonzero(begins)) if len(counts) else counts

    def _within(
        self, reason: str, edges: np.ndarray, first: np.ndarray, counts: np.ndarray, margins: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return first row and count of the samples of each episode that also lie within margins of its edges."""
        inner = np.maximum(first, edges[:-1] + margins[0])
        kept = np.maximum(np.minimum(first + counts, edges[1:] - margins[1]) - inner, 0)
        self.left_out[reason] = int(counts.sum() - kept.sum())
        return inner, kept

    def _leave_out(self, label: str, keep: np.ndarray, chosen: np.ndarray) -> None:
        self.left_out[label] = self.left_out.get(label, 0) + int((keep & ~chosen).sum())
        keep &= chosen


def _select(choice: Choice, index: SplitIndex, first: int, stop: int, kind: Samples) -> np.ndarray:
    """Return which samples a choice keeps, in memory for a million at a time beside the result."""
    starts = range(first, stop, _CHUNK)
    parts = [choice.select(index, slice(start, min(start + _CHUNK, stop)), kind) for start in starts]
    return np.concatenate([np.zeros(0, bool), *parts])


def steps_with_holes(index: SplitIndex, window: Window, cameras: Sequence[int]) -> np.ndarray:
    """Return the rows of ``steps`` whose window has a hole in a frame that is not random.

    Args:
        index: Index of a split in the layout ``frames``.
        window: Window of the dataset.
        cameras: Numbers of the cameras that are loaded.

    Returns:
        int64, sorted, without duplicates.
    """
    records = index.records
    holes = np.flatnonzero(records.array("num_bytes") == len(HOLE))
    holes = holes[np.isin(records.take("camera", holes), list(cameras))]
    rows, steps, episodes = (records.take(name, holes) for name in ("steps_row", "step", "episode"))
    num_steps = index.episodes.take("num_steps", episodes)
    found = [rows[:0]]
    if window.takes_last:
        # A sample of any step of the episode takes its last step.
        at = steps == num_steps - 1
        found += [np.arange(row - step, row + 1) for row, step in zip(rows[at], steps[at], strict=True)]
    for distance in window.fixed:
        inside = (steps - distance >= 0) & (steps - distance < num_steps)
        found.append(rows[inside] - distance)
    return np.unique(np.concatenate(found).astype(np.int64))
