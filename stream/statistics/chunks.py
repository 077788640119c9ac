"""Exact statistics of chunks, relative or not, computed from the columns of the index without reading a frame.

Quantiles are exact in two passes: the first counts values by the upper half of their bits, the second counts those that
share it with a quantile by the lower half. So memory does not grow with the count of chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stream.batch.vectors import DatasetVector
from stream.format.statistics import NUMBERS
from stream.format.table import Table
from stream.sample.relative import RelativeVector
from stream.sample.window import nearest_steps

Tails = Literal["complete", "real", "repeat"]
"""Chunks that count: complete ones; the steps of all that are in the episode; or all, with the last step repeated.

The last step is that of the chunk, which a stride may keep from the end of the episode.
"""
_ROWS = 1 << 15
"""Chunks that are computed at once."""
_BLOCK = 1 << 17
"""Steps that are in memory at once, or one episode."""
_QUANTILES = (("q01", 0.01), ("q99", 0.99))
_BINS = 1 << 16

Chunks = Iterator[tuple[np.ndarray, np.ndarray]]
"""Values float32 [n, W, D], and their mask, bool, or how often they count, int64 [n, W, D]; some chunks at a time."""


@dataclass(frozen=True, kw_only=True)
class ChunkSteps:
    """Steps of the chunks of a dataset.

    Attributes:
        start: First step, from t.
        length: Count of the steps, W.
        stride: Steps of the episode from one step to the next.
        repeats_edges: Whether steps beyond the episode are its first or last step, so that all steps count.
        tails: Chunks that count.
    """

    start: int
    length: int
    stride: int = 1
    repeats_edges: bool = False
    tails: Tails


@dataclass(frozen=True, eq=False)
class ChunkSource:
    """Columns of some complete episodes.

    Attributes:
        values: Vector of each step, float32 [N, size], and its mask, bool [N, size].
        state: State of each step, float32 [N, S], and its mask; None if the conversion reads none.
        step, num_steps: Step in the episode, and steps of the episode, of each row, int64 [N].
        anchors: Rows whose chunks count, int64 [n].
    """

    values: tuple[np.ndarray, np.ndarray]
    state: tuple[np.ndarray, np.ndarray] | None
    step: np.ndarray
    num_steps: np.ndarray
    anchors: np.ndarray

    def chunks(self, conversion: RelativeVector | None, steps: ChunkSteps) -> Chunks:
        """Yield the chunks of the anchors that count, converted if there is a conversion."""
        for rows, step_rows, counts in self._chunk_rows(steps):
            values, mask = self.values[0][step_rows], self.values[1][step_rows] & counts[..., None]
            if conversion is None:
                yield values, mask
                continue
            now = (None, None) if self.state is None else (self.state[0][rows], self.state[1][rows])
            yield conversion.forward(values, mask, *now)

    def counted(self, steps: ChunkSteps) -> Chunks:
        """Yield each step once, as a chunk of one step, with the count of the chunks that contain it."""
        num_chunks = np.zeros(len(self.step), np.int64)
        for _, step_rows, counts in self._chunk_rows(steps):
            num_chunks += np.bincount(step_rows[counts], minlength=len(num_chunks))
        values, mask = self.values
        yield values[:, None], np.where(mask, num_chunks[:, None], 0)[:, None]

    def _chunk_rows(self, steps: ChunkSteps) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield rows of anchors, int64 [n]; the rows of the steps of their chunks, int64 [n, W]; and which count."""
        anchors = self.anchors
        distances = steps.start + steps.stride * np.arange(steps.length)
        if steps.tails == "complete":
            first_steps, last_steps = (self.step[anchors] + distances[end] for end in (0, -1))
            anchors = anchors[(first_steps >= 0) & (last_steps < self.num_steps[anchors])]
        has_values = np.asarray(self.values[1].any(axis=1))
        for first in range(0, len(anchors), _ROWS):
            rows = anchors[first : first + _ROWS]
            step, last_steps = self.step[rows, None], self.num_steps[rows, None] - 1
            chunk_steps = step + distances
            clipped = np.clip(chunk_steps, 0, last_steps)
            step_rows = rows[:, None] + clipped - step
            counts = np.asarray((clipped == chunk_steps) | steps.repeats_edges)
            if steps.tails == "repeat" and not steps.repeats_edges:
                is_step = counts & has_values[step_rows]
                step_rows = np.take_along_axis(step_rows, nearest_steps(is_step), axis=1)
                counts = np.broadcast_to(is_step.any(axis=1, keepdims=True), step_rows.shape)
            yield rows, step_rows, counts


