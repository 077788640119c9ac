"""Views on an index by split, filter and samples per episode: the map from positions of an epoch to records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from stream.format.catalog import Dataset
from stream.format.index import SplitIndex, open_index
from stream.format.names import TableKind
from stream.order.filters import Filter
from stream.order.mixture import Member
from stream.order.shuffle import derive_keys, make_key, permute
from stream.order.splits import EpisodeRange, SplitError, resolve_split
from stream.storage.errors import ArgumentError, FormatError


class Views:
    """The samples of all members of a mixture, by number.

    Member m has ``units[m]`` units: pairs, or with ``samples_per_episode`` episodes with pairs. Position p of its epoch
    is in unit ``p // samples_per_episode``.

    Args:
        members: Members of the mixture.
        datasets: Dataset of each member.
        samples_per_episode: Count of pairs drawn from an episode in an epoch, 0 for all. The draws cycle through the
            pairs over the epochs; an episode with fewer pairs gives some twice in an epoch.
        filters: Filters by dataset, see ``stream.order.filters``.

    Attributes:
        splits: Splits that contain samples.
        units: Count of the units of each member, int64 [M].

    Raises:
        ArgumentError: A split or filter is wrong or leaves nothing; the message gives the count of episodes.
        FormatError: An index is damaged.
    """

    def __init__(
        self,
        members: Sequence[Member],
        datasets: Sequence[Dataset],
        *,
        samples_per_episode: int = 0,
        filters: Mapping[str, Filter] | None = None,
    ) -> None:
        self.samples_per_episode = samples_per_episode
        self._filters = filters or {}
        self.splits: list[SplitIndex] = []
        self._names = [dataset.name for dataset in datasets]
        segments: list[_Segment] = []
        bases = [0]
        for number, (member, dataset) in enumerate(zip(members, datasets, strict=True)):
            ranges = _ranges(member, dataset)
            filter_ = self._filters.get(dataset.name)
            opened: dict[str, int] = {}
            for episodes in ranges:
                if episodes.split not in opened:
                    opened[episodes.split] = len(self.splits)
                    self.splits.append(open_index(dataset, episodes.split, member=number))
                split = opened[episodes.split]
                segments.append(_Segment(self.splits[split], split, episodes, filter_, samples_per_episode > 0))
            bases.append(sum(segment.units for segment in segments))
            if bases[-1] == bases[-2]:
                raise ArgumentError(_nothing_left(member, dataset, ranges, filter_ is not None))
        segments = [segment for segment in segments if segment.units]
        self._bases = np.array(bases[:-1], np.int64)
        self.units = np.diff(np.array(bases, np.int64))
        self._ends = np.cumsum([segment.units for segment in segments])
        self._split_of = np.array([segment.split for segment in segments], np.int16)
        self._is_chosen = np.array([segment.chosen is not None for segment in segments], bool)
        chosen = [np.zeros(0, np.int64) if segment.chosen is None else segment.chosen for segment in segments]
        self._chosen = np.concatenate(chosen)
        sizes = np.array([len(records) for records in chosen], np.int64)
        # First record of each segment: its index in ``_chosen`` if a filter chose the records, else in the split.
        first = np.where(self._is_chosen, np.cumsum(sizes) - sizes, [segment.first for segment in segments])
        if samples_per_episode:
            firsts = [start + segment.episode_first for start, segment in zip(first, segments, strict=True)]
            self._episode_first = np.concatenate(firsts)
            self._episode_pairs = np.concatenate([segment.episode_pairs for segment in segments])
        else:
            # Unit u of segment s is number u + shift[s].
            self._shift = first - np.concatenate([[0], self._ends[:-1]])

    @property
    def sizes(self) -> np.ndarray:
        """Count of the samples of one epoch of each member, int64 [M]."""
        return self.units * max(1, self.samples_per_episode)

    def splits_of(self, member: int) -> list[SplitIndex]:
        """Return the splits that contain samples of a member."""
        return [split for split in self.splits if split.member == member]

    def used_columns(self, index: SplitIndex) -> Iterator[tuple[TableKind, str]]:
        """Yield the columns of a split that the views read."""
        yield "episodes", "first_record"
        if filter_ := self._filters.get(index.dataset):
            yield from filter_.used_columns(index)

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
            Number of the split in ``splits``, int16 [n], and row in its ``records``, int64 [n].
        """
        per_episode = max(1, self.samples_per_episode)
        unit = self._bases[member] + position // per_episode
        segment = np.searchsorted(self._ends, unit, side="right")
        if self.samples_per_episode:
            pairs = self._episode_pairs[unit]
            turn, place = np.divmod(epoch * per_episode + position % per_episode, pairs)
            if shuffle:
                keys = np.array([make_key(seed, "pairs of an episode", name) for name in self._names], np.uint64)
                place = permute(place, pairs, derive_keys(keys[member], unit - self._bases[member], turn))
            record = self._episode_first[unit] + place
        else:
            record = self._shift[segment] + unit
        chosen = self._is_chosen[segment]
        if chosen.any():
            record[chosen] = self._chosen[record[chosen]]
        return self._split_of[segment], record


class _Segment:
    """The records of a range of episodes.

    Attributes:
        split: Number of the split.
        first: First record.
        units: Records, or episodes with records if drawn by episode.
        chosen: Records that a filter keeps, int64, None without a filter.
        episode_first: First record of each episode, counted from ``first`` or in ``chosen``, int64 [units]; only if
            drawn by episode.
        episode_pairs: Count of records of each episode, int64 [units]; only if drawn by episode.
    """

    def __init__(
        self, index: SplitIndex, split: int, episodes: EpisodeRange, filter_: Filter | None, by_episode: bool
    ) -> None:
        self.split = split
        self.chosen: np.ndarray | None = None
        # First record of each episode, and the end of the last one.
        edges = np.append(index.episodes.array("first_record"), len(index.records))[episodes.start : episodes.stop + 1]
        first, stop = int(edges[0]), int(edges[-1])
        if first < 0 or stop > len(index.records) or (edges[1:] < edges[:-1]).any():
            raise FormatError(
                f"{index.episodes.path}: first_record leads outside of {len(index.records):,} records; the file is "
                "damaged. Check it with `python -m convert.verify`, or copy it again"
            )
        self.first, self.units = first, stop - first
        if filter_ is not None:
            self.chosen = first + np.flatnonzero(filter_.select(index, slice(first, stop)))
            self.units = len(self.chosen)
        if by_episode:
            edges = edges - first if self.chosen is None else np.searchsorted(self.chosen, edges)
            pairs = np.diff(edges)
            self.episode_first, self.episode_pairs = edges[:-1][pairs > 0], pairs[pairs > 0]
            self.units = len(self.episode_pairs)


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


def _nothing_left(member: Member, dataset: Dataset, ranges: Sequence[EpisodeRange], filtered: bool) -> str:
    converted = ", ".join(
        f"{name} ({entry.episodes:,} episodes, {entry.records:,} pairs)"
        for name, entry in dataset.manifest.splits.items()
    )
    episodes = sum(episodes.stop - episodes.start for episodes in ranges)
    reason = "the filter leaves no pair" if filtered else "these are all too short for a pair, or damaged"
    fault = f"has {episodes:,} episodes, but {reason}" if episodes else "leaves no episode"
    return (
        f"dataset {dataset.name}: split {member.split!r} {fault}; splits converted: {converted}. Change the split or "
        "filter, or leave the dataset out with weight 0"
    )
