"""``python -m bench.loader``: how fast the loader is, beside decoding the same JPEGs alone in the same run.

Every point is measured in fresh processes, ``--repeat`` times; with ``--sweep`` there are several points, and a repeat
goes through all of them before the next one begins, in alternating order. Figures are medians over the repeats.

``ratio`` is samples/s of the loader to those of the limit: as many processes as there are workers (or threads,
without workers) that decode the same JPEGs from memory, see `bench.measure.decode_limit`. Both are measured in slices
of about a second, in turns, see `bench.loader.run`. On a machine that also does other things the clock says little;
``others' CPU`` shows how much that was, and ``CPU ratio`` compares CPU time instead: the part of the loader's CPU time,
trainer included, that decoding alone takes. ``to first`` compares the points of a sweep: each one's ratio (without a
limit, samples/s) to that of the first point, within a repeat.

A point that fails is a row with its error; the others go on, and the exit code is 1.

With ``--out`` a folder has ``run.json`` (all figures, parameters, machine), and for each point, in a folder of its own
if there are several: ``batch_times.jsonl``, one line a batch; plots and a summary of the mixture
(`bench.loader.mixture`). They are of the point's last repeat and are written when all points are measured; an
interrupted run has ``run.json`` alone.

Memory is the proportional set size of trainer and workers, looked at between the slices; its slope is in bytes a batch.
The files come from the page cache unless they are larger than memory; MB/s is what they would have to be read with.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.loader.report import RESULT_FILE, format_result, summarise_points, write_point
from bench.loader.sweep import PARAMETERS, Parameters, label, make_points, open_loader, parse_sweep
from bench.measure.child import ChildFailed, ask
from bench.measure.command import refuse_repeated_sweeps, run_points
from bench.measure.machine import describe_machine
from bench.measure.points import Point, measure_points, tell
from stream.storage.arguments import Parser, whole
from stream.storage.files import write_whole

_LIBRARIES = ("array-record", "grain", "numpy", "pyarrow", "simplejpeg")


def run_benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all points; returns what ``--json`` prints.

    With ``--out``, the figures that there are so far are kept there; times of batches and plots come in the end.

    Raises:
        ArgumentError: there is no such loader.
        ChildFailed: no point could be measured; says why the first could not.
        OSError: the folder cannot be written to.
    """
    base: Parameters = options.base
    points = [Point(label(point), point) for point in make_points(options.sweep)]
    for point in points:
        open_loader(dataclasses.replace(base, **point.parameters))
    result: dict[str, Any] = {
        "parameters": {**dataclasses.asdict(base), "repeat": options.repeat},
        "sweep": dict(options.sweep),
        "machine": describe_machine(_LIBRARIES),
        "points": [],
    }

    def measure(point: Point) -> dict[str, Any]:
        return ask("bench.loader.run", dataclasses.asdict(dataclasses.replace(base, **point.parameters)))

    def keep() -> None:
        result["points"] = summarise_points(points)
        if options.out is not None:
            write_whole(options.out / RESULT_FILE, json.dumps(result, indent=1))

    measure_points(points, measure, repeat=options.repeat, describe=_line, after=keep)
    if not any(point.runs for point in points):
        raise ChildFailed(f"point {points[0].name}: {points[0].error}")
    if options.out is not None:
        tell("writing times and plots")
        for point in points:
            if point.runs:
                write_point(options.out / _folder(point.name) if len(points) > 1 else options.out, point.runs[-1])
    return result


def _folder(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "=-_.," else "_" for letter in name.replace(" ", ","))


def _line(run: dict[str, Any]) -> str:
    beside = "" if run["ratio"] is None else f", {run['ratio']:.3f} of the limit ({run['cpu_ratio'] or 0:.3f} in CPU)"
    return f"{run['samples_per_s']:,.0f} samples/s{beside}, others' CPU {run['others_cpu_share']:.0%}"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m bench.loader",
        description="Measure the loader beside decoding the same JPEGs alone.",
        epilog="A point with the defaults takes some 15 s a repeat on two idle cores.",
    )
    for field in dataclasses.fields(Parameters):
        if field.name not in PARAMETERS:
            continue
        read, what = PARAMETERS[field.name]
        default = "" if field.default is None else f" (default: {field.default})"
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=read, default=field.default, help=what + default)
    parser.add_argument("--no-limit", action="store_true", help="do not measure decoding alone")
    parser.add_argument("--repeat", type=whole(1), default=3, help="measurements of each point (default: 3)")
    parser.add_argument(
        "--sweep",
        type=parse_sweep,
        action="append",
        default=[],
        metavar="KEY=A,B,C",
        help="a point for each value of one of the parameters above; given several times, for each combination",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder for {RESULT_FILE}, times and plots")
    parser.add_argument("--json", action="store_true", help="print all figures, raw ones too, instead of a table")
    return parser


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    refuse_repeated_sweeps(parser, options.sweep)
    chosen = {name: getattr(options, name) for name in PARAMETERS}
    options.base = Parameters(**chosen, costs=options.out is not None)
    if options.no_limit:
        options.base = dataclasses.replace(options.base, limit_s=0.0)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_points(_parse(arguments), run_benchmark, format_result)


if __name__ == "__main__":
    sys.exit(main())
