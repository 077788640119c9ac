"""Measured points: in alternation, each several times, with a row for each in the table of a command.

A point may be a value of a sweep. The parameters of a sweep are the options of a dataclass.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.measure.child import BenchFailed, ChildFailed
from bench.measure.command import Command, Output, Result, tell
from bench.measure.options import option, options_of
from bench.measure.tables import Table
from stream.base.arguments import whole_number
from stream.base.errors import ArgumentError, closest
from stream.base.progress import human_seconds


@dataclass
class Point:
    """Something that is measured under a name, with the result of each repeat, or the error that ended it."""

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
    report: Callable[[str], None] | None = None,
) -> Iterator[Point]:
    """Measure all points ``repeat`` times, and yield each point after its measurement.

    Every second repeat goes through the points backwards, so that a machine that gets slower favours none. A point that
    fails keeps its error and is not measured again. ``describe`` returns a line on a result for ``report``, by default
    for standard error if it is a terminal.
    """
    began, total = time.monotonic(), repeat * len(points)
    turns = [point for number in range(repeat) for point in (points if number % 2 == 0 else reversed(points))]
    for done, point in enumerate(turns, 1):
        if point.error is not None:
            continue
        try:
            point.runs.append(measure(point))
            description = describe(point.runs[-1])
        except ChildFailed as error:
            point.error = str(error)
            description = f"error: {error}"
        left = (time.monotonic() - began) / done * (total - done)
        (report or tell)(f"{done}/{total} {point.name}: {description}{f', {human_seconds(left)} left' if left else ''}")
        yield point


def median(runs: Sequence[Mapping[str, Any]], *, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """Return the medians over repeats of all numbers, in nested mappings too; other values are the first repeat's.

    >>> median([{"a": 1, "b": {"c": 2.0}, "d": "x"}, {"a": 3, "b": {"c": None}, "d": "x"}])
    {'a': 2.0, 'b': {'c': 2.0}, 'd': 'x'}
    """
    return {key: _median([run.get(key) for run in runs]) for key in runs[0] if key not in leave_out}


def _median(values: Sequence[Any]) -> Any:
    measured = [value for value in values if value is not None]
    if not measured:
        return None
    if all(isinstance(value, dict) for value in measured):
        return median(measured)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in measured):
        return statistics.median(map(float, measured))
    return measured[0]


def lasting(work: Callable[[int], object], seconds: float, settle: Callable[[], object]) -> Callable[[], object]:
    """Return a function that does a piece of work as often as takes some time; ``settle`` waits until it is done."""
    work(20)
    settle()
    began = time.perf_counter()
    work(100)
    settle()
    times = max(1, round(100 * seconds / (time.perf_counter() - began)))
    return lambda: work(times)


def step_times(seconds: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Return mean, median, percentiles and maximum of step times in milliseconds.

    >>> step_times([0.25, 0.5, 0.75])
    {'mean': 500.0, 'p50': 500.0, 'p90': 700.0, 'p99': 745.0, 'max': 750.0}
    """
    times = 1000 * np.asarray(seconds, np.float64)
    p50, p90, p99 = np.percentile(times, (50, 90, 99)).tolist()
    return {"mean": float(times.mean()), "p50": p50, "p90": p90, "p99": p99, "max": float(times.max())}


@dataclass(frozen=True, kw_only=True)
class Repeated(Output):
    """Options of commands that measure points."""

    repeat: int = option(3, whole_number(1), "measurements of each point")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Points that are ready to be measured; ``about`` returns further entries of the result."""

    points: Sequence[Point]
    measure: Callable[[Point], dict[str, Any]]
    about: Callable[[], dict[str, Any]] = dict


def study(
    *,
    prepare: Callable[[Any], AbstractContextManager[Prepared]],
    describe: Callable[[dict[str, Any]], str],
    table: Callable[[Result], Table],
    summarise: Callable[[Sequence[Point]], list[dict[str, Any]]] | None = None,
    some_fail: bool = False,
    **about: Any,
) -> Command:
    """Return a command that measures points; ``--out`` has the points so far at any time.

    ``prepare`` gives the points of the options, and its block ends after the last measurement. ``describe`` returns a
    line on a measurement, ``table`` the table of a result, ``summarise`` the points for the result, by default with
    medians of all figures. With ``some_fail`` only a result without any measurement is a failure. ``about`` has further
    attributes of ``Command``.
    """

    def work(options: Any) -> Iterator[dict[str, Any]]:
        with prepare(options) as prepared:

            def result() -> dict[str, Any]:
                points = summarise(prepared.points) if summarise else [point.as_dict() for point in prepared.points]
                return {**prepared.about(), "points": points}

            measuring = measure_points(prepared.points, prepared.measure, repeat=options.repeat, describe=describe)
            yield from (result() for _ in measuring)
            yield result()
            tell("tidying up")
        if not some_fail and not any(point.runs for point in prepared.points):
            raise BenchFailed(f"point {prepared.points[0].name}: {prepared.points[0].error}")

    def failed(result: Result) -> bool:
        good = [point["error"] is None for point in result["points"]]
        return not (any(good) if some_fail else all(good))

    return Command(work=work, show=lambda result: table(result).text(), failed=failed, **about)


def sweep_over(kind: type[Any]) -> Any:
    """Return the option ``--sweep`` for the parameters of a dataclass."""
    help_text = "measure a point for each value of an option below; several sweeps are combined"
    return option(
        None, lambda option_text: parse_sweep(option_text, kind), help_text, action="append", metavar="KEY=A,B,C"
    )


def parse_sweep(option_text: str, kind: type[Any]) -> tuple[str, list[Any]]:
    """Read ``key=a,b,c`` and return the name of the parameter and its values."""
    key, equals, values = option_text.partition("=")
    name = key.strip().replace("-", "_")
    if not equals or not values.strip():
        raise argparse.ArgumentTypeError(f"found {option_text!r}, expected key=a,b,c")
    readers = {field.name: field.metadata["read"] for field in options_of(kind)}
    if name not in readers:
        raise argparse.ArgumentTypeError(f"no parameter {key!r}; {closest(name, readers, noun='parameters')}")
    try:
        return name, [readers[name](value.strip()) for value in values.split(",")]
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{name}: {error}") from None


def prepare_sweep(
    options: Any,
    kind: type[Any],
    check: Callable[[Any], object],
    measure: Callable[[Point, dict[str, Any]], dict[str, Any]],
) -> AbstractContextManager[Prepared]:
    """Return the points of a sweep, each checked before any is measured."""
    sweeps = options.sweep or []
    names = [name for name, _ in sweeps]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ArgumentError(f"--sweep: {min(twice)} is swept more than once; give all its values at once")
    base = {field.name: getattr(options, field.name) for field in dataclasses.fields(kind)}
    points = combine(dict(sweeps))
    for point in points:
        check(kind(**{**base, **point.parameters}))

    def measure_point(point: Point) -> dict[str, Any]:
        return measure(point, {**base, **point.parameters})

    return nullcontext(Prepared(points=points, measure=measure_point, about=lambda: {"sweep": dict(sweeps)}))


def combine(values: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Return a point for each combination of values of parameters, the last parameter changing fastest.

    >>> [(point.name, point.parameters) for point in combine({"seed": [1, 2], "threads": [1]})]
    [('seed=1 threads=1', {'seed': 1, 'threads': 1}), ('seed=2 threads=1', {'seed': 2, 'threads': 1})]
    """
    every = (dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values()))
    return [Point(" ".join(f"{name}={value}" for name, value in point.items()) or "all", point) for point in every]
