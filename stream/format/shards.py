"""The shards of a split as columns, which take little memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stream.format.manifest import ShardEntry  # which brings pydantic; a worker does without


@dataclass(frozen=True, eq=False)
class SplitShards:
    """The shards of one split, in the order of the manifest.

    Attributes:
        stems: Names, bytes [shards].
        episodes: Episodes of each shard, int64 [shards].
        first_records: Row of the first record of each shard in the split, and the number of all, int64 [shards + 1].
        sizes: Bytes of the ArrayRecord files, int64 [shards].
    """

    stems: np.ndarray
    episodes: np.ndarray
    first_records: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, shards: Sequence[ShardEntry]) -> SplitShards:
        """Return what a manifest says of the shards of a split."""
        records = np.array([shard.records for shard in shards], np.int64)
        return cls(
            stems=np.array([shard.name.encode() for shard in shards], "S"),
            episodes=np.array([shard.episodes for shard in shards], np.int64),
            first_records=np.concatenate([np.zeros(1, np.int64), np.cumsum(records)]),
            sizes=np.array([shard.file.bytes for shard in shards], np.int64),
        )

    def __len__(self) -> int:
        return len(self.stems)

    def stem(self, shard: int) -> str:
        """Return the name of a shard."""
        name: bytes = self.stems[shard]
        return name.decode()
