"""A converted dataset as a source, and its shards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from convert.source.episode import episode_id
from convert.source.protocol import ReadRequest, Source, SourceShard, Span
from convert.source.root.reader import RootReader, SplitTables


@dataclass(frozen=True, kw_only=True)
class RootShard(SourceShard):
    """A shard of a converted dataset.

    Attributes:
        folder: Folder of the dataset's version.
        number: Number of the shard in its split there.
        episodes: Count of steps, bytes of records, source file and number in that file, of each episode.
        prefix: Text in front of the source files.
        sha256: Hash of its file, as the manifest has it.
    """

    folder: str
    number: int
    sha256: str
    episodes: tuple[tuple[int, int, str, int], ...] = field(repr=False)
    prefix: str = ""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Count of the steps of each episode."""
        return tuple(steps for steps, *_ in self.episodes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the records of each episode."""
        return tuple(num_bytes for _, num_bytes, *_ in self.episodes)

    @property
    def ids(self) -> tuple[str, ...]:
        """Id of each episode."""
        return tuple(episode_id(self.prefix + source_file, position) for *_, source_file, position in self.episodes)

    @contextlib.contextmanager
    def open(self, request: ReadRequest, spans: Sequence[Span]) -> Iterator[RootReader]:
        """Open the shard."""
        digests = {self.path: self.sha256}
        yield RootReader(self.folder, self.split, self.number, request, spans, prefix=self.prefix, digests=digests)


@dataclass(frozen=True, kw_only=True)
class RootSource(Source):
    """A converted dataset.

    Attributes:
        layout: Its layout; for pairs with the distances of their frames.
        labels: Features that are labels.
        tables: Tables of each split.
    """

    shards_of: Mapping[str, tuple[RootShard, ...]] = field(repr=False)
    layout: str
    labels: frozenset[str]
    tables: Mapping[str, SplitTables] = field(repr=False)

    def shards(self, split: str) -> tuple[RootShard, ...]:
        """Return the shards of a split."""
        return self.shards_of[split]
