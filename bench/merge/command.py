"""``python -m bench.merge``: seconds and memory of merging the index of a split, and of its statistics.

The journals are synthetic (`bench.scale.root`): one shard is written, the others are hard links to its parts. They are
made in ``--work``, as the indexes are, and removed again. Every size is measured in a fresh process.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure.child import ask
from bench.measure.command import run_points, wholes
from bench.measure.machine import describe_machine
from bench.measure.points import Point, measure_points, tell
from bench.measure.tables import megabytes
from bench.scale.root import EPISODE_PAIRS, OFFSET, make_parts
from convert.report import format_table
from stream.storage.arguments import Parser, whole
from stream.storage.atomic import write_whole

RESULT_FILE = "merge.json"
_LIBRARIES = ("numpy", "pyarrow")
_EPISODES = 23
"""Episodes of a shard, of 65 steps each: 1,495 steps, as a split of 30 million in 20,000 shards has."""


def run_benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """Make the journals and merge them; returns what ``--json`` prints.

    Raises:
        OSError: The folder cannot be written to, or its file system has no hard links.
    """
    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
    rows = _EPISODES * (EPISODE_PAIRS + OFFSET)
    counts = [max(1, steps // rows) for steps in options.sizes]
    points = [Point(f"{rows * shards:,}", {"shards": shards}) for shards in counts]
    with tempfile.TemporaryDirectory(prefix="bench-merge-", dir=options.work) as work:
        for shards in counts:
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
    """Return the table of a whole result."""
    rows = []
    for point in result["points"]:
        figures = point["median"]
        start = [point["name"], f"{point['point']['shards']:,}"]
        if figures is None:
            rows.append([*start, "failed", *["-"] * 4])
            continue
        sizes = [megabytes(figures[key]) for key in ("index_bytes", "peak_bytes", "peak_own_bytes")]
        rows.append([*start, f"{figures['merge_s']:.1f}", f"{figures['statistics_s']:.1f}", *sizes])
    header = ["steps", "shards", "merge s", "statistics s", "index MB", "memory MB", "of no file MB"]
    lines = [format_table(header, rows), "memory is the most of both, libraries included; MB are 10^6 bytes"]
    lines += [f"{point['name']} steps failed: {point['error']}" for point in result["points"] if point["error"]]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m bench.merge", description="Measure how merging an index grows with the data.")
    parser.add_argument(
        "--steps",
        dest="sizes",
        type=wholes(1),
        default="3000000,30000000",
        metavar="A,B",
        help="(default: %(default)s)",
    )
    parser.add_argument("--repeat", type=whole(1), default=1, help="measurements of each size (default: %(default)s)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="folder for the files (default: the temporary one)")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder for {RESULT_FILE}, all figures")
    parser.add_argument("--json", action="store_true", help="print all figures instead of a table")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_points(options, run_benchmark, format_result, place=options.work or tempfile.gettempdir())


if __name__ == "__main__":
    sys.exit(main())