def read_sources(
    table: Table, vector: DatasetVector, state: DatasetVector | None, chosen_rows: np.ndarray | None = None
) -> Iterator[ChunkSource]:
    """Yield the steps of a split, some complete episodes at a time.

    Args:
        table: Table ``steps``.
        vector: Vector, of columns of the table.
        state: State that it is relative to, of columns of the table; None if none is read.
        chosen_rows: Rows whose chunks count, ascending; None for all.
    """
    step = table.array("step")
    starts = np.append(np.flatnonzero(step == 0), len(step))
    first = 0
    while first < len(starts) - 1:
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + _BLOCK, side="right")) - 1)
        rows = np.arange(starts[first], starts[last])
        lengths = np.diff(starts[first : last + 1])
        anchors = np.arange(len(rows))
        if chosen_rows is not None:
            begin, end = np.searchsorted(chosen_rows, [starts[first], starts[last]])
            anchors = chosen_rows[begin:end] - starts[first]
        yield ChunkSource(
            _finite(vector, table, rows),
            None if state is None else _finite(state, table, rows),
            step[rows].astype(np.int64),
            np.repeat(lengths, lengths),
            anchors,
        )
        first = last


def _finite(vector: DatasetVector, table: Table, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, mask = vector.take(table, rows)
    return values, mask & ~np.isnan(values)


def describe_chunks(
    parts: Sequence[tuple[float, Callable[[], Chunks]]], size: int, *, per_step: bool
) -> dict[str, np.ndarray]:
    """Return ``count`` and the statistics of chunks, float64 [D], or [W, D] of each step; NaN without values.

    With one weight for all, quantiles are interpolated as numpy does; with several, a quantile is the least value with
    at least this share of the weights.

    Args:
        parts: Weight of each chunk of a part, and function that yields the chunks; it is called twice. Parts of weight
            0 do not count.
        size: Dimensions of the chunks, D.
        per_step: Whether each step of a chunk has its own statistics.
    """
    columns: list[_Column] = []
    for second_pass in (False, True):
        for weight, make_chunks in parts:
            # A dataset of weight 0 has no samples.
            for values, mask in make_chunks() if weight > 0 else ():
                # Chunks of a time are longer in a dataset of a higher rate.
                num_columns = size * (values.shape[1] if per_step else 1)
                columns += [_Column() for _ in range(num_columns - len(columns))]
                for number, column in enumerate(columns[:num_columns]):
                    step, dim = divmod(number, size)
                    cell = (slice(None), step, dim) if per_step else (slice(None), slice(None), dim)
                    counts = mask[cell]
                    is_counted = counts > 0
                    repeats = None if mask.dtype == bool else counts[is_counted]
                    column.add(values[cell][is_counted], weight, repeats, second_pass=second_pass)
    if not per_step and not columns:
        columns = [_Column() for _ in range(size)]
    shape = (len(columns) // max(size, 1), size) if per_step else (size,)
    numbers = [column.numbers() for column in columns]
    result = {name: np.array([number[name] for number in numbers]).reshape(shape) for name in NUMBERS}
    return {"count": np.array([column.count for column in columns], np.int64).reshape(shape), **result}


class _Column:
    """Statistics of one dimension, from its values in two passes."""

    def __init__(self) -> None:
        self.count = 0
        self._weights: set[float] = set()
        self._total = self._sum = self._squares = 0.0
        self._low, self._high = np.inf, -np.inf
        self._bins = np.zeros(_BINS)
        self._close: dict[int, np.ndarray] = {}

    def add(self, values: np.ndarray, weight: float, repeats: np.ndarray | None, *, second_pass: bool) -> None:
        """Count all values of the first pass, and those of the second that are close to a quantile.

        Args:
            values: float32 [n].
            weight: Weight of every value.
            repeats: How often each value counts, int64 [n]; None for once.
            second_pass: Whether the first pass is complete.
        """
        is_finite = np.isfinite(values)
        values, repeats = values[is_finite], None if repeats is None else repeats[is_finite]
        if not len(values):
            return
        keys = _sort_keys(values)
        upper = (keys >> np.uint32(16)).astype(np.int64)
        if not second_pass:
            count = len(values) if repeats is None else int(repeats.sum())
            self.count += count
            self._weights.add(weight)
            self._total += weight * count
            self._sum += weight * _total(values, repeats)
            self._low, self._high = min(self._low, float(values.min())), max(self._high, float(values.max()))
            self._bins += weight * np.bincount(upper, repeats, minlength=_BINS)
            return
        deviations = values.astype(np.float64) - self._sum / self._total
        self._squares += weight * _total(deviations**2, repeats)
        if not self._close:
            self._close = {number: np.zeros(_BINS) for number in self._wanted_bins()}
        for number, lower_bins in self._close.items():
            is_close = upper == number
            lower = keys[is_close] & np.uint32(_BINS - 1)
            close_repeats = None if repeats is None else repeats[is_close]
            lower_bins += weight * np.bincount(lower.astype(np.int64), close_repeats, minlength=_BINS)

    def numbers(self) -> dict[str, float]:
        """Return the statistics."""
        if not self.count:
            return dict.fromkeys(NUMBERS, np.nan)
        quantiles = {name: self._quantile(share) for name, share in _QUANTILES}
        mean, deviation = self._sum / self._total, float(np.sqrt(self._squares / self._total))
        return {"mean": mean, "std": deviation, "min": self._low, "max": self._high, **quantiles}

    def _positions(self, share: float) -> tuple[float, float, float]:
        """Return the positions of the two values around a quantile in the sum of weights, and the share of the second.

        A value lies at the middle of its weight, so that rounding of the sum cannot pass its ends.
        """
        if len(self._weights) > 1:
            position = share * self._total
            return position, position, 0.0
        (weight,) = self._weights
        rank = share * (self.count - 1)
        lower, upper = int(rank), min(int(rank) + 1, self.count - 1)
        return (lower + 0.5) * weight, (upper + 0.5) * weight, rank - lower

    def _wanted_bins(self) -> set[int]:
        ends = self._bins.cumsum()
        positions = [position for _, share in _QUANTILES for position in self._positions(share)[:2]]
        return {_bin_of(ends, position) for position in positions}

    def _quantile(self, share: float) -> float:
        ends = self._bins.cumsum()
        lower, upper, second_share = self._positions(share)
        pair = []
        for position in (lower, upper):
            number = _bin_of(ends, position)
            in_bin = position - (ends[number] - self._bins[number])
            pair.append(_value_of((number << 16) | _bin_of(self._close[number].cumsum(), in_bin)))
        return pair[0] + (pair[1] - pair[0]) * second_share


def _total(values: np.ndarray, repeats: np.ndarray | None) -> float:
    """Return the sum of values, each as often as it counts."""
    return float(values.sum(dtype=np.float64) if repeats is None else values.astype(np.float64) @ repeats)


def _bin_of(ends: np.ndarray, position: float) -> int:
    """Return the bin that holds a position; beyond the last one by rounding, the last that holds anything."""
    return min(int(np.searchsorted(ends, position, side="right")), int(np.searchsorted(ends, ends[-1])))


def _sort_keys(values: np.ndarray) -> np.ndarray:
    """Return whole numbers in the order of float32 values, uint32 [n]."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31))


def _value_of(key: int) -> float:
    """Return the float32 value of a number of ``_sort_keys``."""
    bits = key ^ (1 << 31) if key >> 31 else ~key & 0xFFFFFFFF
    return float(np.array(bits, np.uint32).view(np.float32))
