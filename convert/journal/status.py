"""Records of a conversion in its journal: finished shards and splits, failures, and what was left out."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from stream.format.manifest import FileEntry, ShardEntry, Statistics, TableEntry
from stream.format.names import DerivedName, TableKind


class QuarantineEntry(BaseModel):
    """A part of the source that was left out.

    Attributes:
        shard: Stem of the shard.
        source_file: Name of the source file.
        episode: Record number in the source file.
        step: Step in the episode, None for the episode.
        reason: Name of the reason.
        detail: Reason in words.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    shard: str
    source_file: str
    episode: int
    step: int | None = None
    reason: str
    detail: str


class ShardStatus(BaseModel):
    """The result of converting one shard.

    Attributes:
        entry: Entry of the manifest.
        parts: Files of its part of the index, by kind.
        longest: Steps of its longest episode.
        bytes_in: Bytes of the source records read.
        quarantine: Entries for the parts that were left out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    entry: ShardEntry
    parts: dict[TableKind, FileEntry]
    longest: int
    bytes_in: int
    quarantine: tuple[QuarantineEntry, ...]

    @property
    def bytes_out(self) -> int:
        """Size of the shard's ArrayRecord file."""
        return self.entry.file.bytes


class IndexStatus(BaseModel):
    """The result of merging the index of one split.

    Attributes:
        split: Name of the split.
        inputs: Digest of the parts and the registry's vectors that the index is made of.
        index: Tables of the index, by kind.
        statistics: Statistics of the split.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    split: str
    inputs: str
    index: dict[TableKind, TableEntry]
    statistics: dict[DerivedName, Statistics]

    @property
    def bytes_out(self) -> int:
        """Size of the three tables."""
        return sum(entry.bytes for entry in self.index.values())


class ShardFailure(BaseModel):
    """The last failure of a shard, with the machine of the worker as ``host``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shard: str
    host: str
    message: str


def parse_quarantine(content: bytes) -> dict[str, list[QuarantineEntry]]:
    """Return the entries of ``quarantine.jsonl`` by shard, from its content."""
    found: dict[str, list[QuarantineEntry]] = {}
    for line in content.splitlines():
        entry = QuarantineEntry.model_validate_json(line)
        found.setdefault(entry.shard, []).append(entry)
    return found
