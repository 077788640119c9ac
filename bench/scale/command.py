"""``python -m bench.scale``: what opening, planning, batches, resuming and memory cost from 10^5 to 6*10^7 records.

The roots are synthetic (`bench.scale.root`): real formats, 29 datasets, up to 20,000 shards, frames of 16x16, and hard
links in place of shards that would only fill the disk. They are made in ``--work`` and removed again. Every size is
measured in a fresh process, ``--repeat`` times, in alternation; figures are medians. What they say is how cost grows
with size; a batch of 256x256 frames costs a hundred times as much to decode as these.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure.child import ChildFailed, ask
from bench.measure.command import run_points, wholes
from bench.measure.machine import describe_machine
from bench.measure.points import Point, measure_points, tell
from bench.measure.tables import megabytes
from bench.scale.root import Scale, make_root
from convert.report import format_table
from stream.storage.arguments import Parser, whole
from stream.storage.atomic import write_whole

RESULT_FILE = "scale.json"
_LIBRARIES = ("array-record", "grain", "numpy", "pyarrow", "pydantic")
_SIZES = "100000,1000000,10000000,60000000"


def run_benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """Make the roots and measure them; returns what ``--json`` prints.

    Raises:
        ChildFailed: no size could be measured.
        OSError, ConvertError: a root cannot be written.
    """
    result: dict[str, Any] = {
        "parameters": {key: getattr(options, key) for key in ("batch_size", "num_workers", "batches", "repeat")},
        "machine": describe_machine(_LIBRARIES),
        "points": [],
    }
    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-scale-", dir=options.work) as work:
        points = []
        for size in options.sizes:
            scale = Scale.of(size)
            tell(f"making {scale.records:,} records in {scale.shards:,} shards")
            make_root(Path(work, str(size)), scale)
            points.append(
                Point(f"{scale.records:,}", {"records": scale.records, "shards": scale.shards, "asked": size})
            )

        def measure(point: Point) -> dict[str, Any]:
            given = {key: getattr(options, key) for key in ("batch_size", "num_workers", "batches")}
            return ask("bench.scale.run", {"root": str(Path(work, str(point.parameters["asked"]))), **given})

        def keep() -> None:
            result["points"] = [point.as_dict() for point in points]
            if options.out is not None:
                write_whole(options.out / RESULT_FILE, json.dumps(result, indent=1))

        measure_points(
            points,
            measure,
            repeat=options.repeat,
            describe=lambda run: f"open {run['open_s']:.2f} s, first batch {run['first_batch_s']:.2f} s",
            after=keep,
        )
        # Removed now, with its progress told: 80,000 files take their time.
        tell("removing the roots")
    if not any(point.runs for point in points):
        raise ChildFailed(f"{points[0].name} records: {points[0].error}")
    return result


def format_result(result: dict[str, Any]) -> str:
    """Return the table of a whole result."""
    header = ["records", "shards", "open s", "first batch s", "cold open s", "cold first s", "cold/warm rate"]
    header += ["plan 256 ms", "CPU ms a batch", "beside decoding", "resume at 10^8 s", "describe ms", "statistics ms"]
    header += ["trainer MB", "worker MB"]
    rows = []
    for point in result["points"]:
        figures = point["median"]
        start = [point["name"], f"{point['point']['shards']:,}"]
        if figures is None:
            rows.append([*start, "failed", *["-"] * (len(header) - 3)])
            continue
        rows.append(
            [
                *start,
                f"{figures['open_s']:.2f}",
                f"{figures['first_batch_s']:.2f}",
                f"{figures['cold_open_s']:.2f}",
                f"{figures['cold_first_batch_s']:.2f}",
                f"{figures['cold_rate']:.2f}",
                f"{figures['plan_ms']:.2f}",
                f"{figures['batch_cpu_ms']:.1f}",
                f"{figures['beside_cpu_ms']:.1f}",
                f"{figures['resume_s']:.2f}",
                f"{figures['describe_ms']:.0f}",
                f"{figures['normalize_ms']:.1f}",
                megabytes(figures["trainer_own_bytes"]),
                megabytes(figures["worker_own_bytes"]),
            ]
        )
    given = result["parameters"]
    lines = [
        format_table(header, rows),
        f"medians of {given['repeat']}; {given['batches']} batches of {given['batch_size']}, {given['num_workers']} "
        "workers; cold: the first hundred batches after the index left the page cache; memory is that of no file, MB "
        "are 10^6 bytes",
    ]
    lines += [f"{point['name']} records failed: {point['error']}" for point in result["points"] if point["error"]]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m bench.scale", description="Measure how the loader's cost grows with the data.")
    parser.add_argument(
        "--records", dest="sizes", type=wholes(1), default=_SIZES, metavar="A,B", help="(default: %(default)s)"
    )
    parser.add_argument("--batch-size", type=whole(1), default=64, help="(default: %(default)s)")
    parser.add_argument("--num-workers", type=whole(0), default=2, help="(default: %(default)s)")
    parser.add_argument("--batches", type=whole(2), default=400, help="batches of a measurement (default: %(default)s)")
    parser.add_argument("--repeat", type=whole(1), default=3, help="measurements of each size (default: %(default)s)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="folder for the roots (default: the temporary one)")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder for {RESULT_FILE}, all figures")
    parser.add_argument("--json", action="store_true", help="print all figures instead of a table")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_points(options, run_benchmark, format_result, place=options.work or tempfile.gettempdir())


if __name__ == "__main__":
    sys.exit(main())
