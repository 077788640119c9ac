"""Weights of samples: the sample that an epoch draws at a position, so that its frequency matches its weight.

The samples of a member are laid one after the other on a line, each as long as its weight. An epoch of N samples takes
N points of the line at equal distances, from one random offset on; the sample under a point is drawn. So an epoch draws
sample i floor or ceil of N * w_i / sum(w) times, and never a sample of weight 0 ("systematic sampling").

All lengths are whole numbers, so every process finds the same sample. The unit of a weight is the smallest power of two
that keeps the sum below 2^62; weights are rounded up to it. Weights that are whole multiples of the unit are exact:
with N samples every float32 down to 2^(24 - 61) * N times the largest weight, so at 6*10^7 samples to 1/8,192.

Memory holds only the sums of blocks of consecutive samples. The weights of a block are read when a point is in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stream.base.errors import ArgumentError, closest
from stream.base.random_numbers import make_key

BLOCK = 64
"""Samples whose sum is kept in memory."""
_CHUNK = 1 << 18
"""Samples that are read at once when weights are opened; a multiple of ``BLOCK``."""
_AT_ONCE = 1 << 12
"""Draws that are looked up at once."""
_BITS = 62
_MOST = 1 << 30
"""Most samples of a member; products of two sample numbers stay within int64."""

Read = Callable[[np.ndarray | range], tuple[np.ndarray, np.ndarray | None]]
"""Reader of weights by ascending sample numbers, and of the mask of samples that have a weight; None if all have."""


@dataclass(frozen=True)
class _Weighted:
    """A member with weights.

    Attributes:
        name: Name; with seed and epoch it makes the offset.
        num_samples: Count of samples, N.
        first_sample: Number of the first sample.
        scale: Factor from weights to whole numbers.
        first_block: Number of the first block.
        total: Sum of the weights as whole numbers, below 2^62.
        zeros: Count of the samples of weight 0.
    """

    name: str
    num_samples: int
    first_sample: int
    scale: float
    first_block: int
    total: int
    zeros: int


@dataclass(frozen=True)
class _Sums:
    """Sums of a member's weights: ``ends`` of blocks on its line, int64, the largest weight, and count of zeros."""

    ends: np.ndarray
    largest: float
    zeros: int


