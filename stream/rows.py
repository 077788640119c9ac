"""Rows of a batch: which record each sample is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Share = tuple[int, int]
"""Of the rows of a batch, from which to which."""

_LEAST_ROWS = 8
ROW_NAMES = ("sample", "member", "epoch", "shard", "record")
ROW_TYPE = np.dtype({"names": ROW_NAMES, "formats": ("<i8", "<i2", "<i8", "<i4", "<i8")}, align=True)
"""Of a packed row."""


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

    def cut(self, start: int, stop: int) -> Rows:
        """Rows [start, stop), without a copy."""
        return Rows(*(getattr(self, name)[start:stop] for name in ROW_NAMES))

    def split(self, length: int) -> list[Rows]:
        """Cut into runs of ``length`` rows."""
        return [self.cut(start, start + length) for start in range(0, len(self), length)]

    def packed(self) -> bytes:
        """The rows one behind the other, ROW_TYPE each."""
        packed = np.zeros(len(self), ROW_TYPE)
        for name in ROW_NAMES:
            packed[name] = getattr(self, name)
        return packed.tobytes()

    @classmethod
    def unpacked(cls, packed: np.ndarray) -> Rows:
        """The rows of an array of ROW_TYPE, without a copy."""
        return cls(*(packed[name] for name in ROW_NAMES))


def share_rows(rows: int, shares: int) -> list[Share]:
    """Return (start, stop) of the parts of a batch that workers make at the same time.

    A batch that is shared is there in a part of the time, at even intervals, and with fewer batches under way than if
    each worker made a whole one. A part has 8 rows or more, because each costs a message.

    >>> share_rows(64, 3), share_rows(12, 4)
    ([(0, 21), (21, 42), (42, 64)], [(0, 12)])
    """
    shares = max(1, min(shares, rows // _LEAST_ROWS))
    return [(rows * i // shares, rows * (i + 1) // shares) for i in range(shares)]
