"""Rows of a batch: the record of each sample."""

from __future__ import annotations

import numpy as np

ROW_NAMES = ("sample", "member", "epoch", "split", "record")
ROW_TYPE = np.dtype({"names": ROW_NAMES, "formats": ("<i8", "<i2", "<i8", "<i2", "<i8")}, align=True)
"""Type of a row."""


class Rows:
    """Records of samples, one row for each sample.

    Args:
        table: Rows, ROW_TYPE [n]; not copied.

    Attributes:
        table: Rows, ROW_TYPE [n].
        sample: Global number of the sample, int64 [n].
        member: Number of the dataset, int16 [n].
        epoch: Epoch of the dataset, from 0, int64 [n].
        split: Number in ``SampleIndex.splits``, int16 [n].
        record: Row of the split's ``records``, or of ``steps`` in the layout ``frames``, int64 [n].
    """

    def __init__(self, table: np.ndarray) -> None:
        self.table = table
        self.sample, self.member, self.epoch = table["sample"], table["member"], table["epoch"]
        self.split, self.record = table["split"], table["record"]

    @classmethod
    def of(
        cls, *, sample: np.ndarray, member: np.ndarray, epoch: np.ndarray, split: np.ndarray, record: np.ndarray
    ) -> Rows:
        """Return the rows of columns, int [n] each."""
        table = np.empty(len(sample), ROW_TYPE)
        table["sample"], table["member"], table["epoch"] = sample, member, epoch
        table["split"], table["record"] = split, record
        return cls(table)

    def __len__(self) -> int:
        return len(self.table)

    def cut(self, start: int, stop: int) -> Rows:
        """Return rows [start, stop), without a copy."""
        return Rows(self.table[start:stop])

    def replaced(self, positions: np.ndarray, replacements: Rows) -> Rows:
        """Return a copy with ``replacements`` at some positions, int [len(replacements)]."""
        table = self.table.copy()
        table[positions] = replacements.table
        return Rows(table)