class SampleWeights:
    """The weights of the samples of a mixture's members.

    Args:
        read_weights: Reads weights by number of the sample in the mixture.
    """

    def __init__(self, read_weights: Read) -> None:
        self._read = read_weights
        self._members: dict[int, _Weighted] = {}
        # Ends of the blocks of all members; first sample, count of samples, first block, and the distance of two
        # points as quotient and remainder, by member; scale by member.
        self._ends = np.zeros(0, np.int64)
        self._table = np.zeros((0, 5), np.int64)
        self._scale = np.zeros(0)

    def __bool__(self) -> bool:
        return bool(self._members)

    @property
    def members(self) -> list[int]:
        """Numbers of the members with weights."""
        return list(self._members)

    def add(self, member: int, name: str, column: str, *, first_sample: int, num_samples: int) -> None:
        """Read the weights of a member.

        Args:
            member: Number of the member.
            name: Name of the member.
            column: Name of the column, for messages.
            first_sample: Number of its first sample.
            num_samples: Count of its samples.

        Raises:
            ArgumentError: Weights are missing, negative or infinite, or all are 0; the message gives the counts.
        """
        context = f"sample_weights: dataset {name}, column {column!r}"
        if num_samples > _MOST:
            raise ArgumentError(f"{context}: {num_samples:,} samples; at most {_MOST:,} can have weights")
        # The scale depends on the largest weight. The first chunk usually gives the same scale, which saves a pass.
        exponent = _exponent(float(np.max(self._read(next(_chunks(first_sample, num_samples)))[0], initial=0)))
        sums = self._sum(context, first_sample, num_samples, exponent)
        if _exponent(sums.largest) != exponent:
            exponent = _exponent(sums.largest)
            sums = self._sum(context, first_sample, num_samples, exponent)
        scale, total = _scale(num_samples, exponent), int(sums.ends[-1])
        weighted = _Weighted(name, num_samples, first_sample, scale, len(self._ends), total, sums.zeros)
        self._members[member] = weighted
        self._ends = np.concatenate([self._ends, sums.ends])
        num_rows = 1 + max(self._members)
        self._table, self._scale = np.zeros((num_rows, 5), np.int64), np.zeros(num_rows)
        for number, weighted in self._members.items():
            distance = divmod(weighted.total, weighted.num_samples)
            self._table[number] = weighted.num_samples, weighted.first_sample, weighted.first_block, *distance
            self._scale[number] = weighted.scale

    @property
    def nbytes(self) -> int:
        """Bytes of the sums in memory."""
        return self._ends.nbytes + self._table.nbytes + self._scale.nbytes

    def zeros(self, member: int) -> int:
        """Return the count of a member's samples of weight 0."""
        return self._members[member].zeros

    def shares(self, member: int) -> np.ndarray:
        """Return the weight of each sample of a member, with a sum of 1, float64 [N]."""
        weighted = self._members[member]
        chunks = _chunks(weighted.first_sample, weighted.num_samples)
        return np.concatenate([_units(self._read(chunk)[0], weighted.scale) for chunk in chunks]) / weighted.total

    def draw(self, members: np.ndarray, epochs: np.ndarray, positions: np.ndarray, *, seed: int) -> np.ndarray:
        """Return the number in its member of the sample at each position of an epoch, int64 [n].

        Args:
            members: Member of each draw, int64 [n]; all members have weights.
            epochs: Epoch of each draw, int64 [n].
            positions: Position in the epoch, int64 [n], in [0, N).
            seed: Seed of the offsets.
        """
        member_epochs = list(zip(members.tolist(), epochs.tolist(), strict=True))
        offsets = {pair: self._offset(*pair, seed) for pair in set(member_epochs)}
        epoch_offsets = np.array([offsets[pair] for pair in member_epochs], np.int64)
        sizes, _, first_blocks, quotients, remainders = self._table[members].T
        # Point of a position: (position * total + offset) // size, in parts that stay within int64.
        points = positions * quotients + (positions * remainders + epoch_offsets) // sizes
        blocks = self._find_blocks(points, first_blocks, first_blocks + (sizes - 1) // BLOCK)
        points -= np.where(blocks > first_blocks, self._ends[blocks - 1], 0)
        block_starts = (blocks - first_blocks) * BLOCK
        # A few thousand at a time, because each point brings the weights of its block to memory.
        within_blocks = [block_starts[:0]]
        for begin in range(0, len(points), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            within_blocks.append(self._find_in_blocks(members[part], block_starts[part], points[part]))
        return np.asarray(block_starts + np.concatenate(within_blocks))

    def _find_in_blocks(self, members: np.ndarray, block_starts: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return the sample under each point, counted from the first of its block, int64 [n].

        Args:
            members: Member of each point.
            block_starts: First sample of the point's block, counted in the member.
            points: Point, counted from the start of the block.
        """
        # Each block is read once, however many points it has.
        first_samples, point_index, block_of_point = np.unique(
            self._table[members, 1] + block_starts, return_index=True, return_inverse=True
        )
        block_members = members[point_index]
        # The last block of a member may be incomplete: its last sample is read again, with length 0.
        num_samples = (self._table[block_members, 0] - block_starts[point_index])[:, None]
        ranks = np.arange(BLOCK)
        sample_numbers = first_samples[:, None] + np.minimum(ranks, num_samples - 1)
        weights = self._read(sample_numbers.ravel())[0].reshape(-1, BLOCK)
        lengths = np.where(ranks < num_samples, _units(weights, self._scale[block_members][:, None]), 0)
        sample_ends = np.cumsum(lengths, axis=1)
        return np.asarray((sample_ends[block_of_point] <= points[:, None]).sum(axis=1))

    def _find_blocks(self, points: np.ndarray, lowest: np.ndarray, highest: np.ndarray) -> np.ndarray:
        """Return the block of each point by a binary search from the lowest to the highest block of its member."""
        while (lowest < highest).any():
            middle = (lowest + highest) // 2
            is_beyond = self._ends[middle] <= points
            lowest, highest = np.where(is_beyond, middle + 1, lowest), np.where(is_beyond, highest, middle)
        return lowest

    def _offset(self, member: int, epoch: int, seed: int) -> int:
        """Return the offset of an epoch's points, times the size of the epoch: in [0, total)."""
        weighted = self._members[member]
        return (make_key(seed, "sample_weights", weighted.name, epoch) * weighted.total) >> 64

    def _sum(self, context: str, first_sample: int, num_samples: int, exponent: int) -> _Sums:
        """Add up weights; the sums of blocks are incomplete if the largest weight is not below 2^exponent.

        Raises:
            ArgumentError: A weight is missing, negative or infinite, or all are 0.
        """
        scale, largest, zeros, wrong_counts = _scale(num_samples, exponent), 0.0, 0, np.zeros(3, np.int64)
        sums = [np.zeros(0, np.int64)]
        for sample_numbers in _chunks(first_sample, num_samples):
            weights, has_weight = self._read(sample_numbers)
            smallest, chunk_largest = float(weights.min()), float(weights.max())
            if has_weight is not None or not 0 <= smallest <= chunk_largest < math.inf:
                is_real = ~np.isnan(weights) if has_weight is None else has_weight & ~np.isnan(weights)
                wrong_masks = (~is_real, is_real & (weights < 0), is_real & (weights == np.inf))
                wrong_counts += [is_wrong.sum() for is_wrong in wrong_masks]
                weights = weights[is_real & np.isfinite(weights)]
                chunk_largest = float(weights.max(initial=0))
            largest = max(largest, chunk_largest)
            if not smallest > 0:
                zeros += len(weights) - int(np.count_nonzero(weights))
            if chunk_largest < 2.0**exponent and not wrong_counts.any():
                sums.append(np.add.reduceat(_units(weights, scale), np.arange(0, len(weights), BLOCK)))
        if wrong_counts.any():
            raise ArgumentError(
                f"{context}: of {num_samples:,} samples {wrong_counts[0]:,} have no weight (NaN or missing, such as "
                f"steps that a table of labels does not name), {wrong_counts[1]:,} a negative one, "
                f"{wrong_counts[2]:,} an infinite one; weights are finite numbers >= 0, so mend the column or choose "
                "samples with Select(where=...)"
            )
        if not largest:
            raise ArgumentError(f"{context}: all {num_samples:,} samples have weight 0; give some a weight above 0")
        return _Sums(np.cumsum(np.concatenate(sums)), largest, zeros)


def _exponent(value: float) -> int:
    """Return the least e with value < 2^e; 0 for NaN and infinity."""
    return math.frexp(value)[1] if math.isfinite(value) else 0


def _scale(num_samples: int, exponent: int) -> float:
    """Return the factor from weights below 2^exponent to whole numbers, whose sum stays below 2^62."""
    return math.ldexp(1.0, max(-1000, min(1000, _BITS - num_samples.bit_length() - exponent)))


def _chunks(first_sample: int, num_samples: int) -> Iterator[range]:
    for start in range(first_sample, first_sample + num_samples, _CHUNK):
        yield range(start, min(start + _CHUNK, first_sample + num_samples))


def _units(weights: np.ndarray, scale: float | np.ndarray) -> np.ndarray:
    """Return weights as whole numbers, int64; a weight above 0 is at least 1."""
    return np.asarray(np.ceil(np.multiply(weights, scale, dtype=np.float64)), np.int64)


def parse_weights(sample_weights: str | Mapping[str, str] | None, members: Sequence[str]) -> dict[str, str]:
    """Return the column of weights of each member that has one.

    Args:
        sample_weights: None, a column for all members, or a column by member.
        members: Names of the members.

    Raises:
        ArgumentError: A member is unknown.
    """
    columns = dict.fromkeys(members, sample_weights) if isinstance(sample_weights, str) else dict(sample_weights or {})
    for name in columns:
        if name not in members:
            raise ArgumentError(f"sample_weights: no member {name!r}; {closest(name, members, noun='members')}")
    return columns
