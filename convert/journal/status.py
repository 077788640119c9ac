"""Records of a conversion in its journal: finished shards and splits, failures, and what was left out."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from stream.format.manifest import FileEntry, ShardEntry, Statistics, TableEntry
from stream.format.names import DerivedName, TableKind


class QuarantineEntry(BaseModel):
    """A part of the source that was left out: an episode, by its record number in the source file, or a step."""

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
        parts: Files of its part of the index, by kind.
        longest: Steps of its longest episode.
        bytes_in: Bytes of the source records read.
        digests: Digest of each source file, see ``EpisodeReader.digests``.
        piece: Name of the piece of a shard, empty for the shard.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    entry: ShardEntry
    parts: dict[TableKind, FileEntry]
    longest: int
    bytes_in: int
    digests: dict[str, str] = {}
    quarantine: tuple[QuarantineEntry, ...]
    piece: str = ""

    @property
    def stem(self) -> str:
        """The beginning of the names of the files."""
        return self.piece or self.entry.name


class IndexStatus(BaseModel):
    """The result of merging the index of one split; ``inputs`` is the digest of everything that it is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    split: str
    inputs: str
    index: dict[TableKind, TableEntry]
    statistics: dict[DerivedName, Statistics]
    instruction: str | None = None


class ShardFailure(BaseModel):
    """The last failure of a shard, with the machine of the worker as ``host``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shard: str
    host: str
    message: str
