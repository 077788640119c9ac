"""The protocol of a source: its shards, its episodes, and their content.

Each kind of source has a room beside this module, see ``convert.source.kinds``, and two classes: a ``Source``, which is
a dataset that was found, and a ``SourceShard``, which goes to the workers. Nothing outside of the rooms knows the kind.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from convert.errors import DamagedEpisode, SourceError, UsageError
from convert.source.episode import Episode
from convert.source.features import Feature
from stream.base.errors import closest
from stream.format.episode_list import OPENPI, EpisodeList

_UNBOUNDED = 1 << 62
_NEIGHBOURS = 500
"""Ids before and after an unknown one, in the order of the alphabet, among which the closest are looked for."""
SPLIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
"""Name of a split, which becomes a folder."""
Span = tuple[int, int]
"""Range [start, stop) of the episodes of a shard, counted from 0."""


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """Parts of episodes to read.

    Attributes:
        cameras: Features with the frames of ``Episode.cameras``.
        features: Other features.
        staging: Local folder for files of object stores, None for the system's.
    """

    cameras: tuple[Feature, ...]
    features: tuple[Feature, ...] = ()
    staging: str | None = None


class SourceEpisode(NamedTuple):
    """An episode, or why it cannot be converted.

    Attributes:
        source_file: File of the episode, by its path in the source. The id of the episode is made of it and of
            ``position``, so neither depends on what else the source holds.
        position: Number of the episode in its file or dataset.
        num_bytes: Bytes of the source that it takes.
    """

    source_file: str
    position: int
    num_bytes: int
    content: Episode | DamagedEpisode


class EpisodeReader(Protocol):
    """An iterator over the wanted episodes of an open shard, in order.

    Every wanted episode comes, a damaged or missing one as ``DamagedEpisode``. The frames of an episode have to be
    taken before the next one. Memory holds the columns of one episode, never its decoded frames.
    """

    def __iter__(self) -> Iterator[SourceEpisode]: ...

    @property
    def digests(self) -> Mapping[str, str]:
        """SHA-256 in hex of each file, which tells the content that was read of it from another.

        Where only the beginning of a file is covered, the digest of a later range covers the earlier ones.
        """


@dataclass(frozen=True, kw_only=True)
class SourceShard(ABC):
    """A piece of a split that one worker converts.

    Attributes:
        index: Number of the shard in its split.
        count: Count of the split's shards.
        path: Location for messages.
        name: Name in the index and the manifest.
        records: Count of episodes according to the dataset's metadata, None where only reading tells.
        bytes: Size of its files.
    """

    split: str
    index: int
    count: int
    path: str
    name: str
    records: int | None
    bytes: int

    @property
    def every(self) -> Span:
        """The range of all its episodes."""
        return 0, _UNBOUNDED if self.records is None else self.records

    @property
    def lengths(self) -> tuple[int, ...]:
        """Count of the steps of each episode, empty where the metadata do not tell."""
        return ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each episode, empty where the metadata do not tell."""
        return ()

    @property
    def ids(self) -> tuple[str, ...]:
        """Id of each episode, empty where the metadata do not tell."""
        return ()

    @property
    def is_fetched(self) -> bool:
        """True if its files come to this machine when it is opened, and stay."""
        return False

    @abstractmethod
    def open(self, request: ReadRequest, spans: Sequence[Span]) -> AbstractContextManager[EpisodeReader]:
        """Open the shard to read some of its episodes once.

        Raises:
            OSError, stream.storage.remote.RemoteError: A file cannot be read.
        """

    def differs(self, request: ReadRequest, spans: Sequence[Span], *, digest: str, left_out: Mapping[str, int]) -> bool:
        """Return whether the content has changed since it was read with damage.

        Args:
            wanted, spans: What was read.
            digest: ``join_digests`` of the reader's digests.
            left_out: Count of damaged episodes by reason.
        """
        with self.open(request, spans) as reader:
            return join_digests([reader.digests]) != digest


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """A dataset that was found.

    Attributes:
        path: Its folder.
        fingerprint: SHA-256 over its metadata files.
        metadata: Names of these files, the one with the features last.
        features: Features by path.
        splits: Count of episodes of each shard, by split; None where only reading tells.
        entry: What it says of itself for the registry: cameras, rate, robot, vectors. Empty where it says nothing.
        remarks: What else to tell in a dry run, one line each.
        libraries: Libraries that its content is decoded with.
    """

    path: str
    fingerprint: str
    metadata: tuple[str, ...]
    features: Mapping[str, Feature]
    splits: Mapping[str, tuple[int | None, ...]]
    entry: Mapping[str, Any] = field(default_factory=dict, repr=False)
    remarks: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    @abstractmethod
    def shards(self, split: str) -> tuple[SourceShard, ...]:
        """Return the shards of a split, in order.

        Raises:
            SourceError: Files are missing without which nothing can be converted; says how many and which.
        """

    def select_splits(self, requested_splits: Sequence[str] | None) -> list[str]:
        """Return the named splits, or all that have episodes.

        Raises:
            UsageError: A split does not exist (names the closest), or has no episodes.
        """
        if requested_splits is None:
            split_names = [name for name, shard_counts in self.splits.items() if counts_sum(shard_counts) != 0]
            if not split_names:
                raise SourceError(f"{self.path}: no split has any episode (splits: {self._listed()})")
            return split_names
        for split_name in requested_splits:
            if split_name not in self.splits:
                raise UsageError(
                    f"{self.path}: no split {split_name!r}; {closest(split_name, self.splits, noun='splits')}"
                )
            if counts_sum(self.splits[split_name]) == 0:
                raise SourceError(f"{self.path}: split {split_name!r} has no episodes")
        return list(requested_splits)

    def select_episodes(self, expression: str) -> dict[str, dict[int, tuple[Span, ...]]]:
        """Resolve a TFDS split expression such as ``train[:5%]`` or ``train[:10]+val``.

        Returns:
            By split and shard index, the ranges [start, stop) of episodes, sorted and apart.

        Raises:
            UsageError: The expression is not of TFDS's grammar, names an unknown split, or leaves nothing.
        """
        known_counts = {
            name: [num_episodes for num_episodes in shard_counts if num_episodes is not None]
            for name, shard_counts in self.splits.items()
        }
        if known_counts != {split_name: list(shard_counts) for split_name, shard_counts in self.splits.items()}:
            raise UsageError(
                f"{self.path}: episodes {expression!r}: how many episodes a file has is known when it is read; choose "
                "files with --source, or give a list of episodes, a file that ends in .json"
            )
        for split_name in (term.partition("[")[0].strip() for term in expression.split("+")):
            if SPLIT.fullmatch(split_name) and split_name not in {*self.splits, "all"}:
                suggestion = closest(split_name, self.splits, noun="splits")
                raise self._not_understood(expression, f"no split {split_name!r}, {suggestion}")
        # Only here, as it takes seconds to import and no other source needs it.
        import tensorflow_datasets as tfds

        split_infos = {
            name: tfds.core.SplitInfo(name=name, shard_lengths=shard_counts, num_bytes=0)
            for name, shard_counts in known_counts.items()
        }
        try:
            absolute_terms = tfds.core.ReadInstruction.from_spec(expression).to_absolute(
                tfds.core.splits.SplitDict(split_infos.values())
            )
        except (ValueError, KeyError, AssertionError, NotImplementedError, RecursionError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            reason = "not understood" if reason.startswith("Error parsing") else reason.rstrip(".")
            raise self._not_understood(expression, reason) from None
        slices_by_split: dict[str, list[slice]] = {}
        for term in absolute_terms:
            slices_by_split.setdefault(term.splitname, []).append(slice(term.from_, term.to))
        spans_by_shard = {split: shard_spans(known_counts[split], slices) for split, slices in slices_by_split.items()}
        if not any(spans_by_shard.values()):
            raise UsageError(
                f"{self.path}: episodes {expression!r} leaves nothing of {self._listed()}; take a wider range"
            )
        return {split: spans for split, spans in spans_by_shard.items() if spans}

    def _not_understood(self, expression: str, reason: str) -> UsageError:
        return UsageError(
            f"{self.path}: episodes {expression!r}: {reason} (splits: {self._listed()}); write such as train[:5%] or "
            "train[3:4]; a list of episodes is a file that ends in .json"
        )

    def check_listed(self, episode_list: EpisodeList, *, dataset: str) -> None:
        """Raise UsageError if a list has names that no episode has, where metadata tell the ids of all episodes."""
        if any(feature.name in OPENPI for feature in self.features.values()):
            return  # The names may be other keys, which only reading tells.
        known_ids: set[str] = set()
        for split in self.select_splits(None):
            try:
                shards = self.shards(split)
            except SourceError:
                return  # Files of a split that is not converted may be missing.
            if any(len(shard.ids) != shard.records for shard in shards):
                return
            known_ids.update(episode_id for shard in shards for episode_id in shard.ids)
        unknown = [
            episode_id for episode_id in episode_list.names if "*" not in episode_id and episode_id not in known_ids
        ]
        if unknown:
            sorted_ids = sorted(known_ids)
            position = bisect_left(sorted_ids, unknown[0])
            suggestion = closest(
                unknown[0], sorted_ids[max(0, position - _NEIGHBOURS) : position + _NEIGHBOURS], noun="episodes"
            )
            more_unknown = f" ({len(unknown):,} such names)" if len(unknown) > 1 else ""
            raise UsageError(f"{dataset}: --episodes: no episode {unknown[0]!r:.200}{more_unknown}; {suggestion}")

    def _listed(self) -> str:
        return (
            ", ".join(f"{name}: {num_episodes} episodes" for name, num_episodes in self.describe_splits().items())
            or "none"
        )

    def describe_splits(self) -> dict[str, str]:
        """Return the count of the episodes of each split, ``?`` where only reading tells."""
        totals = {split_name: counts_sum(shard_counts) for split_name, shard_counts in self.splits.items()}
        return {name: "?" if num_episodes is None else f"{num_episodes:,}" for name, num_episodes in totals.items()}


def counts_sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of counts, None if one is not known."""
    count_list = list(counts)
    return None if None in count_list else sum(filter(None, count_list))


def join_digests(digests_of_readers: Iterable[Mapping[str, str]]) -> str:
    """Return one digest of the files that were read for the ranges of a shard, in order."""
    digest_by_file = {name: digest for reader_digests in digests_of_readers for name, digest in reader_digests.items()}
    return hashlib.sha256(
        "".join(f"{name} {digest_by_file[name]}\n" for name in sorted(digest_by_file)).encode()
    ).hexdigest()


def shard_spans(shard_lengths: Sequence[int], slices: Iterable[slice]) -> dict[int, tuple[Span, ...]]:
    """Return the ranges [start, stop) of episodes, by shard, of some slices of a split; sorted and apart.

    >>> shard_spans((3, 0, 4), [slice(2, 5)])
    {0: ((2, 3),), 2: ((0, 2),)}
    """
    is_chosen = np.zeros(sum(shard_lengths), np.bool_)
    for episode_slice in slices:
        is_chosen[episode_slice] = True
    spans_by_shard = {}
    for shard_number, shard_mask in enumerate(np.split(is_chosen, np.cumsum(shard_lengths)[:-1])):
        edges = np.flatnonzero(np.diff(shard_mask, prepend=False, append=False)).tolist()
        if edges:
            spans_by_shard[shard_number] = tuple(zip(edges[::2], edges[1::2], strict=True))
    return spans_by_shard


def clip(spans: Sequence[Span], start: int, stop: int) -> tuple[Span, ...]:
    """Return the parts of ranges that lie in [start, stop).

    >>> clip(((0, 5), (7, 9)), 3, 8)
    ((3, 5), (7, 8))
    """
    clipped = ((max(span_start, start), min(span_stop, stop)) for span_start, span_stop in spans)
    return tuple((span_start, span_stop) for span_start, span_stop in clipped if span_start < span_stop)


def covers(spans: Sequence[Span], episode_number: int) -> bool:
    """Return whether an episode is in one of the spans."""
    return any(span_start <= episode_number < span_stop for span_start, span_stop in spans)
