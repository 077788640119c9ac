"""``python -m bench.merge``: seconds and memory of merging the index of a split, and of its statistics.

The journals are synthetic (`bench.scale.root`): one shard is written, the others are hard links to its parts. Journals
and indexes are made in ``--work`` and removed again. Every size is measured in a fresh process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure.child import ask
from bench.measure.command import run_points, wholes
from bench.measure.machine import describe_machine
from bench.measure.points import Point, measure_points, tell
from bench.measure.tables import megabytes
from bench.scale.command import add_places, failures
from bench.scale.root import EPISODE_PAIRS, OFFSET, make_parts
from convert.report import format_table
from stream.storage.arguments import Parser
from stream.storage.files import write_whole

RESULT_FILE = "merge.json"
_LIBRARIES = ("numpy", "pyarrow")
_SIZES = "3000000,30000000"
_EPISODES = 23
"""Episodes of a shard, of 65 steps each: 1,495 steps, as a split of 30 million in 20,000 shards has."""


def run_benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """Make the journals, merge them, and return the content of ``--json``.

    Raises:
        OSError: The folder cannot be written to, or its file system has no hard links.
    """
    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
    rows = _EPISODES * (EPISODE_PAIRS + OFFSET)
    points = []
    with tempfile.TemporaryDirectory(prefix="bench-merge-", dir=options.work) as work:
        for shards in (max(1, steps // rows) for steps in options.sizes):
            points.append(Point(f"{rows * shards:,}", {"shards": shards}))
            tell(f"making the parts of {shards:,} shards")
            make_parts(Path(work, str(shards)), episodes=_EPISODES, shards=shards)
        measure_points(
            points,
            lambda point: ask("bench.merge.run", {"work": work, "shards": point.parameters["shards"]}),
            repeat=options.repeat,
            describe=lambda run: f"merged in {run['merge_s']:.1f} s",
        )
        tell("removing the journals")
    result = {"machine": describe_machine(_LIBRARIES), "points": [point.as_dict() for point in points]}
    if options.out is not None:
        write_whole(options.out / RESULT_FILE, json.dumps(result, indent=1))
    return result


def format_result(result: dict[str, Any]) -> str:
    """Return the table of a result."""
    header = ["steps", "shards", "merge s", "statistics s", "index MB", "memory MB", "of no file MB"]
    rows = []
    for point in result["points"]:
        figures = ["failed", *["-"] * 4]
        if (run := point["median"]) is not None:
            sizes = [megabytes(run[key]) for key in ("index_bytes", "peak_bytes", "peak_own_bytes")]
            figures = [f"{run['merge_s']:.1f}", f"{run['statistics_s']:.1f}", *sizes]
        rows.append([point["name"], f"{point['point']['shards']:,}", *figures])
    note = "memory is the peak of both, libraries included; MB are 10^6 bytes"
    return "\n".join([format_table(header, rows), note, *failures(result, "steps")])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(prog="python -m bench.merge", description="Measure how merging an index grows with the data.")
    add = parser.add_argument
    add("--steps", dest="sizes", type=wholes(1), default=_SIZES, metavar="A,B", help="(default: %(default)s)")
    add_places(parser, RESULT_FILE, repeat=1)
    options = parser.parse_args(arguments)
    return run_points(options, run_benchmark, format_result, place=options.work or tempfile.gettempdir())
