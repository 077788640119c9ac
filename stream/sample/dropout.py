"""Dropout of samples and delays of real-time chunking: random numbers of (seed, sample), whatever else is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream.base.random_numbers import make_key, uniform


@dataclass(frozen=True)
class Dropout:
    """Dropout of a part of samples.

    Attributes:
        probability: Share of the samples that lose the part.
        key: Key of the random numbers.
    """

    probability: float
    key: int

    @classmethod
    def of(cls, part: str, probability: float, *, seed: int) -> Dropout | None:
        """Return the dropout of a part, such as ``state``, or None if no sample loses it."""
        return cls(probability, make_key(seed, "dropout", part)) if probability else None

    def draw(self, samples: np.ndarray) -> np.ndarray:
        """Return which samples lose the part, bool [n], by their numbers, int64 [n].

        >>> Dropout.of("state", 0.5, seed=0).draw(np.arange(8)).tolist()
        [True, False, True, True, True, True, True, False]
        """
        return uniform(self.key, samples) < self.probability


@dataclass(frozen=True, eq=False)
class Delay:
    """Delay of each sample, in steps of its actions: each from ``least`` on with the same probability.

    Attributes:
        least: Smallest delay of each member, in steps, int64 [M].
        counts: Count of the delays of each member, int64 [M].
        key: Key of the random numbers.
    """

    least: np.ndarray
    counts: np.ndarray
    key: int

    @classmethod
    def of(cls, least: Sequence[int], most: Sequence[int], *, seed: int) -> Delay:
        """Return the delay within the limits of each member, both included."""
        smallest = np.array(least, np.int64)
        return cls(smallest, np.array(most, np.int64) - smallest + 1, make_key(seed, "delay"))

    def draw(self, members: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the delay of samples, int64 [n].

        Args:
            members: Member of each sample, int [n].
            samples: Numbers of the samples, int64 [n].

        >>> Delay.of([0], [4], seed=0).draw(np.zeros(8, int), np.arange(8)).tolist()
        [4, 4, 0, 2, 2, 2, 1, 0]
        """
        return self.least[members] + (uniform(self.key, samples) * self.counts[members]).astype(np.int64)
