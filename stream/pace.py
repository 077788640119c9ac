"""How fast workers are, and parts of batches by which all of them end at the same time.

Workers are not equally fast, nor do they stay so: the trainer takes its time from one of them, processors differ, other
programs run. With equal parts all would wait for the slowest: on two processors one worker slept 1 to 2 % of the time,
because the trainer took as much from the other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from stream.rows import Share

PACED = 4
"""So many batches in a row have the same parts: what workers have still to do differs little from one to the next."""
_BEHIND = 1 / 4
"""The first worker is done later than the others, by so much of a part, so that the trainer, which waits for it first,
need not wait again for another. With a quarter the trainer takes 5 to 7 % less of the processor than with an eighth,
and the time from one batch to the next is more even (p99/p50 1.25 in place of 1.30 to 1.35; 32 rounds in turns). With
half of a part it is the same."""
_WEIGHT = 0.1
"""Of the newest part, in what is known of a worker's rate."""
_MOST = 0.5
"""By which share of itself a part becomes larger or smaller at most."""


class Pace:
    """Of one worker.

    Attributes:
        rate: rows that it makes in a second of work, 0 as long as that is not known.
    """

    def __init__(self) -> None:
        self.rate = 0.0
        self._ended = 0.0

    def note(self, rows: int, seconds: float, ended: float) -> None:
        """Take note of a part: its rows, the seconds of work that it took, and when it was done."""
        rate = rows / max(seconds, 1e-9)
        self.rate += (rate - self.rate) * (_WEIGHT if self.rate else 1)
        self._ended = ended

    def seconds_left(self, parts: Sequence[int], now: float) -> float:
        """Return when this worker will be done, in seconds.

        Args:
            parts: rows of each part that it has yet to make, in order; it is at the first one since it ended the last.
            now: the time, as of ``note``.
        """
        if not parts or not self.rate:
            return 0.0
        return sum(parts) / self.rate - min(max(0.0, now - self._ended), parts[0] / self.rate)


def pace_shares(shares: Sequence[Share], rates: Sequence[float], left: Sequence[float]) -> list[Share]:
    """Return the parts of the next PACED batches, by which all workers but the first end at the same time after these.

    Args:
        shares, rates, left: see ``balance_shares``.
    """
    if not all(rates):
        return list(shares)
    start, stop = shares[0]
    behind = _BEHIND * (stop - start) / rates[0]
    first, *others = left
    return balance_shares(shares, rates, [seconds / PACED for seconds in (first - behind, *others)])


def balance_shares(shares: Sequence[Share], rates: Sequence[float], left: Sequence[float]) -> list[Share]:
    """Move the borders of the parts of a batch, so that all are done at the same time.

    Args:
        shares: parts of about equal size, one a worker.
        rates: of the workers, rows a second; nothing is moved as long as one is 0.
        left: seconds that each has still to do before.

    >>> balance_shares([(0, 32), (32, 64)], [1000, 1000], [0.5, 0.5])
    [(0, 32), (32, 64)]
    >>> balance_shares([(0, 32), (32, 64)], [1000, 1000], [0.508, 0.5])
    [(0, 28), (28, 64)]
    >>> balance_shares([(0, 32), (32, 64)], [1000, 1500], [0.5, 0.5])
    [(0, 26), (26, 64)]
    """
    if not all(rates):
        return list(shares)
    sizes = [stop - start for start, stop in shares]
    # When all would be done: sum(rate * (end - left)) is the rows of the batch.
    end = (sum(sizes) + sum(rate * seconds for rate, seconds in zip(rates, left, strict=True))) / sum(rates)
    wanted = [
        min(max(rate * (end - seconds), size * (1 - _MOST)), size * (1 + _MOST))
        for size, rate, seconds in zip(sizes, rates, left, strict=True)
    ]
    scale = sum(sizes) / sum(wanted)
    ends = [round(scale * part) for part in accumulate(wanted)]
    return list(pairwise([0, *ends]))
