"""From a global sample number to a member and its number of earlier samples: exact mixing by weights, or passes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream.base.random_numbers import make_key
from stream.order.shuffle import Shuffle

PERIOD = 1 << 20
"""Number of samples after which the order of members repeats; weights are rounded to multiples of 1 / PERIOD."""


@dataclass(frozen=True, eq=False)
class MixTable:
    """One period of a mixture.

    Attributes:
        members: Member at each position, int16 [PERIOD].
        ranks: Count of earlier positions of the same member, int32 [PERIOD].
        counts: Count of positions of each member, int64 [M].
    """

    members: np.ndarray
    ranks: np.ndarray
    counts: np.ndarray

    @property
    def weights(self) -> np.ndarray:
        """Effective weights, float64 [M]: multiples of 1 / PERIOD with a sum of 1."""
        return self.counts / PERIOD

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return member and draw of each sample.

        Args:
            samples: Global sample numbers from 0, int64 [n].

        Returns:
            Members, int64 [n], and draws, int64 [n]: the number of the sample among those of its member, from 0.
        """
        periods, positions = np.divmod(samples, PERIOD)
        members = self.members[positions].astype(np.int64)
        return members, self.ranks[positions] + periods * self.counts[members]

    def counts_before(self, samples: int) -> np.ndarray:
        """Return how many of the first ``samples`` samples are of each member, int64 [M]."""
        periods, remainder = divmod(samples, PERIOD)
        return periods * self.counts + np.bincount(self.members[:remainder], minlength=len(self.counts))


class MixSchedule:
    """Mixing tables that follow each other; the draws of a member continue from phase to phase.

    In each phase a member's count is within 2 of its share at every prefix of the phase, as in a single table.

    Args:
        tables: Table of each phase.
        phase_ends: Sample at which each phase but the last ends.

    >>> schedule = MixSchedule([build_mix([1, 0]), build_mix([1, 1])], [3])
    >>> members, draws = schedule.locate(np.arange(7))
    >>> members.tolist(), draws.tolist()
    ([0, 0, 0, 1, 0, 1, 0], [0, 1, 2, 0, 3, 1, 4])
    """

    def __init__(self, tables: Sequence[MixTable], phase_ends: Sequence[int] = ()) -> None:
        self.tables = tuple(tables)
        self._starts = np.array([0, *phase_ends], np.int64)
        phase_lengths = np.diff(self._starts).tolist()
        # The last phase has no end, and no counts before another one.
        phase_counts = [table.counts_before(size) for table, size in zip(self.tables, phase_lengths, strict=False)]
        # Draws of each member before each phase, int64 [phases, M].
        self._drawn = np.cumsum([np.zeros_like(tables[0].counts), *phase_counts], axis=0)

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return member and draw of each sample, as ``MixTable.locate`` does."""
        if len(self.tables) == 1:
            return self.tables[0].locate(samples)
        phases = np.searchsorted(self._starts, samples, side="right") - 1
        members, draws = np.empty(len(samples), np.int64), np.empty(len(samples), np.int64)
        for phase in np.unique(phases).tolist():
            in_phase = phases == phase
            phase_members, phase_draws = self.tables[phase].locate(samples[in_phase] - self._starts[phase])
            members[in_phase], draws[in_phase] = phase_members, phase_draws + self._drawn[phase, phase_members]
        return members, draws


class Passes:
    """The order of complete passes, instead of mixing by weights.

    Sample k of the mixture is sample k mod N of pass k // N, where N is the count of the samples of all members.

    Args:
        sizes: Samples of an epoch of each member, int64 [M].
        seed: Seed of the order, another for each pass.
        shuffle: Order of a pass; ``none`` takes one member after the other.

    >>> passes = Passes([2, 3], seed=0, shuffle=Shuffle.parse("none"))
    >>> members, draws = passes.locate(np.arange(7))
    >>> members.tolist(), draws.tolist()
    ([0, 0, 1, 1, 1, 0, 0], [0, 1, 0, 1, 2, 2, 3])
    """

    def __init__(self, sizes: Sequence[int] | np.ndarray, *, seed: int, shuffle: Shuffle) -> None:
        self._sizes = np.asarray(sizes, np.int64)
        self._ends = np.cumsum(self._sizes)
        self._seed = seed
        self._shuffle = shuffle

    @property
    def num_samples(self) -> int:
        """Samples of a pass, N."""
        return int(self._ends[-1])

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return member and draw of each sample, int64 [n] each, as ``MixTable.locate`` does."""
        pass_numbers, shuffled = np.divmod(samples, self.num_samples)
        if self._shuffle.block:
            key_by_pass = {number: make_key(self._seed, "pass", number) for number in set(pass_numbers.tolist())}
            pass_keys = np.array([key_by_pass[number] for number in pass_numbers.tolist()], np.uint64)
            shuffled = self._shuffle.place(shuffled, np.full(len(shuffled), self.num_samples), pass_keys)
        members = np.searchsorted(self._ends, shuffled, side="right")
        positions = shuffled - (self._ends - self._sizes)[members]
        return members, pass_numbers * self._sizes[members] + positions


