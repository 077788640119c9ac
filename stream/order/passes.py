"""Complete passes over all samples of a mixture, each sample once in each pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stream.order.shuffle import Shuffle, make_key


class Passes:
    """The order of complete passes, in place of mixing by weights.

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
        turn, place = np.divmod(samples, self.num_samples)
        if self._shuffle.block:
            keys = {number: make_key(self._seed, "pass", number) for number in set(turn.tolist())}
            key = np.array([keys[number] for number in turn.tolist()], np.uint64)
            place = self._shuffle.place(place, np.full(len(place), self.num_samples), key)
        member = np.searchsorted(self._ends, place, side="right")
        position = place - (self._ends - self._sizes)[member]
        return member, turn * self._sizes[member] + position
