"""The shards of a split, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stream.format.manifest import ShardEntry


@dataclass(frozen=True, eq=False)
class SplitShards:
    """The shards of one split, in the order of the manifest.

    Attributes:
        stems: Names, bytes [shards].
        episodes: Episode counts, int64 [shards].
        first_records: Row of each shard's first record in the split, and the record count, int64 [shards + 1].
        sizes: Sizes of the ArrayRecord files in bytes, int64 [shards].
    """

    stems: np.ndarray
    episodes: np.ndarray
    first_records: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, shard_entries: Sequence[ShardEntry]) -> SplitShards:
        """Return the shards of a manifest's list."""
        records = np.array([shard_entry.records for shard_entry in shard_entries], np.int64)
        return cls(
            stems=np.array([shard_entry.name.encode() for shard_entry in shard_entries], "S"),
            episodes=np.array([shard_entry.episodes for shard_entry in shard_entries], np.int64),
            first_records=np.concatenate([np.zeros(1, np.int64), np.cumsum(records)]),
            sizes=np.array([shard_entry.file.bytes for shard_entry in shard_entries], np.int64),
        )

    def __len__(self) -> int:
        return len(self.stems)

    def stem(self, shard_number: int) -> str:
        """Return the name of a shard."""
        encoded_name: bytes = self.stems[shard_number]
        return encoded_name.decode()
