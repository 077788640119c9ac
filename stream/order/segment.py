"""Samples of a range of episodes: the rows of the index that are samples, with runs of neighbours kept as ranges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stream.format.index import SplitIndex
from stream.format.names import HOLE, Layout
from stream.order.choices import Choice, Samples
from stream.order.splits import EpisodeRange
from stream.order.window import Window
from stream.storage.errors import FormatError

_DAMAGED = "the file is damaged. Check it with `python -m convert.verify`, or copy it again"

_CHUNK = 1 << 20
"""Samples that a choice looks at together."""


class Segment:
    """The samples of a range of episodes.

    A sample is a row of ``records`` in the layout ``pairs``, and a row of ``steps`` in the layout ``frames``.

    Args:
        index: Index of the split.
        split: Number of the split.
        episodes: Episodes.
        layout: Layout of the dataset.
        margins: Steps that a sample needs before and after t in its episode, for the layout ``frames``.
        choices: Choices among the samples.
        holes: Rows of ``steps`` that are no samples, as a stored frame is missing; sorted int64, or None.
        by_episode: True to count episodes, not samples.

    Attributes:
        split: Number of the split.
        units: Count of samples, or of episodes with samples if drawn by episode.
        chosen: Rows of the samples, int64, or None if the runs have all of them.
        run_first, run_units: First row and count of each run of neighbours, int64; one run for ``chosen``.
        episode_first: First sample of each episode, as a row or an index in ``chosen``, int64 [units]; only if drawn by
            episode.
        episode_samples: Count of samples of each episode, int64 [units]; only if drawn by episode.
        longest: Steps of the longest episode; only in the layout ``frames``.
        left_out: Count of the samples that were left out, by reason: ``window`` for steps too close to an edge of the
            episode, ``holes``, or the reason of a choice.

    Raises:
        FormatError: The index leads outside of its tables.
    """

    def __init__(
        self,
        index: SplitIndex,
        split: int,
        episodes: EpisodeRange,
        *,
        layout: Layout,
        margins: tuple[int, int],
        choices: Sequence[Choice],
        holes: np.ndarray | None,
        by_episode: bool,
    ) -> None:
        self.split = split
        self.left_out: dict[str, int] = {}
        self.longest = 0
        self.chosen: np.ndarray | None = None
        here = slice(episodes.start, episodes.stop)
        is_frames = layout == "frames"
        kind: Samples = "steps" if is_frames else "records"
        column, table = "first_steps_row" if is_frames else "first_record", index.table(kind)
        # First row of each episode, and the end of the last one.
        edges = np.append(index.episodes.array(column), len(table))[episodes.start : episodes.stop + 1].astype(np.int64)
        if edges[0] < 0 or edges[-1] > len(table) or (edges[1:] < edges[:-1]).any():
            raise FormatError(f"{index.episodes.path}: {column} leads outside of {len(table):,} {kind}; {_DAMAGED}")
        first, counts = edges[:-1], np.diff(edges)
        if is_frames:
            if (index.episodes.array("num_steps")[here] != counts).any():
                raise FormatError(f"{index.episodes.path}: num_steps contradicts {column}; {_DAMAGED}")
            steps, self.longest = int(counts.sum()), int(counts.max(initial=0))
            first, counts = first + margins[0], np.maximum(counts - sum(margins), 0)
            self.left_out["window"] = steps - int(counts.sum())
        if choices or holes is not None:
            # +1 where the samples of an episode begin, -1 where they end.
            change = np.zeros(int(edges[-1] - edges[0]) + 1, np.int8)
            some = counts > 0
            np.add.at(change, first[some] - edges[0], 1)
            np.add.at(change, (first + counts)[some] - edges[0], -1)
            keep = np.cumsum(change[:-1], dtype=np.int8).astype(bool)
            for choice in choices:
                self._leave_out(choice.reason, keep, _select(choice, index, int(edges[0]), int(edges[-1]), kind))
            if holes is not None:
                sound = np.ones(len(keep), bool)
                sound[holes[(holes >= edges[0]) & (holes < edges[-1])] - edges[0]] = False
                self._leave_out("holes", keep, sound)
            self.chosen = edges[0] + np.flatnonzero(keep)
            places = np.searchsorted(self.chosen, edges)
            first, counts = places[:-1], np.diff(places)
        self.units = int(counts.sum())
        if by_episode:
            self.episode_first, self.episode_samples = first[counts > 0], counts[counts > 0]
            self.units = len(self.episode_first)
            self.run_first, self.run_units = np.zeros(1, np.int64), np.array([self.units])
        elif self.chosen is not None:
            self.run_first, self.run_units = np.zeros(1, np.int64), np.array([self.units])
        else:
            first, counts = first[counts > 0], counts[counts > 0]
            begins = np.concatenate([[True], first[1:] != first[:-1] + counts[:-1]])[: len(first)]
            self.run_first = first[begins]
            self.run_units = np.add.reduceat(counts, np.flatnonzero(begins)) if len(counts) else counts

    def _leave_out(self, reason: str, keep: np.ndarray, chosen: np.ndarray) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + int((keep & ~chosen).sum())
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
