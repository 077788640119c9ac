"""Which records make up sample k of a member: splits, samples per episode and filters, as views on the same files.

This is the one place that knows how the positions of an epoch map to records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from stream.catalog import Dataset
from stream.errors import ArgumentError
from stream.filters import Filters
from stream.format import FormatError
from stream.mixture import Member
from stream.shard_cache import ShardCache
from stream.shard_list import ShardList
from stream.shuffle import derive_keys, make_key, permute
from stream.splits import EpisodeRange, SplitError, resolve_split


@dataclass(frozen=True)
class Segment:
    """A run of neighbouring episodes of one shard, [start, stop) counted in the shard."""

    shard: int
    start: int
    stop: int


class Views:
    """The samples of all members of a mixture, by number.

    A member has ``units[m]`` units: pairs, or episodes with pairs if ``samples_per_episode`` is given. Position p of
    its epoch is unit ``p // samples_per_episode``.

    Args:
        members: the mixture.
        datasets: the dataset of each member.
        samples_per_episode: pairs drawn of an episode in an epoch, 0 for all. An episode's pairs take turns over the
            epochs, so one with fewer pairs gives some of them again.
        filters: which pairs to keep, see ``stream.filters``.
        max_open: of the cache of shards.

    Raises:
        ArgumentError: a split or filter is wrong or leaves nothing; says how many episodes there were.
        stream.format.FormatError: a sidecar that is needed is damaged.
    """

    def __init__(
        self,
        members: Sequence[Member],
        datasets: Sequence[Dataset],
        *,
        samples_per_episode: int = 0,
        filters: Filters | None = None,
        max_open: int | None = None,
    ) -> None:
        self.samples_per_episode = samples_per_episode
        self.shards = ShardList()
        self._by_episode = samples_per_episode > 0
        self._first_shard: list[dict[str, int]] = []
        for number, dataset in enumerate(datasets):
            add = partial(self.shards.add, folder=dataset.folder, dataset=dataset.name, member=number)
            self._first_shard.append({split: add(shards, split) for split, shards in dataset.shards.items()})
        self.cache = ShardCache(self.shards, max_open=max_open)
        self._episodes, self._paired_episodes, self._records_of = (
            self.shards.column(name) for name in ("episodes", "paired_episodes", "records")
        )
        self._records: list[np.ndarray] = []
        segments: list[Segment] = []
        firsts: list[int] = []
        counts: list[int] = []
        bases = [0]
        selected = 0
        filtered: list[bool] = []
        for number, (member, dataset) in enumerate(zip(members, datasets, strict=True)):
            filter_ = filters.of(dataset.name) if filters else None
            found = self._segments(number, member, dataset)
            if dataset.fetched is not None:
                _check_fetched(member, dataset, self._first_shard[number], found)
            for segment in found:
                first, count = self._extent(segment)
                if filter_ is not None and count:
                    chosen = first + np.flatnonzero(filter_.select(self.cache[segment.shard], first, count))
                    self._records.append(chosen)
                    first, count = selected, len(chosen)
                    selected += count
                if self._by_episode and count:
                    count = self._paired(segment, self._records[-1] if filter_ is not None else None)
                if count:
                    segments.append(segment)
                    firsts.append(first)
                    counts.append(count)
                    filtered.append(filter_ is not None)
            bases.append(sum(counts))
            if bases[-1] == bases[-2]:
                episodes = sum(segment.stop - segment.start for segment in found)
                raise ArgumentError(_nothing_left(member, dataset, episodes, filter_ is not None))
        self._segment_list = segments
        self._shard_of = np.array([segment.shard for segment in segments], np.int32)
        self._first = np.array(firsts, np.int64)
        self._filtered = np.array(filtered, bool)
        self._ends = np.cumsum(np.array(counts, np.int64))
        self._begins = self._ends - np.array(counts, np.int64)
        self._bases = np.array(bases[:-1], np.int64)
        self.units = np.diff(np.array(bases, np.int64))
        self._selection = np.concatenate(self._records) if self._records else np.zeros(0, np.int64)
        self._records.clear()
        if self._by_episode:
            # Filled segment by segment when first drawn from; 0 pairs means not yet known.
            try:
                self._episode_first = np.zeros(bases[-1], np.int64)
                self._episode_pairs = np.zeros(bases[-1], np.int32)
            except (MemoryError, ValueError):
                raise ArgumentError(
                    f"{bases[-1]:,} episodes need {12 * bases[-1]:,} bytes to draw by episode, which are not to be "
                    "had; load without samples_per_episode, or check the manifests with `python -m convert.verify`"
                ) from None
            self._names = [dataset.name for dataset in datasets]
            self._keys: dict[int, np.ndarray] = {}

    @property
    def first_shards(self) -> list[int]:
        """For each member, a shard that holds samples of it."""
        return self._shard_of[np.searchsorted(self._ends, self._bases, side="right")].tolist()

    @property
    def sizes(self) -> np.ndarray:
        """Samples of one epoch of each member, int64 [M]."""
        return self.units * max(1, self.samples_per_episode)

    def locate(
        self, member: np.ndarray, epoch: np.ndarray, position: np.ndarray, *, seed: int, shuffle: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return where samples lie.

        Args:
            member, epoch: int64 [n].
            position: int64 [n], in [0, sizes[member]).
            seed, shuffle: for the choice among the pairs of an episode; in storage order if not ``shuffle``.

        Returns:
            number of the shard in ``shards``, int32 [n], and record in it, int64 [n].
        """
        per_episode = max(1, self.samples_per_episode)
        unit = self._bases[member] + position // per_episode
        segment = np.searchsorted(self._ends, unit, side="right")
        if self._by_episode:
            self._learn(segment[self._episode_pairs[unit] == 0])
            pairs = self._episode_pairs[unit].astype(np.int64)
            turn, place = np.divmod(epoch * per_episode + position % per_episode, pairs)
            if shuffle:
                keys = self._seed_keys(seed)[member]
                place = permute(place, pairs, derive_keys(keys, unit - self._bases[member], turn))
            record = self._episode_first[unit] + place
        else:
            record = self._first[segment] + unit - self._begins[segment]
        filtered = self._filtered[segment]
        if filtered.any():
            record[filtered] = self._selection[record[filtered]]
        return self._shard_of[segment], record

    def _seed_keys(self, seed: int) -> np.ndarray:
        if seed not in self._keys:
            keys = [make_key(seed, "pairs of an episode", name) for name in self._names]
            self._keys[seed] = np.array(keys, np.uint64)
        return self._keys[seed]

    def _segments(self, number: int, member: Member, dataset: Dataset) -> list[Segment]:
        lengths = dataset.shard_lengths
        try:
            ranges = resolve_split(member.split, lengths)
        except SplitError as error:
            raise ArgumentError(f"dataset {dataset.name}: {error}") from None
        return [
            segment
            for episodes in ranges
            for segment in cut_range(episodes, lengths[episodes.split], self._first_shard[number][episodes.split])
        ]

    def _extent(self, segment: Segment) -> tuple[int, int]:
        """First record and number of records of a segment; the sidecar of a shard that is cut is read."""
        if segment.stop - segment.start == self._episodes[segment.shard]:
            return 0, int(self._records_of[segment.shard])
        first, pairs = _episode_columns(self.cache, segment.shard)
        first, pairs = first[segment.start : segment.stop], pairs[segment.start : segment.stop]
        return int(first[0]), int(pairs.sum())

    def _paired(self, segment: Segment, chosen: np.ndarray | None) -> int:
        """How many episodes of a segment have pairs, or chosen pairs."""
        if chosen is not None:
            return len(np.unique(self.cache[segment.shard].records["episode"][chosen]))
        if segment.stop - segment.start == self._episodes[segment.shard]:
            return int(self._paired_episodes[segment.shard])
        _, pairs = _episode_columns(self.cache, segment.shard)
        return int((pairs[segment.start : segment.stop] > 0).sum())

    def _learn(self, segments: np.ndarray) -> None:
        """Find the first pair and the number of pairs of each episode of some segments."""
        for number in np.unique(segments):
            segment = self._segment_list[number]
            if self._filtered[number]:
                # The next filtered segment starts where this one stops; unfiltered ones have places of their own.
                later = np.flatnonzero(self._filtered[number + 1 :])
                stop = self._first[number + 1 + later[0]] if len(later) else len(self._selection)
                chosen = self._selection[self._first[number] : stop]
                episodes = self.cache[segment.shard].records["episode"][chosen]
                _, first, pairs = np.unique(episodes, return_index=True, return_counts=True)
                first = first + self._first[number]
            else:
                first, pairs = _episode_columns(self.cache, segment.shard)
                first, pairs = first[segment.start : segment.stop], pairs[segment.start : segment.stop]
                first, pairs = first[pairs > 0], pairs[pairs > 0]
            begin, end = self._begins[number], self._ends[number]
            if len(first) != end - begin:
                info = self.shards[segment.shard]
                raise FormatError(
                    f"{info.path('episodes')}: {len(first)} episodes with pairs, the manifest says {end - begin}"
                )
            self._episode_first[begin:end] = first
            self._episode_pairs[begin:end] = pairs


