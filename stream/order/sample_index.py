"""Views on an index by split, choices and samples per episode: the map from positions of an epoch to records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from stream.base.errors import ArgumentError
from stream.format.index import SplitIndex, open_index
from stream.order.choices import Choice
from stream.order.filters import SampleColumn
from stream.order.member import OpenMember, touched_shards
from stream.order.sample_run import SampleRun
from stream.order.shuffle import derive_keys, make_key, permute
from stream.order.splits import EpisodeRange
from stream.order.weights import SampleWeights

_LISTED = 5
"""Datasets that an error names."""


class SampleIndex:
    """The samples of all members of a mixture, by number.

    Position p of a member's epoch is sample p, or with ``samples_per_episode`` a sample of the member's episode
    ``p // samples_per_episode``, counted among those with samples. With weights it is the sample that
    ``stream.order.weights`` draws at p.

    Args:
        members: Members of the mixture.
        samples_per_episode: Count of samples drawn from an episode in an epoch, 0 for all. The draws cycle through the
            samples over the epochs; an episode with fewer samples gives some twice in an epoch.

    Attributes:
        members: Members of the mixture.
        splits: Splits that contain samples.
        sizes: Count of the samples of one epoch of each member, int64 [M].
        episodes: Episodes with samples of each split in ``splits``, int32, sorted.
        conditions: Count of the samples of each member that were left out, by condition; see ``SampleRun``.
        left_out: The same by reason: all conditions of ``filters`` together.
        weights: Weights of the samples of the members that have them.

    Raises:
        ArgumentError: A split or choice is wrong or leaves nothing; the message gives the counts of each such dataset.
        FormatError: An index is damaged.
    """

    def __init__(self, members: Sequence[OpenMember], *, samples_per_episode: int = 0) -> None:
        self.members = tuple(members)
        self.samples_per_episode = samples_per_episode
        self.splits: list[SplitIndex] = []
        self._names = [member.dataset.name for member in members]
        found = [self._segments(number) for number in range(len(members))]
        self.conditions = [dict(sum((Counter(each.left_out) for each in own), Counter())) for own in found]
        self.left_out = [_by_reason(counts) for counts in self.conditions]
        if empty := [number for number, own in enumerate(found) if not sum(each.num_samples for each in own)]:
            listed = "; ".join(_nothing_left(members[n], found[n], self.conditions[n]) for n in empty[:_LISTED])
            listed += f"; and {len(empty) - _LISTED} more" if len(empty) > _LISTED else ""
            raise ArgumentError(f"{listed}. Change split, window or choices, or leave the dataset out with weight 0")
        segments = [each for own in found for each in own if each.num_samples]
        lengths = [int(sum(each.run_lengths.sum() for each in own if each.num_samples)) for own in found]
        self.sizes = np.array(lengths, np.int64) * max(1, samples_per_episode)
        # Number of each member's first sample, or first episode if they are drawn by episode.
        self._begins = np.cumsum([0, *lengths[:-1]])
        runs = [len(segment.run_first) for segment in segments]
        self._ends = np.cumsum(np.concatenate([segment.run_lengths for segment in segments]))
        self._split_of = np.repeat(np.array([segment.split for segment in segments], np.int16), runs)
        is_chosen = [segment.chosen is not None for segment in segments]
        self._is_chosen = np.repeat(np.array(is_chosen, bool), runs)
        chosen = [np.zeros(0, np.int64) if segment.chosen is None else segment.chosen for segment in segments]
        self._chosen = np.concatenate(chosen)
        counts = np.array([len(rows) for rows in chosen], np.int64)
        # Index in ``_chosen`` of each segment's first sample, 0 for segments whose samples are rows.
        begin = np.where(is_chosen, np.cumsum(counts) - counts, 0)
        if samples_per_episode:
            firsts = [start + segment.episode_first for start, segment in zip(begin, segments, strict=True)]
            self._episode_first = np.concatenate(firsts)
            self._episode_samples = np.concatenate([segment.episode_samples for segment in segments])
        else:
            # Sample n of run r is row n + shift[r].
            run_first = np.concatenate([segment.run_first for segment in segments])
            self._shift = run_first + np.repeat(begin, runs) - np.concatenate([[0], self._ends[:-1]])
        of_splits = [[each.episodes for each in segments if each.split == number] for number in range(len(self.splits))]
        self.episodes = [np.unique(np.concatenate([np.zeros(0, np.int32), *own])) for own in of_splits]
        # First run of each segment, and the end of the last one; number of the sample after each segment.
        self._segment_runs = np.cumsum([0, *runs])
        self._segment_ends = self._ends[self._segment_runs[1:] - 1]
        self.weights = SampleWeights(self._read_weights)
        for number, member in enumerate(members):
            if member.weights is not None:
                first, size = int(self._begins[number]), int(self.sizes[number])
                self.weights.add(number, self._names[number], member.weights, begin=first, size=size)

    def most_labelled(self, member: int) -> SplitIndex:
        """Return the split of a member with the most labels, the first of several."""
        return max(self.splits_of(member), key=lambda split: len(split.labels))

    def splits_of(self, member: int) -> list[SplitIndex]:
        """Return the splits that contain samples of a member."""
        return [split for split in self.splits if split.member == member]

    def num_episodes(self, member: int) -> int:
        """Return the count of a member's episodes with samples."""
        return sum(len(own) for own, split in zip(self.episodes, self.splits, strict=True) if split.member == member)

    def locate(
        self, member: np.ndarray, epoch: np.ndarray, position: np.ndarray, *, seed: int, shuffle: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the records of samples.

        Args:
            member, epoch: Member and epoch of each sample, int64 [n].
            position: Position in the epoch, int64 [n], in [0, sizes[member]).
            seed: Seed for the choice among the samples of an episode.
            shuffle: False to take the samples of an episode in storage order.

        Returns:
            Number of the split in ``splits``, int16 [n], and row in its ``records`` or ``steps``, int64 [n].
        """
        per_episode = max(1, self.samples_per_episode)
        if self.weights:
            has = np.isin(member, self.weights.members)
            drawn = self.weights.draw(member[has], epoch[has], position[has], seed=seed)
            position = position.copy()
            position[has] = drawn
        number = self._begins[member] + position // per_episode
        run = np.searchsorted(self._ends, number, side="right")
        if self.samples_per_episode:
            samples = self._episode_samples[number]
            turn, place = np.divmod(epoch * per_episode + position % per_episode, samples)
            if shuffle:
                keys = np.array([make_key(seed, "pairs of an episode", name) for name in self._names], np.uint64)
                place = permute(place, samples, derive_keys(keys[member], number - self._begins[member], turn))
            row = self._episode_first[number] + place
        else:
            row = self._shift[run] + number
        chosen = self._is_chosen[run]
        if chosen.any():
            row[chosen] = self._chosen[row[chosen]]
        return self._split_of[run], row

    def samples(self, member: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the samples of a member in storage order: number of a split, and rows, as ``locate`` gives them."""
        begin = int(self._begins[member])
        for split, rows in self._pieces(np.arange(begin, begin + self.sizes[member])):
            yield split, np.asarray(rows)

    def _pieces(self, numbers: np.ndarray | range) -> Iterator[tuple[int, np.ndarray | slice]]:
        """Yield parts of ascending sample numbers: the split, and the rows of the samples."""
        if isinstance(numbers, range):
            cuts = np.clip(self._segment_ends - numbers.start, 0, len(numbers))
        else:
            cuts = np.searchsorted(numbers, self._segment_ends)
        begin = 0
        for segment in np.flatnonzero(np.diff(cuts, prepend=0)).tolist():
            own, begin = numbers[begin : cuts[segment]], int(cuts[segment])
            first, stop = self._segment_runs[segment : segment + 2].tolist()
            rows: np.ndarray | slice
            if stop - first > 1:
                own = np.asarray(own)
                rows = own + self._shift[first + np.searchsorted(self._ends[first:stop], own, side="right")]
            else:
                shift = int(self._shift[first])
                rows = slice(own.start + shift, own.stop + shift) if isinstance(own, range) else own + shift
                rows = self._chosen[rows] if self._is_chosen[first] else rows
            yield int(self._split_of[first]), rows

    def _read_weights(self, numbers: np.ndarray | range) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the weights of ascending sample numbers, and which samples have one; None if all have."""
        parts = [
            self._weight_columns[split].read(rows, check=isinstance(numbers, range))
            for split, rows in self._pieces(numbers)
        ]
        values = parts[0][0] if len(parts) == 1 else np.concatenate([each for each, _ in parts])
        if all(valid is None for _, valid in parts):
            return values, None
        return values, np.concatenate([np.ones(len(each), bool) if valid is None else valid for each, valid in parts])

    @cached_property
    def _weight_columns(self) -> dict[int, SampleColumn]:
        """The weights of each split of the members that have them."""
        weights = {number: self.members[split.member].weights for number, split in enumerate(self.splits)}
        return {
            number: SampleColumn(
                self.splits[number], column, self.members[self.splits[number].member].samples, what="sample_weights"
            )
            for number, column in weights.items()
            if column is not None
        }

    def _segments(self, number: int) -> list[SampleRun]:
        """Open the splits of a member, and return its samples."""
        member = self.members[number]
        opened: dict[str, int] = {}
        segments = []
        for episodes in _ranges(member):
            if episodes.split not in opened:
                opened[episodes.split] = len(self.splits)
                self.splits.append(open_index(member.dataset, episodes.split, member=number))
            split = opened[episodes.split]
            by_episode = self.samples_per_episode > 0
            segments.append(SampleRun(self.splits[split], split, episodes, member=member, by_episode=by_episode))
        if segments:
            for choice in member.choices:
                _check_known(choice, member.dataset.name, self.splits_of(number))
        return segments


def _ranges(member: OpenMember) -> list[EpisodeRange]:
    dataset, ranges = member.dataset, member.ranges
    if dataset.fetched is not None:
        here = set(dataset.fetched.shards)
        missing = [stem for episodes in ranges for stem in touched_shards(episodes, dataset) if stem not in here]
        if missing:
            raise ArgumentError(
                f"dataset {dataset.name}: split {member.entry.split!r} needs {len(missing):,} shards that were not "
                f"fetched, such as {missing[0]}; bring them from {dataset.fetched.source} with "
                "`pairstream fetch` and this mixture and split"
            )
    return [episodes for episodes in ranges if episodes.stop > episodes.start]


def _check_known(choice: Choice, dataset: str, splits: Sequence[SplitIndex]) -> None:
    """Raise ArgumentError if a choice names episodes, and the dataset has none of them."""
    unknown = choice.unknown_in(splits)
    if unknown and len(unknown) == len(getattr(choice, "ids", ())):
        known = splits[0].episodes.take_texts("episode_id", np.zeros(1, np.int64))[0] if splits[0].episodes.rows else ""
        raise ArgumentError(
            f"{choice.reason}: dataset {dataset} has none of the {len(unknown):,} episodes, such as "
            f"{unknown[0]!r:.120}; its ids look like {known!r}"
        )


def _by_reason(conditions: Mapping[str, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for label, count in conditions.items():
        found[label.partition(":")[0]] += count
    return dict(found)


def _nothing_left(member: OpenMember, segments: Sequence[SampleRun], left_out: Mapping[str, int]) -> str:
    dataset = member.dataset
    episodes = sum(each.stop - each.start for each in member.ranges)
    where = f"dataset {dataset.name}: split {member.entry.split!r}"
    if not episodes:
        found = ", ".join(f"{name} ({entry.episodes:,} episodes)" for name, entry in dataset.manifest.splits.items())
        return f"{where} leaves no episode; splits converted: {found}"
    longest = max(each.longest for each in segments)
    if set(left_out) == {"window"}:
        steps = sum(member.margins) + 1
        reason = f"the window takes {steps:,} steps, and the longest episode has {longest:,}"
    elif set(left_out) <= {"window", "actions"} and left_out:
        reason = f"none has the {sum(member.action_margins) + 1:,} steps that its actions take"
    elif left_out:
        reason = f"all samples are left out ({', '.join(f'{count:,} by {name}' for name, count in left_out.items())})"
    else:
        reason = "these are all too short for a pair, or damaged"
    return f"{where} has {episodes:,} episodes, but {reason}"
