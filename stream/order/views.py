"""Views on an index by split, filter and samples per episode: the map from positions of an epoch to records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from stream.format.catalog import Dataset
from stream.format.index import SplitIndex, open_index
from stream.format.names import TableKind
from stream.order.choices import Choice
from stream.order.mixture import Member
from stream.order.segment import Segment, steps_with_holes
from stream.order.shuffle import derive_keys, make_key, permute
from stream.order.splits import EpisodeRange, SplitError, resolve_split
from stream.order.window import Bounds, Window, resolve_windows
from stream.storage.errors import ArgumentError

_HOLES = ("corrupt_frame", "missing_camera")
"""Reasons in a manifest that mean holes in the layout ``frames``."""
_LISTED = 5
"""Datasets that an error names."""


class Views:
    """The samples of all members of a mixture, by number.

    Member m has ``units[m]`` units: pairs, or with ``samples_per_episode`` episodes with pairs. Position p of its epoch
    is in unit ``p // samples_per_episode``.

    Args:
        members: Members of the mixture.
        datasets: Dataset of each member.
        samples_per_episode: Count of pairs drawn from an episode in an epoch, 0 for all. The draws cycle through the
            pairs over the epochs; an episode with fewer pairs gives some twice in an epoch.
        choices: Choices among the samples of each dataset, by name.
        windows: Window of each member; by default the frames of a pair.
        cameras: Numbers of the stored cameras that are loaded, by member; by default the first one.
        bounds: ``inside`` takes the steps t with a complete window, ``clamp`` every step.

    Attributes:
        splits: Splits that contain samples.
        units: Count of the units of each member, int64 [M].
        left_out: Count of the samples of each member that were left out, by reason.

    Raises:
        ArgumentError: A split or choice is wrong or leaves nothing; the message gives the counts of each such dataset.
        FormatError: An index is damaged.
    """

    def __init__(
        self,
        members: Sequence[Member],
        datasets: Sequence[Dataset],
        *,
        samples_per_episode: int = 0,
        choices: Mapping[str, Sequence[Choice]] | None = None,
        windows: Sequence[Window] | None = None,
        cameras: Sequence[Sequence[int]] | None = None,
        bounds: Bounds = "inside",
    ) -> None:
        self.samples_per_episode = samples_per_episode
        self._choices = choices or {}
        self.splits: list[SplitIndex] = []
        fields = [dataset.fields for dataset in datasets]
        windows = windows or resolve_windows(None, fields, [dataset.name for dataset in datasets])
        cameras = cameras or [[0] for _ in datasets]
        self._names = [dataset.name for dataset in datasets]
        self._layouts = [each.layout for each in fields]
        self._with_holes = {
            number
            for number, dataset in enumerate(datasets)
            if self._layouts[number] == "frames"
            and bounds == "inside"
            and any(dataset.manifest.left_out.get(reason) for reason in _HOLES)
        }
        segments: list[Segment] = []
        self.left_out: list[dict[str, int]] = []
        empty: list[str] = []
        bases = [0]
        for number, (member, dataset) in enumerate(zip(members, datasets, strict=True)):
            ranges = _ranges(member, dataset)
            chosen_by = self._choices.get(dataset.name, ())
            opened: dict[str, int] = {}
            window, is_holed = windows[number], number in self._with_holes
            for episodes in ranges:
                if episodes.split not in opened:
                    opened[episodes.split] = len(self.splits)
                    self.splits.append(open_index(dataset, episodes.split, member=number))
                split = opened[episodes.split]
                index = self.splits[split]
                segments.append(
                    Segment(
                        index,
                        split,
                        episodes,
                        layout=self._layouts[number],
                        margins=window.margins if bounds == "inside" else (0, 0),
                        choices=chosen_by,
                        holes=steps_with_holes(index, window, cameras[number]) if is_holed else None,
                        by_episode=samples_per_episode > 0,
                    )
                )
            bases.append(sum(segment.units for segment in segments))
            here = self.splits_of(number)
            for choice in chosen_by if here else ():
                _check_known(choice, dataset, here)
            own = [segment for segment in segments if self.splits[segment.split].member == number]
            self.left_out.append(dict(sum((Counter(segment.left_out) for segment in own), Counter())))
            if bases[-1] == bases[-2]:
                reason = _why_empty(self.left_out[-1], window, longest=max((each.longest for each in own), default=0))
                empty.append(_nothing_left(member, dataset, ranges, reason))
        if empty:
            listed = "; ".join(empty[:_LISTED]) + (f"; and {len(empty) - _LISTED} more" if len(empty) > _LISTED else "")
            raise ArgumentError(f"{listed}. Change split, window or choices, or leave the dataset out with weight 0")
        segments = [segment for segment in segments if segment.units]
        self._bases = np.array(bases[:-1], np.int64)
        self.units = np.diff(np.array(bases, np.int64))
        runs = [len(segment.run_first) for segment in segments]
        run_first = np.concatenate([segment.run_first for segment in segments])
        self._ends = np.cumsum(np.concatenate([segment.run_units for segment in segments]))
        self._split_of = np.repeat(np.array([segment.split for segment in segments], np.int16), runs)
        is_chosen = [segment.chosen is not None for segment in segments]
        self._is_chosen = np.repeat(np.array(is_chosen, bool), runs)
        chosen = [np.zeros(0, np.int64) if segment.chosen is None else segment.chosen for segment in segments]
        self._chosen = np.concatenate(chosen)
        sizes = np.array([len(rows) for rows in chosen], np.int64)
        # Index in ``_chosen`` of each segment's first sample, 0 for segments whose samples are rows.
        begin = np.where(is_chosen, np.cumsum(sizes) - sizes, 0)
        if samples_per_episode:
            firsts = [start + segment.episode_first for start, segment in zip(begin, segments, strict=True)]
            self._episode_first = np.concatenate(firsts)
            self._episode_samples = np.concatenate([segment.episode_samples for segment in segments])
        else:
            # Unit u of run r is row u + shift[r].
            self._shift = run_first + np.repeat(begin, runs) - np.concatenate([[0], self._ends[:-1]])

    @property
    def sizes(self) -> np.ndarray:
        """Count of the samples of one epoch of each member, int64 [M]."""
        return self.units * max(1, self.samples_per_episode)

    def splits_of(self, member: int) -> list[SplitIndex]:
        """Return the splits that contain samples of a member."""
        return [split for split in self.splits if split.member == member]

    def used_columns(self, index: SplitIndex) -> Iterator[tuple[TableKind, str]]:
        """Yield the columns of a split that the views read."""
        if self._layouts[index.member] == "pairs":
            yield "episodes", "first_record"
        else:
            yield from (("episodes", name) for name in ("first_steps_row", "num_steps"))
        if index.member in self._with_holes:
            yield from (("records", name) for name in ("num_bytes", "camera", "steps_row", "step", "episode"))
        for choice in self._choices.get(index.dataset, ()):
            yield from choice.used_columns(index, "records" if self._layouts[index.member] == "pairs" else "steps")

    def locate(
        self, member: np.ndarray, epoch: np.ndarray, position: np.ndarray, *, seed: int, shuffle: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the records of samples.

        Args:
            member, epoch: Member and epoch of each sample, int64 [n].
            position: Position in the epoch, int64 [n], in [0, sizes[member]).
            seed: Seed for the choice among the pairs of an episode.
            shuffle: False to take the pairs of an episode in storage order.

        Returns:
            Number of the split in ``splits``, int16 [n], and row in its ``records`` or ``steps``, int64 [n].
        """
        per_episode = max(1, self.samples_per_episode)
        unit = self._bases[member] + position // per_episode
        run = np.searchsorted(self._ends, unit, side="right")
        if self.samples_per_episode:
            pairs = self._episode_samples[unit]
            turn, place = np.divmod(epoch * per_episode + position % per_episode, pairs)
            if shuffle:
                keys = np.array([make_key(seed, "pairs of an episode", name) for name in self._names], np.uint64)
                place = permute(place, pairs, derive_keys(keys[member], unit - self._bases[member], turn))
            row = self._episode_first[unit] + place
        else:
            row = self._shift[run] + unit
        chosen = self._is_chosen[run]
        if chosen.any():
            row[chosen] = self._chosen[row[chosen]]
        return self._split_of[run], row


