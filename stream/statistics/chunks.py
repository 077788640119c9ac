"""Exact statistics of relative chunks, computed from the columns of the index without reading a frame.

Quantiles are exact in two passes: the first counts values by the upper half of their bits, the second counts those that
share it with a quantile by the lower half. So memory does not grow with the count of chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stream.format.statistics import NUMBERS
from stream.policy.relative import RelativeVector

Tails = Literal["complete", "real", "repeat"]
"""Chunks that count: complete ones; the steps of all that are in the episode; or all, with the last step repeated."""
_ROWS = 1 << 15
"""Chunks that are computed at once."""
_QUANTILES = (("q01", 0.01), ("q99", 0.99))
_BINS = 1 << 16

Chunks = Iterator[tuple[np.ndarray, np.ndarray]]
"""Values float32 [n, W, D] and their mask bool [n, W, D], some chunks at a time."""


@dataclass(frozen=True, eq=False)
class ChunkSource:
    """Columns of some complete episodes.

    Attributes:
        values: Vector of each step, float32 [N, size], and its mask, bool [N, size].
        state: State of each step, float32 [N, S], and its mask; None if the conversion reads none.
        step, num_steps: Step in the episode, and steps of the episode, of each row, int64 [N].
    """

    values: tuple[np.ndarray, np.ndarray]
    state: tuple[np.ndarray, np.ndarray] | None
    step: np.ndarray
    num_steps: np.ndarray

    def chunks(self, conversion: RelativeVector, *, start: int, length: int, tails: Tails) -> Chunks:
        """Yield the converted chunks of all steps, or of those whose chunk is complete."""
        anchors = np.arange(len(self.step))
        if tails == "complete":
            has_start, has_stop = self.step + start >= 0, self.step + start + length <= self.num_steps
            anchors = anchors[has_start & has_stop]
        offsets = start + np.arange(length)
        for first in range(0, len(anchors), _ROWS):
            rows = anchors[first : first + _ROWS]
            steps = self.step[rows, None] + offsets
            last_steps = self.num_steps[rows, None] - 1
            inside = (steps >= 0) & (steps <= last_steps)
            taken = rows[:, None] + np.clip(steps, 0, last_steps) - self.step[rows, None]
            values, mask = self.values[0][taken], self.values[1][taken]
            if tails == "real":
                mask = mask & inside[..., None]
            now = (None, None) if self.state is None else (self.state[0][rows], self.state[1][rows])
            yield conversion.forward(values, mask, *now)


def describe_chunks(make_chunks: Callable[[], Chunks], size: int, *, per_step: bool) -> dict[str, np.ndarray]:
    """Return ``count`` and the statistics of chunks, float64 [D], or [W, D] of each step; NaN without values.

    Args:
        make_chunks: Function that yields the chunks from the beginning; it is called twice.
        size: Dimensions of the chunks, D.
        per_step: Whether each step of a chunk has its own statistics.
    """
    columns: list[_Column] = []
    shape: tuple[int, ...] = (size,)
    for second_pass in (False, True):
        for values, mask in make_chunks():
            if not columns:
                shape = (values.shape[1], size) if per_step else (size,)
                columns = [_Column() for _ in range(int(np.prod(shape)))]
            for number, column in enumerate(columns):
                step, dim = divmod(number, size)
                cell = (slice(None), step, dim) if per_step else (slice(None), slice(None), dim)
                column.add(values[cell][mask[cell]], second_pass=second_pass)
    numbers = [column.numbers() for column in columns] or [_Column().numbers()] * size
    result = {name: np.array([number[name] for number in numbers]).reshape(shape) for name in NUMBERS}
    return {"count": np.array([column.count for column in columns] or [0] * size).reshape(shape), **result}


class _Column:
    """Statistics of one dimension, from its values in two passes."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = self._squares = 0.0
        self._low, self._high = np.inf, -np.inf
        self._bins = np.zeros(_BINS, np.int64)
        self._close: dict[int, np.ndarray] = {}

    def add(self, values: np.ndarray, *, second_pass: bool) -> None:
        """Count all values of the first pass, and those of the second that are close to a quantile."""
        values = values[np.isfinite(values)]
        if not len(values):
            return
        keys = _sort_keys(values)
        upper = (keys >> np.uint32(16)).astype(np.int64)
        if not second_pass:
            self.count += len(values)
            self._sum += float(values.sum(dtype=np.float64))
            self._low, self._high = min(self._low, float(values.min())), max(self._high, float(values.max()))
            self._bins += np.bincount(upper, minlength=_BINS)
            return
        self._squares += float(((values.astype(np.float64) - self._sum / self.count) ** 2).sum())
        if not self._close:
            self._close = {number: np.zeros(_BINS, np.int64) for number in self._wanted_bins()}
        for number, lower_bins in self._close.items():
            lower = keys[upper == number] & np.uint32(_BINS - 1)
            lower_bins += np.bincount(lower.astype(np.int64), minlength=_BINS)

    def numbers(self) -> dict[str, float]:
        """Return the statistics."""
        if not self.count:
            return dict.fromkeys(NUMBERS, np.nan)
        quantiles = {name: self._quantile(share) for name, share in _QUANTILES}
        mean, deviation = self._sum / self.count, float(np.sqrt(self._squares / self.count))
        return {"mean": mean, "std": deviation, "min": self._low, "max": self._high, **quantiles}

    def _ranks(self, share: float) -> tuple[int, int, float]:
        """Return the ranks of the two values around a quantile, and the share of the second, as numpy interpolates."""
        position = share * (self.count - 1)
        return int(position), min(int(position) + 1, self.count - 1), position - int(position)

    def _wanted_bins(self) -> set[int]:
        ends = self._bins.cumsum()
        ranks = [rank for _, share in _QUANTILES for rank in self._ranks(share)[:2]]
        return {int(np.searchsorted(ends, rank, side="right")) for rank in ranks}

    def _quantile(self, share: float) -> float:
        ends = self._bins.cumsum()
        lower, upper, weight = self._ranks(share)
        pair = []
        for rank in (lower, upper):
            number = int(np.searchsorted(ends, rank, side="right"))
            rank_in_bin = rank - (ends[number] - self._bins[number])
            lower_half = int(np.searchsorted(self._close[number].cumsum(), rank_in_bin, side="right"))
            pair.append(_value_of((number << 16) | lower_half))
        return pair[0] + (pair[1] - pair[0]) * weight


def _sort_keys(values: np.ndarray) -> np.ndarray:
    """Return whole numbers in the order of float32 values, uint32 [n]."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31))


def _value_of(key: int) -> float:
    """Return the float32 value of a number of ``_sort_keys``."""
    bits = key ^ (1 << 31) if key >> 31 else ~key & 0xFFFFFFFF
    return float(np.array(bits, np.uint32).view(np.float32))