def cut_range(episodes: EpisodeRange, lengths: Sequence[int], first_shard: int) -> list[Segment]:
    """Cut a range of episodes at the borders of shards.

    Args:
        episodes: of a split.
        lengths: episodes of each shard of the split.
        first_shard: the number of its first shard.

    >>> cut_range(EpisodeRange("train", 3, 7), [4, 0, 4], 10)
    [Segment(shard=10, start=3, stop=4), Segment(shard=12, start=0, stop=3)]
    """
    ends = np.cumsum(lengths)
    segments = []
    for shard in range(int(np.searchsorted(ends, episodes.start, side="right")), len(lengths)):
        begin = int(ends[shard]) - lengths[shard]
        if begin >= episodes.stop:
            break
        start, stop = max(episodes.start, begin), min(episodes.stop, int(ends[shard]))
        if start < stop:
            segments.append(Segment(first_shard + shard, start - begin, stop - begin))
    return segments


def _episode_columns(cache: ShardCache, shard: int) -> tuple[np.ndarray, np.ndarray]:
    """First record and number of records of each episode of a shard."""
    table = cache[shard].episodes
    return table["first_record"].to_numpy(), table["num_records"].to_numpy()


def _check_fetched(
    member: Member, dataset: Dataset, first_shard: Mapping[str, int], segments: Sequence[Segment]
) -> None:
    """Raise ArgumentError if shards of a dataset that was fetched in part are needed that are not here."""
    assert dataset.fetched is not None
    stems = {
        first_shard[split] + number: stem.decode()
        for split, shards in dataset.shards.items()
        for number, stem in enumerate(shards.stems.tolist())
    }
    here = set(dataset.fetched.shards)
    missing = [stems[segment.shard] for segment in segments if stems[segment.shard] not in here]
    if missing:
        raise ArgumentError(
            f"dataset {dataset.name}: split {member.split!r} needs {len(missing):,} shards that were not fetched, such "
            f"as {missing[0]}; bring them from {dataset.fetched.source} with `python -m stream.fetch` and this mixture "
            "and split"
        )


def _nothing_left(member: Member, dataset: Dataset, episodes: int, filtered: bool) -> str:
    there = ", ".join(
        f"{name} ({entry.episodes:,} episodes, {entry.records:,} pairs)"
        for name, entry in dataset.manifest.splits.items()
    )
    if episodes == 0:
        return (
            f"dataset {dataset.name}: split {member.split!r} leaves no episode; splits converted: {there}. "
            "Widen the split, or leave the dataset out with weight 0"
        )
    what = "the filter leaves no pair" if filtered else "these are all too short for a pair, or damaged"
    return (
        f"dataset {dataset.name}: split {member.split!r} has {episodes:,} episodes, but {what}; "
        f"splits converted: {there}. Change it, or leave the dataset out with weight 0"
    )