def build_mix(weights: Sequence[float]) -> MixTable:
    """Spread the members of a mixture evenly over one period.

    The Huffman tree of the weights splits the samples in two repeatedly, down to single members. A split gives each
    part its share of the first n samples, rounded to the nearest whole number, so it adds at most 1/2 to the distance
    of a member's count from n * w. An inner node of the tree is at most 2/3 of its parent, so counts stay within
    1/2 + 1/2 * 2/3 + 1/2 * 4/9 + ... = 3/2 at inner nodes, and within 2 at members.

    Args:
        weights: A number >= 0 for each member, not all 0, in any unit. A member with weight 0 is never drawn.

    Raises:
        ValueError: A weight is negative, not finite, or too small for the period; or all weights are 0.

    >>> table = build_mix([3, 1])
    >>> table.locate(np.arange(8))[0].tolist()
    [0, 0, 1, 0, 0, 0, 1, 0]
    """
    values = np.asarray(weights, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise ValueError(f"weights {list(weights)!r:.200}: expected finite numbers >= 0, not all 0")
    counts = _round_to_sum(values / values.sum() * PERIOD, PERIOD)
    too_small = np.flatnonzero((values > 0) & (counts == 0))
    if len(too_small):
        member = too_small[0]
        raise ValueError(
            f"weight {values[member]:g} of member {member} is less than 1 in {PERIOD:,} of the total and would never "
            "be drawn; raise it or set it to 0"
        )
    members = np.empty(PERIOD, np.int16)
    ranks = np.empty(PERIOD, np.int32)
    subtrees = [(_huffman_tree(counts), np.arange(PERIOD, dtype=np.int32))]
    while subtrees:
        subtree, positions = subtrees.pop()
        if isinstance(subtree, int):
            members[positions] = subtree
            ranks[positions] = np.arange(len(positions))
        else:
            small_count, small_subtree, large_subtree = subtree
            # After n samples the smaller part has its share of n, rounded to the nearest whole number.
            small_indices = (2 * np.arange(small_count) + 1) * len(positions) // (2 * small_count)
            is_large = np.ones(len(positions), bool)
            is_large[small_indices] = False
            subtrees += [(small_subtree, positions[small_indices]), (large_subtree, positions[is_large])]
    return MixTable(members=members, ranks=ranks, counts=counts)


_Tree = int | tuple[int, "_Tree", "_Tree"]
"""A member, or: count of positions of the smaller part, the smaller part, the larger part."""


def _huffman_tree(counts: np.ndarray) -> _Tree:
    """Join the two smallest parts until one is left; of equal parts take the first."""
    # Count, number of the node to decide between equal counts, and the tree.
    members = enumerate(counts.tolist())
    heap: list[tuple[int, int, _Tree]] = [(count, member, member) for member, count in members if count]
    heapq.heapify(heap)
    for node_number in range(len(counts), len(counts) + len(heap) - 1):
        small_count, _, small_tree = heapq.heappop(heap)
        large_count, _, large_tree = heapq.heappop(heap)
        heapq.heappush(heap, (small_count + large_count, node_number, (small_count, small_tree, large_tree)))
    return heap[0][2]


def _round_to_sum(shares: np.ndarray, total: int) -> np.ndarray:
    """Round shares to whole numbers with a given sum, by the largest remainders (Hamilton's method)."""
    counts = np.floor(shares).astype(np.int64)
    remainder = total - int(counts.sum())
    counts[np.argsort(counts - shares, kind="stable")[:remainder]] += 1
    return counts
