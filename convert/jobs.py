"""The units of work of a conversion: source shards, their pieces, and splits to merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from convert.journal.journal import PIECE
from convert.source.protocol import SourceShard, Span, clip
from stream.format.manifest import ShardEntry
from stream.storage.remote import is_remote

_PIECES = 128
"""Pieces of a dataset that are enough for any number of workers to end together."""
_LEAST_BYTES = 256 << 20
_LEAST_FRAMES = 1000
"""Least size of a piece: in bytes, or in frames where the metadata have the steps of each episode."""


def shard_stem(split: str, shard_index: int, num_shards: int) -> str:
    """Return the name of a shard.

    >>> shard_stem("train", 7, 1024)
    'train-00007-of-01024'
    """
    return f"{split}-{shard_index:05d}-of-{num_shards:05d}"


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """One source shard to convert.

    Attributes:
        spans: Wanted ranges [start, stop) of its episodes.
        entry: Entry of the manifest, if the shard of a complete dataset is converted again.
        may_differ: Whether the result may differ from ``entry``: the source was repaired, or ``--redo`` names it.
        cut: Ranges of episodes of a large shard that are converted apart and joined; else empty.
        piece: The one of these ranges that this job converts; None for the shard.
    """

    dataset: str
    shard: SourceShard
    spans: tuple[Span, ...]
    entry: ShardEntry | None = None
    may_differ: bool = False
    cut: tuple[Span, ...] = ()
    piece: Span | None = None

    @property
    def stem(self) -> str:
        """The beginning of the names of the output files."""
        return shard_stem(self.shard.split, self.shard.index, self.shard.count)

    @property
    def name(self) -> str:
        """The stem, with the range of a piece (``~20-40``): the name of the job in the journal and in messages."""
        return self.stem if self.piece is None else f"{self.stem}{PIECE}{self.piece[0]}-{self.piece[1]}"

    def pieces(self) -> list[ShardJob]:
        """Return the jobs of the ranges into which the shard is cut, or the shard itself."""
        return [replace(self, piece=piece, spans=clip(self.spans, *piece)) for piece in self.cut] or [self]

    @property
    def episodes(self) -> int | None:
        """Count of wanted episodes, None if unknown before reading."""
        return None if self.shard.records is None else sum(stop - start for start, stop in self.spans)

    @property
    def size(self) -> int:
        """Estimated bytes of the wanted episodes."""
        if self.episodes is None or not self.shard.records:
            return self.shard.bytes
        return self.shard.bytes * self.episodes // self.shard.records


@dataclass(frozen=True, kw_only=True)
class SplitJob:
    """One split whose index is to be merged from converted shards: their numbers, of ``count`` in the source."""

    dataset: str
    split: str
    shards: tuple[int, ...]
    count: int

    @property
    def stems(self) -> list[str]:
        """The stems of its converted shards, in order."""
        return [shard_stem(self.split, index, self.count) for index in self.shards]

    @property
    def name(self) -> str:
        """The name of the split."""
        return self.split

    @property
    def size(self) -> int:
        """Count of its shards."""
        return len(self.shards)


def cut_jobs(jobs: Sequence[ShardJob], *, frames_per_step: int) -> tuple[ShardJob, ...]:
    """Return the shards of a dataset, large ones cut; ``frames_per_step`` are those of a step.

    The ranges depend only on the dataset, so that every process of every run has the same. Files in a bucket are not
    cut, since each piece would copy them, nor files whose episodes are unknown before reading.
    """
    target_bytes = sum(job.size for job in jobs) // _PIECES
    return tuple(replace(job, cut=_cut(job, frames_per_step, target_bytes)) for job in jobs)


def _cut(job: ShardJob, frames_per_step: int, target_bytes: int) -> tuple[Span, ...]:
    if job.episodes is None or is_remote(job.shard.path):
        return ()
    num_steps = sum(sum(job.shard.lengths[start:stop]) for start, stop in job.spans)
    num_pieces = num_steps * frames_per_step // _LEAST_FRAMES if num_steps else job.size // _LEAST_BYTES
    num_pieces = min(num_pieces, job.size // target_bytes if target_bytes else job.episodes, job.episodes)
    if num_pieces <= 1:
        return ()
    episodes = [number for span in job.spans for number in range(*span)]
    edges = [len(episodes) * piece // num_pieces for piece in range(num_pieces + 1)]
    return tuple((episodes[start], episodes[stop - 1] + 1) for start, stop in pairwise(edges))
