"""Measurements of several points in one run: in alternation, repeated, with failures kept to their point."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.measure.child import ChildFailed
from convert.report import human_seconds


@dataclass
class Point:
    """Something that is measured under a name.

    Attributes:
        name: Name in tables.
        parameters: Parameters of the point.
        runs: Result of each repeat.
        error: Error that ended the point, if any.
    """

    name: str
    parameters: dict[str, Any]
    runs: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None

    def as_dict(self, *, leave_out: Sequence[str] = ()) -> dict[str, Any]:
        """Return the point for JSON, with medians over its repeats; ``leave_out`` names results without a median."""
        return {
            "name": self.name,
            "point": self.parameters,
            "median": median(self.runs, leave_out=leave_out) if self.runs else None,
            "repeats": self.runs,
            "error": self.error,
        }


def measure_points(
    points: Sequence[Point],
    measure: Callable[[Point], dict[str, Any]],
    *,
    repeat: int,
    describe: Callable[[dict[str, Any]], str],
    after: Callable[[], None] = lambda: None,
    say: Callable[[str], None] | None = None,
) -> None:
    """Measure all points ``repeat`` times; every second repeat goes through them backwards.

    Args:
        points: Points to fill. A point that fails keeps its error and is not measured again.
        measure: Measures a point once; raises ChildFailed.
        repeat: Number of repeats.
        describe: Returns a line on a result, for the progress.
        after: Called after each measurement, to save the results so far.
        say: Takes lines of progress; by default they go to standard error if it is a terminal.
    """
    say = say or tell
    began, total, done = time.monotonic(), repeat * len(points), 0
    for number in range(repeat):
        for point in points if number % 2 == 0 else reversed(points):
            done += 1
            if point.error is not None:
                continue
            try:
                point.runs.append(measure(point))
                told = describe(point.runs[-1])
            except ChildFailed as error:
                point.error = str(error)
                told = f"error: {error}"
            left = (time.monotonic() - began) / done * (total - done)
            say(f"{done}/{total} {point.name}: {told}{f', {human_seconds(left)} left' if left else ''}")
            after()


def median(runs: Sequence[Mapping[str, Any]], *, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """Return the medians over repeats of all numbers, in nested mappings too; other values are the first repeat's.

    >>> median([{"a": 1, "b": {"c": 2.0}, "d": "x"}, {"a": 3, "b": {"c": None}, "d": "x"}])
    {'a': 2.0, 'b': {'c': 2.0}, 'd': 'x'}
    """
    return {key: _median([run.get(key) for run in runs]) for key in runs[0] if key not in leave_out}


def _median(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if not known:
        return None
    if all(isinstance(value, dict) for value in known):
        return median(known)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return statistics.median(map(float, known))
    return known[0]


def step_times(seconds: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Return mean, median, percentiles and maximum of step times in milliseconds.

    >>> step_times([0.25, 0.5, 0.75])
    {'mean': 500.0, 'p50': 500.0, 'p90': 700.0, 'p99': 745.0, 'max': 750.0}
    """
    times = 1000 * np.asarray(seconds, np.float64)
    p50, p90, p99 = np.percentile(times, (50, 90, 99)).tolist()
    return {"mean": float(times.mean()), "p50": p50, "p90": p90, "p99": p99, "max": float(times.max())}


def tell(line: str) -> None:
    """Print a line of progress to standard error if it is a terminal."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
