"""``python -m bench.scale``: cost of opening, planning, batches, resuming and memory from 10^5 to 6*10^7 records.

The roots are synthetic (`bench.scale.root`): real formats, 29 datasets, up to 20,000 shards, frames of 256x256, and
hard links instead of shards that would only fill the disk. They are made in ``--work`` and removed again. Every size is
measured in a fresh process, ``--repeat`` times, in alternation; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure.child import ChildFailed, ask
from bench.measure.command import run_points, wholes
from bench.measure.machine import describe_machine
from bench.measure.points import Point, measure_points, tell
from bench.scale.root import Scale, make_root
from convert.report import format_table
from stream.storage.arguments import Parser, whole
from stream.storage.files import write_whole

RESULT_FILE = "scale.json"
_LIBRARIES = ("array-record", "grain", "numpy", "pyarrow", "pydantic")
_SIZES = "100000,1000000,10000000,60000000"
_COLUMNS = {
    "open s": ("open_s", ".2f", 1.0),
    "first batch s": ("first_batch_s", ".2f", 1.0),
    "cold open s": ("cold_open_s", ".2f", 1.0),
    "cold first s": ("cold_first_batch_s", ".2f", 1.0),
    "cold/warm rate": ("cold_rate", ".2f", 1.0),
    "plan 256 ms": ("plan_ms", ".2f", 1.0),
    "CPU ms a batch": ("batch_cpu_ms", ".1f", 1.0),
    "beside decoding": ("beside_cpu_ms", ".1f", 1.0),
    "resume at 10^8 s": ("resume_s", ".2f", 1.0),
    "describe ms": ("describe_ms", ".0f", 1.0),
    "statistics ms": ("normalize_ms", ".1f", 1.0),
    "trainer MB": ("trainer_own_bytes", ",.0f", 1e-6),
    "worker MB": ("worker_own_bytes", ",.0f", 1e-6),
}
"""Key, format and unit of the figures in the table."""


def run_benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """Make the roots, measure them, and return the content of ``--json``.

    Raises:
        ChildFailed: No size could be measured.
        OSError, ConvertError: A root cannot be written.
    """
    given = {key: getattr(options, key) for key in ("batch_size", "num_workers", "batches")}
    parameters = {**given, "repeat": options.repeat}
    result: dict[str, Any] = {"parameters": parameters, "machine": describe_machine(_LIBRARIES), "points": []}
    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
    points = []
    with tempfile.TemporaryDirectory(prefix="bench-scale-", dir=options.work) as work:
        for size in options.sizes:
            scale = Scale.of(size)
            tell(f"making {scale.records:,} records in {scale.shards:,} shards")
            make_root(Path(work, str(size)), scale)
            figures = {"records": scale.records, "shards": scale.shards, "asked": size}
            points.append(Point(f"{scale.records:,}", figures))

        def keep() -> None:
            result["points"] = [point.as_dict() for point in points]
            if options.out is not None:
                write_whole(options.out / RESULT_FILE, json.dumps(result, indent=1))

        measure_points(
            points,
            lambda point: ask("bench.scale.run", {"root": str(Path(work, str(point.parameters["asked"]))), **given}),
            repeat=options.repeat,
            describe=lambda run: f"open {run['open_s']:.2f} s, first batch {run['first_batch_s']:.2f} s",
            after=keep,
        )
        # Reported, because removing 80,000 files takes a while.
        tell("removing the roots")
    if not any(point.runs for point in points):
        raise ChildFailed(f"{points[0].name} records: {points[0].error}")
    return result


def format_result(result: dict[str, Any]) -> str:
    """Return the table of a result."""
    rows = []
    for point in result["points"]:
        figures = ["failed", *["-"] * (len(_COLUMNS) - 1)]
        if (run := point["median"]) is not None:
            figures = [
                "-" if run[key] is None else f"{run[key] * scale:{form}}" for key, form, scale in _COLUMNS.values()
            ]
        rows.append([point["name"], f"{point['point']['shards']:,}", *figures])
    given = result["parameters"]
    note = (
        f"medians of {given['repeat']}; {given['batches']} batches of {given['batch_size']}, {given['num_workers']} "
        "workers; cold: the first hundred batches after the index left the page cache; memory without mapped files, MB "
        "are 10^6 bytes"
    )
    return "\n".join([format_table(["records", "shards", *_COLUMNS], rows), note, *failures(result, "records")])


def failures(result: dict[str, Any], unit: str) -> list[str]:
    """Return a line for each failed point."""
    return [f"{point['name']} {unit} failed: {point['error']}" for point in result["points"] if point["error"]]


def add_places(parser: argparse.ArgumentParser, file: str, *, repeat: int) -> None:
    """Add the options ``--repeat``, ``--work``, ``--out`` and ``--json``."""
    add = parser.add_argument
    add("--repeat", type=whole(1), default=repeat, help="measurements of each size (default: %(default)s)")
    add("--work", type=Path, metavar="DIR", help="folder for temporary files (default: the system's)")
    add("--out", type=Path, metavar="DIR", help=f"folder for {file}, all figures")
    add("--json", action="store_true", help="print all figures instead of a table")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(prog="python -m bench.scale", description="Measure how the loader's cost grows with the data.")
    add = parser.add_argument
    add("--records", dest="sizes", type=wholes(1), default=_SIZES, metavar="A,B", help="(default: %(default)s)")
    add("--batch-size", type=whole(1), default=64, help="(default: %(default)s)")
    add("--num-workers", type=whole(0), default=2, help="(default: %(default)s)")
    add("--batches", type=whole(2), default=400, help="batches of a measurement (default: %(default)s)")
    add_places(parser, RESULT_FILE, repeat=3)
    options = parser.parse_args(arguments)
    return run_points(options, run_benchmark, format_result, place=options.work or tempfile.gettempdir())
