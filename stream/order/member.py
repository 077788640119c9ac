"""A member of an open mixture: its dataset, and what decides which of its steps are samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from stream.base.errors import ArgumentError
from stream.format.catalog import Dataset
from stream.format.index import SplitIndex
from stream.format.names import TableKind
from stream.order.choices import Choice, Samples, WithActions
from stream.order.filters import used_by
from stream.order.mixture import Member
from stream.order.splits import EpisodeRange, SplitError, resolve_split
from stream.order.window import Window

_HOLES = ("corrupt_frame", "missing_camera")
"""Reasons in a manifest that mean holes in the layout ``frames``."""
_HOLE_COLUMNS = ("num_bytes", "camera", "steps_row", "step", "episode")
"""Columns of ``records`` that say which frames exist."""
_IDENTITY: tuple[tuple[TableKind, str], ...] = (
    ("episodes", "episode_id"),
    ("episodes", "num_steps"),
    ("steps", "episode"),
    ("steps", "step"),
    ("records", "episode"),
    ("records", "step"),
)
"""Columns that say which episode and step a sample is."""


@dataclass(frozen=True, eq=False)
class OpenMember:
    """A member of a mixture whose dataset is open.

    Attributes:
        entry: The mixture's entry.
        dataset: Dataset, with the member's name.
        window: Frames of a sample.
        cameras: Numbers of the stored cameras that are loaded.
        choices: Choices among the samples.
        action_margins: Steps at the begin and the end of an episode that lack actions, and are no samples.
        clamps: Whether the window may leave the episode.
        weights: Column of the weights of samples, None if all are the same.
    """

    entry: Member
    dataset: Dataset
    window: Window
    cameras: Sequence[int] = (0,)
    choices: Sequence[Choice] = ()
    action_margins: tuple[int, int] = (0, 0)
    clamps: bool = False
    weights: str | None = None

    @property
    def samples(self) -> Samples:
        """Table whose rows are the samples."""
        return "records" if self.dataset.fields.layout == "pairs" else "steps"

    @property
    def margins(self) -> tuple[int, int]:
        """Steps that the window needs before and after t; a pair has its own."""
        return (0, 0) if self.clamps or self.samples == "records" else self.window.margins

    @property
    def has_holes(self) -> bool:
        """True if steps may be no samples, as stored frames are missing."""
        left_out = self.dataset.manifest.left_out
        return self.samples == "steps" and not self.clamps and any(left_out.get(reason) for reason in _HOLES)

    @property
    def selection(self) -> tuple[Choice, ...]:
        """The choices, and the margins of a member whose samples are pairs."""
        margins = (WithActions(*self.action_margins),) if any(self.action_margins) and self.samples == "records" else ()
        return (*margins, *self.choices)

    @property
    def ranges(self) -> list[EpisodeRange]:
        """Episodes of the member's split; raises ArgumentError if the dataset has no such split."""
        return split_ranges(self.entry.split, self.dataset)

    def used_columns(self, index: SplitIndex) -> Iterator[tuple[TableKind, str]]:
        """Yield the columns of a split that decide which samples it has, and in which order."""
        for columns in self._columns(index).values():
            yield from columns

    def _columns(self, index: SplitIndex) -> dict[str, list[tuple[TableKind, str]]]:
        """Return the columns that decide about the samples of a split, by what reads them."""
        named = ["first_record"] if self.samples == "records" else ["first_steps_row", "num_steps"]
        columns: dict[str, list[tuple[TableKind, str]]] = {"episodes": [("episodes", name) for name in named]}
        if self.has_holes:
            columns["holes"] = [("records", name) for name in _HOLE_COLUMNS]
        for choice in self.selection:
            reader = "filters" if choice.reason == "filters" else "episodes"
            columns.setdefault(reader, []).extend(choice.used_columns(index, self.samples))
        if self.weights is not None:
            columns["sample_weights"] = [*used_by(index, self.weights, self.samples, what="sample_weights")]
        return columns

    def fingerprint(self, splits: Iterable[SplitIndex]) -> dict[str, Any]:
        """Return what defines the samples in these splits of the member, and nothing else, as JSON.

        Values have the form in which a caller gives them; ``data`` has hashes of the columns that decide.
        """
        columns: dict[str, list[tuple[str, TableKind, str]]] = {}
        for split in splits:
            for reader, read in self._columns(split).items():
                columns.setdefault(reader, []).extend((split.split, *column) for column in read)
            columns["episodes"].extend((split.split, *column) for column in _IDENTITY)
        reasons: dict[str, list[str]] = {}
        for choice in self.choices:
            reasons.setdefault(choice.reason, []).append(choice.fingerprint)
        fields: dict[str, Any] = {
            "dataset": self.dataset.manifest.dataset,
            "version": self.dataset.version,
            "split": self.entry.split,
            **{reason: sorted(texts) for reason, texts in reasons.items()},
            "margins": list(self.margins),
            "action_margins": list(self.action_margins),
        }
        if self.weights is not None:
            fields["sample_weights"] = self.weights
        if self.has_holes:
            window = self.window
            fields["holes"] = {"cameras": list(self.cameras), "frames": window.fixed, "last": window.takes_last}
        fields["data"] = {reader: self.dataset.fingerprint(read) for reader, read in columns.items()}
        return fields


def split_ranges(split: str, dataset: Dataset) -> list[EpisodeRange]:
    """Return the episodes of a split expression.

    Raises:
        ArgumentError: The dataset has no such split, or terms of the expression overlap, which would give the same
            samples twice.
    """
    try:
        ranges = resolve_split(split, dataset.shard_lengths)
    except SplitError as error:
        raise ArgumentError(f"dataset {dataset.name}: {error}") from None
    in_order = sorted((each for each in ranges if each.start < each.stop), key=lambda each: (each.split, each.start))
    for first, second in pairwise(in_order):
        if first.split == second.split and second.start < first.stop:
            last = min(first.stop, second.stop) - 1
            raise ArgumentError(
                f"dataset {dataset.name}: split={split!r:.200} names episodes {second.start} to {last} of "
                f"{first.split!r} twice, so a pass would have their samples twice; take terms that do not overlap, or "
                "a second member with a weight to draw some episodes more often"
            )
    return ranges


def touched_shards(episodes: EpisodeRange, dataset: Dataset) -> list[str]:
    """Return the names of the shards with episodes of a range, in order."""
    shards = dataset.shards[episodes.split]
    ends = np.cumsum(shards.episodes)
    begins = ends - shards.episodes
    touched = np.maximum(begins, episodes.start) < np.minimum(ends, episodes.stop)
    return [shards.stem(number) for number in np.flatnonzero(touched).tolist()]