def member_ranges(member: Member, dataset: Dataset) -> list[EpisodeRange]:
    """Return the episodes of a member's split; raise ArgumentError if the dataset has no such split."""
    try:
        return resolve_split(member.split, dataset.shard_lengths)
    except SplitError as error:
        raise ArgumentError(f"dataset {dataset.name}: {error}") from None


def _ranges(member: Member, dataset: Dataset) -> list[EpisodeRange]:
    ranges = member_ranges(member, dataset)
    if dataset.fetched is not None:
        here = set(dataset.fetched.shards)
        missing = [stem for episodes in ranges for stem in touched_shards(episodes, dataset) if stem not in here]
        if missing:
            raise ArgumentError(
                f"dataset {dataset.name}: split {member.split!r} needs {len(missing):,} shards that were not fetched, "
                f"such as {missing[0]}; bring them from {dataset.fetched.source} with `python -m stream.fetch` and "
                "this mixture and split"
            )
    return [episodes for episodes in ranges if episodes.stop > episodes.start]


def touched_shards(episodes: EpisodeRange, dataset: Dataset) -> list[str]:
    """Return the names of the shards with episodes of a range, in order."""
    shards = dataset.shards[episodes.split]
    ends = np.cumsum(shards.episodes)
    begins = ends - shards.episodes
    touched = np.maximum(begins, episodes.start) < np.minimum(ends, episodes.stop)
    return [shards.stem(number) for number in np.flatnonzero(touched).tolist()]


def _check_known(choice: Choice, dataset: Dataset, splits: Sequence[SplitIndex]) -> None:
    """Raise ArgumentError if a choice names episodes, and the dataset has none of them."""
    unknown = choice.unknown_in(splits)
    if unknown and len(unknown) == len(getattr(choice, "ids", ())):
        known = splits[0].episodes.take_texts("episode_id", np.zeros(1, np.int64))[0] if splits[0].episodes.rows else ""
        raise ArgumentError(
            f"{choice.reason}: dataset {dataset.name} has none of the {len(unknown):,} episodes, such as "
            f"{unknown[0]!r:.120}; its ids look like {known!r}"
        )


def _nothing_left(member: Member, dataset: Dataset, ranges: Sequence[EpisodeRange], reason: str) -> str:
    episodes = sum(episodes.stop - episodes.start for episodes in ranges)
    where = f"dataset {dataset.name}: split {member.split!r}"
    if episodes:
        return f"{where} has {episodes:,} episodes, but {reason}"
    converted = ", ".join(f"{name} ({entry.episodes:,} episodes)" for name, entry in dataset.manifest.splits.items())
    return f"{where} leaves no episode; splits converted: {converted}"


def _why_empty(left_out: Mapping[str, int], window: Window, *, longest: int) -> str:
    if set(left_out) == {"window"}:
        return f"the window takes {sum(window.margins) + 1:,} steps, and the longest episode has {longest:,}"
    if left_out:
        counts = ", ".join(f"{reason} {count:,}" for reason, count in left_out.items())
        return f"all samples are left out ({counts})"
    return "these are all too short for a pair, or damaged"
