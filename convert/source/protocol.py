"""Protocol of a source: its shards, its episodes, and their content.

Each kind of source has a package next to this module (see ``convert.source.kinds``) with two classes: a ``Source`` is a
dataset that was found, a ``SourceShard`` goes to the workers. Only these packages know the kind.
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
SPLIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
"""Name of a split, which becomes a folder."""
Span = tuple[int, int]
"""Range [start, stop) of the episodes of a shard, counted from 0."""


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """Parts of episodes to read.

    Attributes:
        cameras: Features with the frames of ``Episode.cameras``.
        features: Remaining features.
        staging: Local folder for files of object stores, None for that of the system.
    """

    cameras: tuple[Feature, ...]
    features: tuple[Feature, ...] = ()
    staging: str | None = None


class SourceEpisode(NamedTuple):
    """An episode, or the reason why it cannot be converted.

    Attributes:
        source_file: File of the episode, by its path in the source. It and ``position`` make the id of the episode, so
            neither depends on the other files of the source.
        position: Number of the episode in its file or dataset.
        num_bytes: Bytes of the source that it takes.
    """

    source_file: str
    position: int
    num_bytes: int
    content: Episode | DamagedEpisode


class EpisodeReader(Protocol):
    """An iterator over all requested episodes of an open shard, in order; the frames of one are read before the next.

    Memory holds the columns of one episode, never its decoded frames.
    """

    def __iter__(self) -> Iterator[SourceEpisode]: ...

    @property
    def digests(self) -> Mapping[str, str]:
        """SHA-256 in hex of each file, over the content that was read; a later range covers the earlier ones."""


@dataclass(frozen=True, kw_only=True)
class SourceShard(ABC):
    """A piece of a split that one worker converts.

    Attributes:
        index: Number of the shard among the ``count`` shards of its split.
        path: Location for messages.
        name: Name in the index and the manifest.
        records: Count of episodes according to the dataset's metadata, None if unknown before reading.
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
        """Count of the steps of each episode, empty if not in the metadata."""
        return ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each episode, empty if not in the metadata."""
        return ()

    @property
    def ids(self) -> tuple[str, ...]:
        """Id of each episode, empty if not in the metadata."""
        return ()

    @property
    def is_fetched(self) -> bool:
        """True if opening it downloads its files to this machine, where they stay."""
        return False

    @abstractmethod
    def open(self, request: ReadRequest, spans: Sequence[Span]) -> AbstractContextManager[EpisodeReader]:
        """Open the shard to read the episodes of ``spans`` once.

        Raises:
            OSError, stream.storage.remote.RemoteError: A file cannot be read.
        """

    def differs(self, request: ReadRequest, spans: Sequence[Span], *, digest: str, left_out: Mapping[str, int]) -> bool:
        """Return whether the content has changed since it was read with damage.

        ``digest`` is ``join_digests`` of the reader's digests, ``left_out`` the count of damaged episodes by reason.
        """
        with self.open(request, spans) as reader:
            return join_digests([reader.digests]) != digest


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """A dataset that was found.

    Attributes:
        fingerprint: SHA-256 over the files ``metadata``, the one with the features last.
        features: Features by path.
        splits: Count of episodes of each shard, by split; None if unknown before reading.
        entry: Its own fields for the registry: cameras, rate, robot, vectors. Empty if it has none.
        remarks: Further lines for a dry run.
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
            SourceError: Files that the conversion needs are missing; says how many and which.
        """

    def select_splits(self, requested_splits: Sequence[str] | None) -> list[str]:
        """Return the named splits, or all that have episodes.

        Raises:
            UsageError: A split does not exist (names the closest), or has no episodes.
        """
        split_names = [name for name, shard_counts in self.splits.items() if counts_sum(shard_counts) != 0]
        if requested_splits is None and not split_names:
            raise SourceError(f"{self.path}: no split has any episode (splits: {self._listed()})")
        for split_name in requested_splits or ():
            if split_name not in self.splits:
                hint = closest(split_name, self.splits, noun="splits")
                raise UsageError(f"{self.path}: no split {split_name!r}; {hint}")
            if split_name not in split_names:
                raise SourceError(f"{self.path}: split {split_name!r} has no episodes")
        return split_names if requested_splits is None else list(requested_splits)

    def select_episodes(self, expression: str) -> dict[str, dict[int, tuple[Span, ...]]]:
        """Return the ranges, by split and shard index, of a TFDS split expression such as ``train[:10]+val``.

        Raises:
            UsageError: The expression is not of TFDS's grammar, names an unknown split, or leaves nothing.
        """
        counts = {split: [count for count in numbers if count is not None] for split, numbers in self.splits.items()}
        if any(None in shard_counts for shard_counts in self.splits.values()):
            advice = "choose files with --source, or give a list of episodes, a file that ends in .json"
            fault = "files show their episodes only when they are read"
            raise UsageError(f"{self.path}: episodes {expression!r}: {fault}; {advice}")
        for split_name in (term.partition("[")[0].strip() for term in expression.split("+")):
            if SPLIT.fullmatch(split_name) and split_name not in {*self.splits, "all"}:
                suggestion = closest(split_name, self.splits, noun="splits")
                raise self._not_understood(expression, f"no split {split_name!r}, {suggestion}")
        # Only here, because it takes seconds to import and no other source needs it.
        import tensorflow_datasets as tfds

        infos = [tfds.core.SplitInfo(name=name, shard_lengths=counts[name], num_bytes=0) for name in counts]
        try:
            instruction = tfds.core.ReadInstruction.from_spec(expression)
            terms = instruction.to_absolute(tfds.core.splits.SplitDict(infos))
        except (ValueError, KeyError, AssertionError, NotImplementedError, RecursionError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            reason = "not understood" if reason.startswith("Error parsing") else reason.rstrip(".")
            raise self._not_understood(expression, reason) from None
        slices_by_split: dict[str, list[slice]] = {}
        for term in terms:
            slices_by_split.setdefault(term.splitname, []).append(slice(term.from_, term.to))
        spans_by_shard = {split: shard_spans(counts[split], slices) for split, slices in slices_by_split.items()}
        if not any(spans_by_shard.values()):
            fault = f"leaves nothing of {self._listed()}; take a wider range"
            raise UsageError(f"{self.path}: episodes {expression!r} {fault}")
        return {split: spans for split, spans in spans_by_shard.items() if spans}

    def _not_understood(self, expression: str, reason: str) -> UsageError:
        advice = "write train[:5%] or train[3:4]; a list of episodes is a file that ends in .json"
        return UsageError(f"{self.path}: episodes {expression!r}: {reason} (splits: {self._listed()}); {advice}")

    def check_listed(self, episode_list: EpisodeList, *, dataset: str) -> None:
        """Raise UsageError if a list names unknown episodes, provided that the metadata have all ids."""
        if any(feature.name in OPENPI for feature in self.features.values()):
            return  # The names may be other keys, which are unknown before reading.
        known_ids: set[str] = set()
        for split in self.select_splits(None):
            try:
                shards = self.shards(split)
            except SourceError:
                return  # Files of a split that is not converted may be missing.
            if any(len(shard.ids) != shard.records for shard in shards):
                return
            known_ids.update(episode_id for shard in shards for episode_id in shard.ids)
        unknown = [name for name in episode_list.names if "*" not in name and name not in known_ids]
        if unknown:
            sorted_ids = sorted(known_ids)
            position = bisect_left(sorted_ids, unknown[0])
            # A comparison with all would take long.
            suggestion = closest(unknown[0], sorted_ids[max(0, position - 500) : position + 500], noun="episodes")
            more_unknown = f" ({len(unknown):,} such names)" if len(unknown) > 1 else ""
            raise UsageError(f"{dataset}: --episodes: no episode {unknown[0]!r:.200}{more_unknown}; {suggestion}")

    def _listed(self) -> str:
        return ", ".join(f"{split}: {count} episodes" for split, count in self.describe_splits().items()) or "none"

    def describe_splits(self) -> dict[str, str]:
        """Return the count of the episodes of each split, ``?`` if unknown before reading."""
        totals = {split_name: counts_sum(shard_counts) for split_name, shard_counts in self.splits.items()}
        return {name: "?" if num_episodes is None else f"{num_episodes:,}" for name, num_episodes in totals.items()}


def complete_splits(expression: str) -> tuple[str, ...] | None:
    """Return the splits of a split expression without ranges, empty for all of them; None if it has ranges.

    >>> complete_splits("train + val"), complete_splits("all"), complete_splits("train[:5%]+val")
    (('train', 'val'), (), None)
    """
    names = tuple(dict.fromkeys(name.strip() for name in expression.split("+")))
    if not all(map(SPLIT.fullmatch, names)):
        return None
    return () if "all" in names else names


def counts_sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of counts, None if one is unknown."""
    count_list = list(counts)
    return None if None in count_list else sum(filter(None, count_list))


def join_digests(digests_of_readers: Iterable[Mapping[str, str]]) -> str:
    """Return one digest of the files that were read for the ranges of a shard, in order."""
    digest_by_file: dict[str, str] = {}
    for reader_digests in digests_of_readers:
        digest_by_file |= reader_digests
    lines = "".join(f"{name} {digest_by_file[name]}\n" for name in sorted(digest_by_file))
    return hashlib.sha256(lines.encode()).hexdigest()


def shard_spans(shard_lengths: Sequence[int], slices: Iterable[slice]) -> dict[int, tuple[Span, ...]]:
    """Return the disjoint ranges [start, stop) of episodes, sorted, by shard, of slices of a split.

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
    """Return the parts of ranges that are in [start, stop).

    >>> clip(((0, 5), (7, 9)), 3, 8)
    ((3, 5), (7, 8))
    """
    clipped = ((max(span_start, start), min(span_stop, stop)) for span_start, span_stop in spans)
    return tuple((span_start, span_stop) for span_start, span_stop in clipped if span_start < span_stop)


def covers(spans: Sequence[Span], episode_number: int) -> bool:
    """Return whether an episode is in one of the spans."""
    return any(span_start <= episode_number < span_stop for span_start, span_stop in spans)
