"""Weights of samples: which sample an epoch draws at a position, so that each comes as often as its weight says.

The samples of a member lie one after the other on a line, each as long as its weight. An epoch of N samples takes N
points of the line at equal distances, from one random offset on; the sample under a point is drawn. So an epoch draws
sample i floor or ceil of N * w_i / sum(w) times, and a sample of weight 0 never ("systematic sampling").

All lengths are whole numbers, so every process finds the same sample: a weight is counted in units of a power of two,
the smallest with which the sum stays below 2^62, rounded up. Weights that are whole multiples of the unit are exact.
With N samples that is every float32 down to 2^(24 - 61) * N times the largest weight, so at 6*10^7 samples to 1/8,192.

In memory are only the sums of blocks of neighbouring samples. The weights of one block are read when a point falls on
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stream.base.errors import ArgumentError, closest
from stream.order.shuffle import make_key

BLOCK = 64
"""Samples whose sum is kept in memory."""
_CHUNK = 1 << 18
"""Samples that are read at once when weights are opened; a multiple of ``BLOCK``."""
_AT_ONCE = 1 << 12
"""Draws that are looked up at once."""
_BITS = 62
_MOST = 1 << 30
"""Most samples of a member; products of two of their numbers stay within int64."""

Read = Callable[[np.ndarray | range], tuple[np.ndarray, np.ndarray | None]]
"""Reader of the weights of samples by ascending numbers, and which of them exist; None if all do."""


@dataclass(frozen=True)
class _Weighted:
    """A member with weights.

    Attributes:
        name: Name, which with seed and epoch makes the offset.
        size: Count of its samples, N.
        begin: Number of its first sample.
        scale: Factor from weights to whole numbers.
        first: Number of its first block.
        total: Sum of its weights as whole numbers, below 2^62.
        zeros: Count of its samples of weight 0.
    """

    name: str
    size: int
    begin: int
    scale: float
    first: int
    total: int
    zeros: int


@dataclass(frozen=True)
class _Sums:
    """Weights of a member, added up: ``ends`` of blocks on its line, int64, the largest weight, and count of zeros."""

    ends: np.ndarray
    largest: float
    zeros: int


class SampleWeights:
    """The weights of the samples of a mixture's members.

    Args:
        read: Reads weights by number of the sample in the mixture.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._members: dict[int, _Weighted] = {}
        self._ends = np.zeros(0, np.int64)
        self._table = np.zeros((0, 5), np.int64)
        self._scale = np.zeros(0)

    def __bool__(self) -> bool:
        return bool(self._members)

    @property
    def members(self) -> list[int]:
        """Numbers of the members with weights."""
        return list(self._members)

    def add(self, member: int, name: str, column: str, *, begin: int, size: int) -> None:
        """Read the weights of a member.

        Args:
            member: Number of the member.
            name: Name of the member.
            column: Name of the column, for messages.
            begin: Number of its first sample.
            size: Count of its samples.

        Raises:
            ArgumentError: Weights are missing, negative or infinite, or all are 0; gives the counts of each.
        """
        where = f"sample_weights: dataset {name}, column {column!r}"
        if size > _MOST:
            raise ArgumentError(f"{where}: {size:,} samples; at most {_MOST:,} can have weights")
        first = float(np.max(self._read(next(_chunks(begin, size)))[0], initial=0))
        summed = self._sum(where, begin, size, _exponent(first))
        if _exponent(summed.largest) != _exponent(first):
            summed = self._sum(where, begin, size, _exponent(summed.largest))
        scale, ends = _scale(size, _exponent(summed.largest)), summed.ends
        self._members[member] = _Weighted(name, size, begin, scale, len(self._ends), int(ends[-1]), summed.zeros)
        self._ends = np.concatenate([self._ends, ends])
        rows = 1 + max(self._members)
        self._table, self._scale = np.zeros((rows, 5), np.int64), np.zeros(rows)
        for number, each in self._members.items():
            step, rest = divmod(each.total, each.size)
            self._table[number] = each.size, each.begin, each.first, step, rest
            self._scale[number] = each.scale

    @property
    def nbytes(self) -> int:
        """Bytes of the sums in memory."""
        return self._ends.nbytes + self._table.nbytes + self._scale.nbytes

    def zeros(self, member: int) -> int:
        """Return the count of a member's samples of weight 0."""
        return self._members[member].zeros

    def shares(self, member: int) -> np.ndarray:
        """Return the weight of each sample of a member, of a sum of 1, float64 [N]."""
        own = self._members[member]
        parts = [_units(self._read(numbers)[0], own.scale) for numbers in _chunks(own.begin, own.size)]
        return np.concatenate(parts) / own.total

    def draw(self, member: np.ndarray, epoch: np.ndarray, position: np.ndarray, *, seed: int) -> np.ndarray:
        """Return the number in its member of the sample at each position of an epoch, int64 [n].

        Args:
            member, epoch: Member and epoch of each draw, int64 [n]; all members have weights.
            position: Position in the epoch, int64 [n], in [0, N).
            seed: Seed of the offsets.
        """
        pairs = list(zip(member.tolist(), epoch.tolist(), strict=True))
        offsets = {pair: self._offset(*pair, seed) for pair in set(pairs)}
        offset = np.array([offsets[pair] for pair in pairs], np.int64)
        size, _, first, step, rest = self._table[member].T
        # (position * total + offset) // size, in parts that stay within int64.
        point = position * step + (position * rest + offset) // size
        block = self._block(point, first, first + (size - 1) // BLOCK)
        point -= np.where(block > first, self._ends[block - 1], 0)
        start = (block - first) * BLOCK
        found = [self._inside(*(each[at : at + _AT_ONCE] for each in (member, start, point))) for at in _starts(point)]
        return np.asarray(start + np.concatenate([start[:0], *found]))

    def _inside(self, member: np.ndarray, start: np.ndarray, point: np.ndarray) -> np.ndarray:
        """Return the place of points in blocks, int64 [n].

        Args:
            member: Member of each point.
            start: First place of its block in the member.
            point: Point, counted from the begin of the block.
        """
        blocks, first, of = np.unique(self._table[member, 1] + start, return_index=True, return_inverse=True)
        own = member[first]
        left = (self._table[own, 0] - start[first])[:, None]
        places = np.arange(BLOCK)
        values = self._read((blocks[:, None] + np.minimum(places, left - 1)).ravel())[0].reshape(-1, BLOCK)
        ends = np.cumsum(np.where(places < left, _units(values, self._scale[own][:, None]), 0), axis=1)
        return np.asarray((ends[of] <= point[:, None]).sum(axis=1))

    def _block(self, point: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return the block of each point of a member's line, between its ``first`` and ``last``."""
        while (first < last).any():
            middle = (first + last) // 2
            is_beyond = self._ends[middle] <= point
            first, last = np.where(is_beyond, middle + 1, first), np.where(is_beyond, last, middle)
        return first

    def _offset(self, member: int, epoch: int, seed: int) -> int:
        """Return the offset of an epoch's points, times the size of the epoch: in [0, total)."""
        own = self._members[member]
        return (make_key(seed, "sample_weights", own.name, epoch) * own.total) >> 64

    def _sum(self, where: str, begin: int, size: int, exponent: int) -> _Sums:
        """Add up the weights of some samples, the largest of which is below 2^exponent.

        Raises:
            ArgumentError: A weight is none, or all are 0.
        """
        scale, largest, zeros, wrong = _scale(size, exponent), 0.0, 0, np.zeros(3, np.int64)
        sums = [np.zeros(0, np.int64)]
        for numbers in _chunks(begin, size):
            values, valid = self._read(numbers)
            low, high = float(values.min()), float(values.max())
            if valid is not None or not 0 <= low <= high < math.inf:
                is_real = ~np.isnan(values) if valid is None else valid & ~np.isnan(values)
                wrong += [each.sum() for each in (~is_real, is_real & (values < 0), is_real & (values == np.inf))]
                values = values[is_real & np.isfinite(values)]
                high = float(values.max(initial=0))
            largest = max(largest, high)
            if not low > 0:
                zeros += len(values) - int(np.count_nonzero(values))
            if high < 2.0**exponent and not wrong.any():
                sums.append(np.add.reduceat(_units(values, scale), np.arange(0, len(values), BLOCK)))
        if wrong.any():
            raise ArgumentError(
                f"{where}: of {size:,} samples {wrong[0]:,} have no weight (NaN or missing, such as steps that a table "
                f"of labels does not name), {wrong[1]:,} a negative one, {wrong[2]:,} an infinite one; weights are "
                "finite numbers >= 0, so mend the column or choose samples with filters"
            )
        if not largest:
            raise ArgumentError(f"{where}: all {size:,} samples have weight 0; give some of them a weight above 0")
        return _Sums(np.cumsum(np.concatenate(sums)), largest, zeros)


def _starts(values: np.ndarray) -> range:
    return range(0, len(values), _AT_ONCE)


def _exponent(value: float) -> int:
    """Return the least e with value < 2^e; 0 for what has none."""
    return math.frexp(value)[1] if math.isfinite(value) else 0


def _scale(size: int, exponent: int) -> float:
    """Return the factor from weights below 2^exponent to whole numbers, whose sum stays below 2^62."""
    return math.ldexp(1.0, max(-1000, min(1000, _BITS - size.bit_length() - exponent)))


def _chunks(begin: int, size: int) -> Iterator[range]:
    for start in range(begin, begin + size, _CHUNK):
        yield range(start, min(start + _CHUNK, begin + size))


def _units(values: np.ndarray, scale: float | np.ndarray) -> np.ndarray:
    """Return weights as whole numbers, int64; above 0 where the weight is."""
    return np.asarray(np.ceil(np.multiply(values, scale, dtype=np.float64)), np.int64)


def parse_weights(given: str | Mapping[str, str] | None, members: Sequence[str]) -> dict[str, str]:
    """Return the column of weights of each member that has one.

    Args:
        given: None, a column for all members, or a column by member.
        members: Names of the members.

    Raises:
        ArgumentError: A member is unknown.
    """
    columns = dict.fromkeys(members, given) if isinstance(given, str) else dict(given or {})
    for name in columns:
        if name not in members:
            raise ArgumentError(f"sample_weights: no member {name!r}; {closest(name, members, noun='members')}")
    return columns
