"""Measuring several points in one run: in turns, again and again, and none of them stops the others."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.measure.child import ChildFailed
from convert.report import human_seconds


@dataclass
class Point:
    """What is measured under a name: its parameters, the result of each repeat, and the error that ended it."""

    name: str
    parameters: dict[str, Any]
    runs: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON: name, parameters, medians over the repeats, the repeats, and the error, None if there is none."""
        middle = median(self.runs) if self.runs else None
        return {
            "name": self.name,
            "point": self.parameters,
            "median": middle,
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
    """Measure all points ``repeat`` times; a repeat goes through all of them, every second one backwards.

    Args:
        points: to be filled. One that fails keeps its error and is left out from then on.
        measure: measures a point once; raises ChildFailed.
        repeat: how often.
        describe: one line of what a measurement gave, for the progress.
        after: called after every measurement, to keep what there is.
        say: takes lines of progress; by default they go to standard error if that is a terminal.
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
    """Return the medians over repeats: of numbers, and of numbers in mappings; anything else is that of the first.

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


def tell(line: str) -> None:
    """Print a line of progress to standard error, if that is a terminal."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
