"""Rows of a batch: which record each sample is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ROW_NAMES = ("sample", "member", "epoch", "shard", "record")


@dataclass(frozen=True, eq=False)
class Rows:
    """Where samples come from, one element a sample.

    sample int64, member int16 (number of the dataset), epoch int64 (of that dataset, from 0), shard int32 (number in
    ``Views.shards``), record int64 (in the shard).
    """

    sample: np.ndarray
    member: np.ndarray
    epoch: np.ndarray
    shard: np.ndarray
    record: np.ndarray

    def __len__(self) -> int:
        return len(self.sample)

    def split(self, length: int) -> list[Rows]:
        """Cut into runs of ``length`` rows."""
        return [
            Rows(*(getattr(self, name)[start : start + length] for name in ROW_NAMES))
            for start in range(0, len(self), length)
        ]
