"""Samples of a mixture by number: the map from positions of an epoch to records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from stream.base.errors import ArgumentError
from stream.base.random_numbers import derive_keys, make_key
from stream.format.index import SplitIndex, open_index
from stream.order.member import OpenMember, touched_shards
from stream.order.sample_run import SampleRun
from stream.order.shuffle import permute
from stream.order.splits import EpisodeRange
from stream.order.weights import SampleWeights
from stream.sample.choices import Choice
from stream.sample.filters import SampleColumn

_MOST_LISTED = 5
"""Datasets named by an error."""


class SampleIndex:
    """The samples of all members of a mixture, by number.

    Position p of a member's epoch is sample p, or with ``samples_per_episode`` a sample of the member's episode
    ``p // samples_per_episode``, counted among the episodes with samples. With weights it is the sample that
    ``stream.order.weights`` draws at p.

    Args:
        members: Members of the mixture.
        samples_per_episode: Count of samples drawn from an episode in an epoch, 0 for all. The draws cycle through the
            samples over the epochs. An episode with fewer samples gives some of them twice in an epoch.

    Attributes:
        members: Members of the mixture.
        splits: Splits that contain samples.
        sizes: Count of the samples of one epoch of each member, int64 [M].
        episodes: Episodes with samples of each split in ``splits``, int32, sorted.
        conditions: Count of the samples of each member that were left out, by condition; see ``SampleRun``.
        left_out: The same by reason: all conditions of ``where`` together.
        weights: Weights of the samples of the members that have them.

    Raises:
        ArgumentError: A split or choice is wrong or leaves nothing. The message gives the counts of each dataset.
        FormatError: An index is damaged.
    """

    def __init__(self, members: Sequence[OpenMember], *, samples_per_episode: int = 0) -> None:
        self.members = tuple(members)
        self.samples_per_episode = samples_per_episode
        self.splits: list[SplitIndex] = []
        self._names = [member.dataset.name for member in members]
        runs_by_member = [self._open_runs(number) for number in range(len(members))]
        self.conditions = [dict(sum((Counter(run.left_out) for run in runs), Counter())) for runs in runs_by_member]
        self.left_out = [_by_reason(conditions) for conditions in self.conditions]
        self._check_samples(runs_by_member)
        lengths = [sum(int(run.stretch_lengths.sum()) for run in runs) for runs in runs_by_member]
        self.sizes = np.array(lengths, np.int64) * max(1, samples_per_episode)
        # Number of each member's first sample, or of its first episode if samples are drawn by episode.
        self._member_first = np.cumsum([0, *lengths[:-1]])
        sample_runs = [run for runs in runs_by_member for run in runs if run.num_samples]
        self._join_runs(sample_runs)
        self.episodes = []
        for split_number in range(len(self.splits)):
            episodes = [run.episodes for run in sample_runs if run.split == split_number]
            self.episodes.append(np.unique(np.concatenate([np.zeros(0, np.int32), *episodes])))
        self.weights = SampleWeights(self._read_weights)
        for number, member in enumerate(members):
            if member.weights is not None:
                first, size = int(self._member_first[number]), int(self.sizes[number])
                self.weights.add(number, self._names[number], member.weights, first_sample=first, num_samples=size)

    def _check_samples(self, runs_by_member: Sequence[Sequence[SampleRun]]) -> None:
        """Raise ArgumentError if members have no samples; names the first of them, with their counts."""
        reasons = [
            _why_empty(member, runs, conditions)
            for member, runs, conditions in zip(self.members, runs_by_member, self.conditions, strict=True)
            if not any(run.num_samples for run in runs)
        ]
        if reasons:
            listed = "; ".join(reasons[:_MOST_LISTED])
            listed += f"; and {len(reasons) - _MOST_LISTED} more" if len(reasons) > _MOST_LISTED else ""
            raise ArgumentError(f"{listed}. Change split, window or choices, or leave the dataset out with weight 0")

    def _join_runs(self, sample_runs: Sequence[SampleRun]) -> None:
        """Lay the stretches of all runs one after the other, so that one search finds the row of a sample number."""
        num_stretches = [len(run.stretch_firsts) for run in sample_runs]
        self._stretch_ends = np.cumsum(np.concatenate([run.stretch_lengths for run in sample_runs]))
        self._stretch_split = np.repeat(np.array([run.split for run in sample_runs], np.int16), num_stretches)
        # First stretch of each run, and the end of the last run; number of the sample after each run.
        self._run_stretches = np.cumsum([0, *num_stretches])
        self._run_ends = self._stretch_ends[self._run_stretches[1:] - 1]

        # The samples of a chosen run are indices into the rows in ``_chosen``; those of any other run are rows.
        has_chosen = [run.chosen is not None for run in sample_runs]
        self._is_chosen = np.repeat(np.array(has_chosen, bool), num_stretches)
        chosen_rows = [np.zeros(0, np.int64) if run.chosen is None else run.chosen for run in sample_runs]
        self._chosen = np.concatenate(chosen_rows)
        num_chosen = np.array([len(rows) for rows in chosen_rows], np.int64)
        chosen_begins = np.where(has_chosen, np.cumsum(num_chosen) - num_chosen, 0)

        if self.samples_per_episode:
            # A number names an episode, whose samples follow each other from the first.
            firsts = [begin + run.episode_first for begin, run in zip(chosen_begins, sample_runs, strict=True)]
            self._episode_first = np.concatenate(firsts)
            self._episode_samples = np.concatenate([run.episode_samples for run in sample_runs])
        else:
            # Sample n of stretch s is row, or index into ``_chosen``, n + shift[s].
            stretch_rows = np.concatenate([run.stretch_firsts for run in sample_runs])
            stretch_numbers = np.concatenate([[0], self._stretch_ends[:-1]])
            self._shift = stretch_rows + np.repeat(chosen_begins, num_stretches) - stretch_numbers

    def most_labelled(self, member: int) -> SplitIndex:
        """Return the split of a member with the most labels, the first of several."""
        return max(self.splits_of(member), key=lambda split: len(split.labels))

    def splits_of(self, member: int) -> list[SplitIndex]:
        """Return the splits that contain samples of a member."""
        return [split for split in self.splits if split.member == member]

    def num_episodes(self, member: int) -> int:
        """Return the count of a member's episodes with samples."""
        splits = zip(self.episodes, self.splits, strict=True)
        return sum(len(episodes) for episodes, split in splits if split.member == member)

    def locate(
        self, member: np.ndarray, epoch: np.ndarray, position: np.ndarray, *, seed: int, shuffle: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the records of samples.

        Args:
            member: Member of each sample, int64 [n].
            epoch: Epoch of each sample, int64 [n].
            position: Position in the epoch, int64 [n], in [0, sizes[member]).
            seed: Seed for the choice among the samples of an episode.
            shuffle: False to take the samples of an episode in storage order.

        Returns:
            Number of the split in ``splits``, int16 [n], and row in its ``records`` or ``steps``, int64 [n].
        """
        per_episode = max(1, self.samples_per_episode)
        if self.weights:
            is_weighted = np.isin(member, self.weights.members)
            drawn = self.weights.draw(member[is_weighted], epoch[is_weighted], position[is_weighted], seed=seed)
            position = position.copy()
            position[is_weighted] = drawn
        # The number of a sample, or of an episode if samples are drawn by episode, among those of all members.
        number = self._member_first[member] + position // per_episode
        stretch = np.searchsorted(self._stretch_ends, number, side="right")
        if self.samples_per_episode:
            # Draw d of an episode of s samples is sample d mod s of cycle d // s; each cycle has a new order.
            num_samples = self._episode_samples[number]
            cycle, sample_rank = np.divmod(epoch * per_episode + position % per_episode, num_samples)
            if shuffle:
                seeds = np.array([make_key(seed, "pairs of an episode", name) for name in self._names], np.uint64)
                keys = derive_keys(seeds[member], number - self._member_first[member], cycle)
                sample_rank = permute(sample_rank, num_samples, keys)
            row = self._episode_first[number] + sample_rank
        else:
            row = self._shift[stretch] + number
        is_chosen = self._is_chosen[stretch]
        if is_chosen.any():
            row[is_chosen] = self._chosen[row[is_chosen]]
        return self._stretch_split[stretch], row

    def samples(self, member: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the samples of a member in storage order: number of a split, and rows, as ``locate`` gives them."""
        first_sample = int(self._member_first[member])
        for split, rows in self._rows_by_run(np.arange(first_sample, first_sample + self.sizes[member])):
            yield split, np.asarray(rows)

    def _rows_by_run(self, numbers: np.ndarray | range) -> Iterator[tuple[int, np.ndarray | slice]]:
        """Yield the split and the rows of ascending sample numbers, run by run."""
        if isinstance(numbers, range):
            cuts = np.clip(self._run_ends - numbers.start, 0, len(numbers))
        else:
            cuts = np.searchsorted(numbers, self._run_ends)
        cut_begin = 0
        for run in np.flatnonzero(np.diff(cuts, prepend=0)).tolist():
            run_numbers, cut_begin = numbers[cut_begin : cuts[run]], int(cuts[run])
            first_stretch, stop_stretch = self._run_stretches[run : run + 2].tolist()
            rows: np.ndarray | slice
            if stop_stretch - first_stretch > 1:
                run_numbers = np.asarray(run_numbers)
                stretch_ends = self._stretch_ends[first_stretch:stop_stretch]
                stretches = first_stretch + np.searchsorted(stretch_ends, run_numbers, side="right")
                rows = run_numbers + self._shift[stretches]
            else:
                shift = int(self._shift[first_stretch])
                if isinstance(run_numbers, range):
                    # A slice reads a part of a column without a copy.
                    rows = slice(run_numbers.start + shift, run_numbers.stop + shift)
                else:
                    rows = run_numbers + shift
                rows = self._chosen[rows] if self._is_chosen[first_stretch] else rows
            yield int(self._stretch_split[first_stretch]), rows

    def _read_weights(self, numbers: np.ndarray | range) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the weights of ascending sample numbers, and which samples have one; None if all have."""
        is_range = isinstance(numbers, range)
        parts = [self._weight_columns[split].read(rows, check=is_range) for split, rows in self._rows_by_run(numbers)]
        weights = parts[0][0] if len(parts) == 1 else np.concatenate([values for values, _ in parts])
        if all(valid is None for _, valid in parts):
            return weights, None
        return weights, np.concatenate([np.ones(len(part), bool) if valid is None else valid for part, valid in parts])

    @cached_property
    def _weight_columns(self) -> dict[int, SampleColumn]:
        """Column of the weights by number of the split, for the members that have weights."""
        columns = {}
        for split_number, split in enumerate(self.splits):
            member = self.members[split.member]
            if member.weights is not None:
                columns[split_number] = SampleColumn(split, member.weights, member.samples, argument="sample_weights")
        return columns

    def _open_runs(self, number: int) -> list[SampleRun]:
        """Open the splits of a member, and return its samples."""
        member = self.members[number]
        split_numbers: dict[str, int] = {}
        sample_runs = []
        for episodes in _ranges(member):
            if episodes.split not in split_numbers:
                split_numbers[episodes.split] = len(self.splits)
                self.splits.append(open_index(member.dataset, episodes.split, member=number))
            split = split_numbers[episodes.split]
            by_episode = self.samples_per_episode > 0
            sample_runs.append(SampleRun(self.splits[split], split, episodes, member=member, by_episode=by_episode))
        if sample_runs:
            for choice in member.choices:
                _check_known(choice, member.dataset.name, self.splits_of(number))
        return sample_runs


def _ranges(member: OpenMember) -> list[EpisodeRange]:
    """Return the ranges of a member that have episodes; raise ArgumentError if their shards were not fetched."""
    dataset, ranges = member.dataset, member.ranges
    if dataset.fetched is not None:
        fetched = set(dataset.fetched.shards)
        missing = [stem for episodes in ranges for stem in touched_shards(episodes, dataset) if stem not in fetched]
        if missing:
            shards = missing[0] if len(missing) == 1 else f"{missing[0]} and {len(missing) - 1:,} more shards"
            raise ArgumentError(
                f"dataset {dataset.name}: split {member.entry.split!r} needs {shards}, not fetched yet; fetch from "
                f"{dataset.fetched.source} with `pairstream fetch` and this mixture and split"
            )
    return [episodes for episodes in ranges if episodes.stop > episodes.start]


def _check_known(choice: Choice, dataset: str, splits: Sequence[SplitIndex]) -> None:
    """Raise ArgumentError if a choice names episodes, and the dataset has none of them."""
    unknown = choice.unknown_in(splits)
    if unknown and len(unknown) == len(getattr(choice, "ids", ())):
        episodes = splits[0].episodes
        example_id = episodes.take_texts("episode_id", np.zeros(1, np.int64))[0] if episodes.rows else ""
        raise ArgumentError(
            f"{choice.reason}: dataset {dataset} has none of the {len(unknown):,} episodes, such as "
            f"{unknown[0]!r:.120}; its ids look like {example_id!r}"
        )


def _by_reason(conditions: Mapping[str, int]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for label, count in conditions.items():
        counts[label.partition(":")[0]] += count
    return dict(counts)


def _why_empty(member: OpenMember, sample_runs: Sequence[SampleRun], left_out: Mapping[str, int]) -> str:
    """Return the reason for which a member has no samples, for an error."""
    dataset = member.dataset
    num_episodes = sum(episodes.stop - episodes.start for episodes in member.ranges)
    context = f"dataset {dataset.name}: split {member.entry.split!r}"
    if not num_episodes:
        splits = dataset.manifest.splits
        available = ", ".join(f"{split_name} ({entry.episodes:,} episodes)" for split_name, entry in splits.items())
        return f"{context} leaves no episode; splits converted: {available}"
    if set(left_out) == {"window"}:
        num_steps, longest = sum(member.margins) + 1, max(run.longest for run in sample_runs)
        reason = (
            f"the window takes {num_steps:,} steps, and the longest episode has {longest:,} (edges='repeat' takes all)"
        )
    elif set(left_out) <= {"window", "actions"} and left_out:
        reason = f"none has the {sum(member.action_margins) + 1:,} steps that its actions take"
    elif left_out:
        counts = ", ".join(f"{count:,} by {condition}" for condition, count in left_out.items())
        reason = f"all samples are left out ({counts})"
    else:
        reason = "these are all too short for a pair, or damaged"
    return f"{context} has {num_episodes:,} episodes, but {reason}"
