"""Memory of a trainer and its workers over a run: how much, and whether it grows.

What counts is the proportional set size, PSS: each page is divided among the processes that use it. The ring of batches
is mapped by the trainer and by every worker; the sum of their resident sets would count it several times.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from bench.measure.machine import proportional_set


@dataclass(frozen=True, kw_only=True)
class MemorySample:
    """A look at memory, in bytes, after so many batches.

    pss: of each process, the trainer first; None where the kernel does not tell. available: what the whole machine
    still has.
    """

    batches: int
    pss: tuple[int | None, ...]
    available: int

    @property
    def total(self) -> int | None:
        """PSS of all the processes together; None if one of them is unknown."""
        known = [value for value in self.pss if value is not None]
        return sum(known) if len(known) == len(self.pss) else None


class MemoryLog:
    """Looks at some processes whenever it is told to; one look takes some 20 ms a process, so not while a clock runs.

    Args:
        pids: the trainer first; None for this process and those that it has when it looks.
        measure: gives the bytes of a process.
    """

    def __init__(self, pids: Sequence[int] | None, *, measure: Callable[[int], int | None] = proportional_set) -> None:
        self._pids = None if pids is None else tuple(pids)
        self._measure = measure
        self.samples: list[MemorySample] = []

    @classmethod
    def of_children(cls) -> MemoryLog:
        """A log of this process and of those that it has started."""
        return cls(_family())

    def look(self, batches: int) -> None:
        """Take a sample, after ``batches`` batches."""
        pids = _family() if self._pids is None else self._pids
        pss = tuple(self._measure(pid) for pid in pids)
        self.samples.append(MemorySample(batches=batches, pss=pss, available=psutil.virtual_memory().available))

    def summary(self) -> dict[str, Any]:
        """Return the figures of a run; None for what is not known.

        peak_pss_bytes, final_pss_bytes: of all processes together. slope_bytes_per_batch: of a straight line through
        the samples, and slope_error its standard error; a slope within two of them of 0 is no growth that was seen.
        lowest_available_bytes: of the machine.
        """
        totals = [sample.total for sample in self.samples]
        known = [total for total in totals if total is not None]
        complete = len(known) == len(totals)
        rise, error = slope([sample.batches for sample in self.samples], known) if complete else (None, None)
        return {
            "peak_pss_bytes": max(known, default=None),
            "final_pss_bytes": totals[-1] if totals else None,
            "slope_bytes_per_batch": rise,
            "slope_error": error,
            "lowest_available_bytes": min((sample.available for sample in self.samples), default=None),
        }


def _family() -> tuple[int, ...]:
    return (os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True)))


def slope(places: Sequence[float], values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the slope of the least-squares line and its standard error; None where there are too few points.

    >>> slope([0, 1, 2], [5.0, 7.0, 9.0])
    (2.0, 0.0)
    >>> slope([0, 1], [5.0, 7.0])
    (2.0, None)
    """
    if len(set(places)) < 2:
        return None, None
    middle, level = statistics.fmean(places), statistics.fmean(values)
    spread = sum((place - middle) ** 2 for place in places)
    pairs = list(zip(places, values, strict=True))
    rise = sum((place - middle) * (value - level) for place, value in pairs) / spread
    if len(pairs) < 3:
        return rise, None
    rest = sum((value - level - rise * (place - middle)) ** 2 for place, value in pairs)
    return rise, math.sqrt(rest / (len(pairs) - 2) / spread)
