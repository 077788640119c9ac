"""Memory of a trainer and its workers over a run: its size and its growth.

The measure is the proportional set size (PSS), which divides each page among the processes that use it. Trainer and
workers all map the ring of batches, so the sum of their resident sets would count the ring several times.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from bench.measure.machine import family, proportional_set


@dataclass(frozen=True, kw_only=True)
class MemorySample:
    """Memory in bytes after a number of batches.

    Attributes:
        batches: Batches taken so far.
        pss: PSS of each process, the trainer first; None where unknown.
        available: Memory that the machine has left.
    """

    batches: int
    pss: tuple[int | None, ...]
    available: int

    @property
    def total(self) -> int | None:
        """PSS of all processes together, None if one is unknown."""
        known = [value for value in self.pss if value is not None]
        return sum(known) if len(known) == len(self.pss) else None


class MemoryLog:
    """Samples of the memory of some processes, taken between measurements because a sample takes milliseconds.

    Args:
        pids: Process numbers, the trainer first; None for this process and its descendants at each sample.
        measure: Returns the bytes of a process.
    """

    def __init__(self, pids: Sequence[int] | None, *, measure: Callable[[int], int | None] = proportional_set) -> None:
        self._pids = pids
        self._measure = measure
        self.samples: list[MemorySample] = []

    def look(self, batches: int) -> None:
        """Take a sample after ``batches`` batches."""
        pss = tuple(self._measure(pid) for pid in (family() if self._pids is None else self._pids))
        self.samples.append(MemorySample(batches=batches, pss=pss, available=psutil.virtual_memory().available))

    def summary(self) -> dict[str, Any]:
        """Return the figures of a run, None for unknown ones.

        ``peak_pss_bytes`` and ``final_pss_bytes`` count all processes. ``slope_bytes_per_batch`` is the slope of a
        straight line through the samples, ``slope_error`` its standard error: a slope within two errors of 0 shows no
        growth. ``lowest_available_bytes`` is of the machine.
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


def slope(places: Sequence[float], values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the slope of the least-squares line and its standard error, None where there are too few points.

    >>> slope([0, 1, 2], [5.0, 7.0, 9.0])
    (2.0, 0.0)
    >>> slope([0, 1], [5.0, 7.0])
    (2.0, None)
    """
    if len(set(places)) < 2:
        return None, None
    rise, start = statistics.linear_regression(places, values)
    if len(places) < 3:
        return rise, None
    rest = sum((value - start - rise * place) ** 2 for place, value in zip(places, values, strict=True))
    spread = statistics.variance(places) * (len(places) - 1)
    return rise, math.sqrt(rest / (len(places) - 2) / spread)
