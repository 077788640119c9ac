"""Commands that measure a point for each value of a sweep: their options, their points and their run.

The parameters of a point are the fields of a dataclass. A field made by ``option`` is an option of the command and can
be swept.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.measure.child import ChildFailed, ask
from bench.measure.machine import describe_machine
from bench.measure.points import Point, measure_points
from stream.storage.arguments import whole
from stream.storage.errors import closest
from stream.storage.files import write_whole


def option(default: Any, read: Callable[[str], Any], what: str) -> Any:
    """Return a dataclass field that is an option, with the reader of its text and its help."""
    return dataclasses.field(default=default, metadata={"read": read, "what": what})


def add_options(parser: argparse.ArgumentParser, kind: type[Any], *, files: str) -> None:
    """Add the options of a dataclass of parameters, and --repeat, --sweep, --out and --json.

    Args:
        parser: Parser of the command.
        kind: Dataclass of parameters.
        files: Files that --out receives.
    """
    for field in _options(kind):
        default = "" if field.default is None else f" (default: {field.default})".replace("%", "%%")
        flag = f"--{field.name.replace('_', '-')}"
        reader = field.metadata["read"]
        parser.add_argument(flag, type=reader, default=field.default, help=field.metadata["what"] + default)
    parser.add_argument("--repeat", type=whole(1), default=3, help="measurements of each point (default: 3)")
    parser.add_argument(
        "--sweep",
        type=lambda text: parse_sweep(text, kind),
        action="append",
        default=[],
        metavar="KEY=A,B,C",
        help="measure a point for each value of a parameter above; several sweeps are combined",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder for {files}")
    parser.add_argument("--json", action="store_true", help="print all figures instead of a table")


def parse(parser: argparse.ArgumentParser, kind: type[Any], arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments of a command; ``base`` of the result has the parameters of all points."""
    options = parser.parse_args(arguments)
    swept = [name for name, _ in options.sweep]
    if twice := {name for name in swept if swept.count(name) > 1}:
        parser.error(f"argument --sweep: {min(twice)} is swept more than once; give all its values at once")
    options.base = kind(**{field.name: getattr(options, field.name) for field in _options(kind)})
    return options


def parse_sweep(text: str, kind: type[Any]) -> tuple[str, list[Any]]:
    """Read ``key=a,b,c`` and return the name of the parameter and its values.

    Raises:
        argparse.ArgumentTypeError: The parameter does not exist, or does not take a value.
    """
    key, equals, values = text.partition("=")
    name = key.strip().replace("-", "_")
    if not equals or not values.strip():
        raise argparse.ArgumentTypeError(f"found {text!r}, expected key=a,b,c")
    readers = {field.name: field.metadata["read"] for field in _options(kind)}
    if name not in readers:
        raise argparse.ArgumentTypeError(f"no parameter {key!r}; {closest(name, readers, noun='parameters')}")
    try:
        return name, [readers[name](value.strip()) for value in values.split(",")]
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{name}: {error}") from None


def make_points(sweeps: Sequence[tuple[str, Sequence[Any]]]) -> list[Point]:
    """Return all combinations of the sweeps, the last sweep changing fastest.

    >>> [(point.name, point.parameters) for point in make_points([("seed", [1, 2]), ("threads", [1])])]
    [('seed=1 threads=1', {'seed': 1, 'threads': 1}), ('seed=2 threads=1', {'seed': 2, 'threads': 1})]
    """
    names = [name for name, _ in sweeps]
    every = (dict(zip(names, values, strict=True)) for values in itertools.product(*(values for _, values in sweeps)))
    return [Point(" ".join(f"{name}={value}" for name, value in point.items()) or "all", point) for point in every]


def measure_sweep(
    options: argparse.Namespace,
    points: Sequence[Point],
    *,
    module: str,
    libraries: Sequence[str],
    file: str,
    describe: Callable[[dict[str, Any]], str],
    summarise: Callable[[Sequence[Point]], list[dict[str, Any]]],
) -> dict[str, Any]:
    """Measure all points, each repeat in a fresh process, and return the result that ``--json`` prints.

    Args:
        options: Options from ``parse``.
        points: Points of the sweep.
        module: Module that answers a request with the parameters of a point.
        libraries: Distributions whose versions are recorded.
        file: Name of the result in ``--out``, which is kept up to date.
        describe: Returns a line on one measurement.
        summarise: Returns the points for the result.

    Raises:
        ChildFailed: No point could be measured; the message is the first point's.
        OSError: The folder cannot be written to.
    """
    base = dataclasses.asdict(options.base)
    result: dict[str, Any] = {
        "parameters": {**base, "repeat": options.repeat},
        "sweep": dict(options.sweep),
        "machine": describe_machine(libraries),
        "points": [],
    }

    def keep() -> None:
        result["points"] = summarise(points)
        if options.out is not None:
            write_whole(options.out / file, json.dumps(result, indent=1))

    measure_points(
        points,
        lambda point: ask(module, {**base, **point.parameters}),
        repeat=options.repeat,
        describe=describe,
        after=keep,
    )
    if not any(point.runs for point in points):
        raise ChildFailed(f"point {points[0].name}: {points[0].error}")
    return result


def duration(text: str) -> float:
    """Read a number of seconds or milliseconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of at least 0")
    return value


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """Return a reader of one of some names."""

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"found {text!r}, expected one of {', '.join(names)}")
        return text

    return read


def _options(kind: type[Any]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(kind) if "read" in field.metadata]
