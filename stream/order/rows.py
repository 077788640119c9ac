"""Rows of a batch: the record of each sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ROW_NAMES = ("sample", "member", "epoch", "split", "record")
ROW_TYPE = np.dtype({"names": ROW_NAMES, "formats": ("<i8", "<i2", "<i8", "<i2", "<i8")}, align=True)
"""Type of a packed row."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Records of samples, with one element for each sample.

    Attributes:
        sample: Global number of the sample, int64.
        member: Number of the dataset, int16.
        epoch: Epoch of the dataset, from 0, int64.
        split: Number in ``Views.splits``, int16.
        record: Row of the split's ``records``, or of ``steps`` in the layout ``frames``, int64.
    """

    sample: np.ndarray
    member: np.ndarray
    epoch: np.ndarray
    split: np.ndarray
    record: np.ndarray

    def __len__(self) -> int:
        return len(self.sample)

    def cut(self, start: int, stop: int) -> Rows:
        """Return rows [start, stop), without a copy."""
        return Rows(*(getattr(self, name)[start:stop] for name in ROW_NAMES))

    def replaced(self, places: np.ndarray, others: Rows) -> Rows:
        """Return a copy with ``others`` at the given places, int [len(others)]."""
        packed = self.packed()
        packed[places] = others.packed()
        return Rows.unpacked(packed)

    def packed(self) -> np.ndarray:
        """Return the rows as one array, ROW_TYPE [n]."""
        packed = np.empty(len(self), ROW_TYPE)
        for name in ROW_NAMES:
            packed[name] = getattr(self, name)
        return packed

    @classmethod
    def unpacked(cls, packed: np.ndarray) -> Rows:
        """Return the rows of an array of ROW_TYPE, without a copy."""
        return cls(*(packed[name] for name in ROW_NAMES))
