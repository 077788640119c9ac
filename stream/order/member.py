"""A member of an open mixture: its dataset, and the choices that decide which of its steps are samples."""

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
from stream.order.mixture import Member
from stream.order.splits import EpisodeRange, SplitError, resolve_split
from stream.sample.choices import Choice, Samples, WithActions
from stream.sample.filters import used_by
from stream.sample.window import Window

_HOLES = ("corrupt_frame", "missing_camera")
"""Reasons in a manifest that mean holes in the layout ``frames``."""
_HOLE_COLUMNS = ("num_bytes", "camera", "steps_row", "step", "episode")
"""Columns of ``records`` that determine which frames exist."""
_IDENTITY: tuple[tuple[TableKind, str], ...] = (
    ("episodes", "episode_id"),
    ("episodes", "num_steps"),
    ("steps", "episode"),
    ("steps", "step"),
    ("records", "episode"),
    ("records", "step"),
)
"""Columns that identify the episode and step of a sample."""


@dataclass(frozen=True, eq=False)
class OpenMember:
    """A member of a mixture whose dataset is open.

    Attributes:
        entry: The mixture's entry.
        dataset: Dataset, with the member's name.
        window: Frames of a sample.
        cameras: Numbers of the stored cameras that are loaded.
        choices: Choices among the samples.
        action_margins: Count of steps at the start and at the end of an episode that lack actions, and are no samples.
        repeats_edges: Whether a window may leave the episode, and repeats its first or last frame there.
        weights: Column of the weights of samples, None if all are the same.
    """

    entry: Member
    dataset: Dataset
    window: Window
    cameras: Sequence[int] = (0,)
    choices: Sequence[Choice] = ()
    action_margins: tuple[int, int] = (0, 0)
    repeats_edges: bool = False
    weights: str | None = None

    @property
    def samples(self) -> Samples:
        """Table whose rows are the samples."""
        return "records" if self.dataset.fields.layout == "pairs" else "steps"

    @property
    def margins(self) -> tuple[int, int]:
        """Steps that the window needs before and after t; a stored pair needs none."""
        return (0, 0) if self.repeats_edges or self.samples == "records" else self.window.margins

    @property
    def has_holes(self) -> bool:
        """True if missing frames may exclude steps from the samples."""
        left_out = self.dataset.manifest.left_out
        needs_frames = self.samples == "steps" and not self.repeats_edges and bool(self.cameras)
        return needs_frames and any(left_out.get(reason) for reason in _HOLES)

    @property
    def selection(self) -> tuple[Choice, ...]:
        """The choices, and the margins of a member whose samples are pairs."""
        margins = (WithActions(*self.action_margins),) if any(self.action_margins) and self.samples == "records" else ()
        return (*margins, *self.choices)

    @property
    def ranges(self) -> list[EpisodeRange]:
        """Episodes of the member's split; raises ArgumentError if the dataset has no such split."""
        return split_ranges(self.entry.split, self.dataset)

    def used_columns(self, split_index: SplitIndex) -> Iterator[tuple[TableKind, str]]:
        """Yield the columns of a split that decide its samples and their order."""
        for columns in self._columns(split_index).values():
            yield from columns

    def _columns(self, split_index: SplitIndex) -> dict[str, list[tuple[TableKind, str]]]:
        """Return the columns that decide the samples of a split, by the argument that reads them."""
        names = ["first_record"] if self.samples == "records" else ["first_steps_row", "num_steps"]
        columns: dict[str, list[tuple[TableKind, str]]] = {"episodes": [("episodes", name) for name in names]}
        if self.has_holes:
            columns["holes"] = [("records", column_name) for column_name in _HOLE_COLUMNS]
        for choice in self.selection:
            reader = "where" if choice.reason == "where" else "episodes"
            columns.setdefault(reader, []).extend(choice.used_columns(split_index, self.samples))
        if self.weights is not None:
            columns["sample_weights"] = [*used_by(split_index, self.weights, self.samples, argument="sample_weights")]
        return columns

    def fingerprint(self, splits: Iterable[SplitIndex]) -> dict[str, Any]:
        """Return the definition of the samples in these splits of the member as JSON.

        Values have the form in which a caller gives them; ``data`` has hashes of the columns that decide the samples.
        """
        columns: dict[str, list[tuple[str, TableKind, str]]] = {}
        for split_index in splits:
            for reader, reader_columns in self._columns(split_index).items():
                columns.setdefault(reader, []).extend((split_index.split, *column) for column in reader_columns)
            columns["episodes"].extend((split_index.split, *column) for column in _IDENTITY)
        reasons: dict[str, list[str]] = {}
        for choice in self.choices:
            reasons.setdefault(choice.reason, []).append(choice.fingerprint)
        fields: dict[str, Any] = {
            "dataset": self.dataset.manifest.dataset,
            "version": self.dataset.version,
            "split": self.entry.split,
            **{reason: sorted(fingerprints) for reason, fingerprints in reasons.items()},
            "margins": list(self.margins),
            "action_margins": list(self.action_margins),
        }
        if self.weights is not None:
            fields["sample_weights"] = self.weights
        if self.has_holes:
            window = self.window
            fields["holes"] = {"cameras": list(self.cameras), "frames": window.fixed, "last": window.takes_last}
        fields["data"] = {reader: self.dataset.fingerprint(names) for reader, names in columns.items()}
        return fields


def split_ranges(expression: str, dataset: Dataset) -> list[EpisodeRange]:
    """Return the episodes of a split expression.

    Raises:
        ArgumentError: The dataset has no such split, or terms of the expression overlap, which would give the same
            samples twice.
    """
    try:
        ranges = resolve_split(expression, dataset.shard_lengths)
    except SplitError as error:
        raise ArgumentError(f"dataset {dataset.name}: {error}") from None
    filled_ranges = [episodes for episodes in ranges if episodes.start < episodes.stop]
    for first, second in pairwise(sorted(filled_ranges, key=lambda episodes: (episodes.split, episodes.start))):
        if first.split == second.split and second.start < first.stop:
            last = min(first.stop, second.stop) - 1
            raise ArgumentError(
                f"dataset {dataset.name}: split={expression!r:.200} names episodes {second.start} to {last} of "
                f"{first.split!r} twice, so a pass would have their samples twice; take terms that do not overlap, or "
                "a second member with a weight to draw some episodes more often"
            )
    return ranges


def touched_shards(episodes: EpisodeRange, dataset: Dataset) -> list[str]:
    """Return the names of the shards with episodes of a range, in order."""
    shards = dataset.shards[episodes.split]
    shard_ends = np.cumsum(shards.episodes)
    shard_begins = shard_ends - shards.episodes
    is_touched = np.maximum(shard_begins, episodes.start) < np.minimum(shard_ends, episodes.stop)
    return [shards.stem(shard_number) for shard_number in np.flatnonzero(is_touched).tolist()]
