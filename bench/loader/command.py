"""``python -m bench.loader``: the speed of the loader beside decoding the same JPEGs alone, in the same run.

Each repeat of each point runs in a fresh process; with ``--sweep`` a repeat goes through all points, in alternating
order. Figures are medians over the repeats.

``ratio`` is samples/s of the loader divided by samples/s of the limit: one process for each worker (or one thread for
each of the loader's threads) that decodes the same JPEGs from memory (`bench.measure.decode_limit`). Loader and limit
are measured in turns, in slices of about a second (`bench.loader.run`). On a busy machine compare CPU time instead:
``others' CPU`` is the share of other programs, ``CPU ratio`` the CPU time of decoding alone divided by that of the
loader, trainer included. ``to first`` compares the ratio of a point (samples/s without a limit) with that of the first
point, within a repeat.

A point that fails is a row with its error. The other points are measured, and the exit code is 1.

``--out`` receives ``run.json`` (all figures, parameters, machine) and, for each point, ``batch_times.jsonl`` (a line a
batch) and plots of the mixture over the batches, from the point's last repeat. With several points each has a folder.

Memory is the proportional set size of trainer and workers, sampled between the slices; its growth is in bytes a batch.
The files come from the page cache unless they are larger than memory; MB/s is the rate at which they are read.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

from bench.loader.parameters import Parameters, open_loader
from bench.loader.report import BATCHES_FILE, RESULT_FILE, loader_table, summarise_points, write_point
from bench.measure.command import run_points
from bench.measure.points import tell
from bench.measure.sweep import add_options, make_points, measure_sweep, parse
from stream.storage.arguments import Parser

_LIBRARIES = ("array-record", "grain", "numpy", "pyarrow", "simplejpeg")


def run_benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all points and return the result that ``--json`` prints.

    Raises:
        ArgumentError: A point has no such loader.
        ChildFailed: No point could be measured.
        OSError: ``--out`` cannot be written to.
    """
    points = make_points(options.sweep)
    for point in points:
        open_loader(dataclasses.replace(options.base, **point.parameters))
    result = measure_sweep(
        options,
        points,
        module="bench.loader.run",
        libraries=_LIBRARIES,
        file=RESULT_FILE,
        describe=_line,
        summarise=summarise_points,
    )
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


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m bench.loader",
        description="Measure the loader beside decoding the same JPEGs alone.",
        epilog="A point with the defaults takes about 15 s a repeat on two idle cores.",
    )
    parser.add_argument("--no-limit", action="store_true", help="do not measure decoding alone")
    add_options(parser, Parameters, files=f"{RESULT_FILE}, {BATCHES_FILE} and plots of the mixture")
    options = parse(parser, Parameters, arguments)
    if options.no_limit:
        options.base = dataclasses.replace(options.base, limit_s=0.0)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    return run_points(_parse(arguments), run_benchmark, lambda result: loader_table(result).text())
