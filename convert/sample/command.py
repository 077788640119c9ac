"""Generate small datasets that are, to every reader, the real ones: TFDS directories with the true features.

``python -m convert.sample --datasets oxe29 --output DIR --episodes 4 --steps 30``
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from convert.command import print_result, run_command
from convert.registry.registry import load_registry
from convert.sample.writer import SampleReport, SplitReport, make_sample
from stream.storage.arguments import whole

__all__ = ["SampleReport", "SplitReport", "main", "make_sample"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)

    def work() -> int:
        show = _ProgressLine() if sys.stderr.isatty() else None
        try:
            registry = load_registry(config=options.config)
            reports = make_sample(
                options.output,
                [selected.spec for selected in registry.resolve(options.datasets)],
                episodes=options.episodes,
                steps=options.steps,
                seed=options.seed,
                shards=options.shards,
                jobs=options.jobs,
                vary_steps=options.vary_steps,
                overwrite=options.overwrite,
                progress=show,
            )
        finally:
            if show is not None:
                show.close()
        rows = [dataclasses.asdict(report) for report in reports]
        print_result(json.dumps(rows, indent=1) if options.json else _table(reports))
        return 0

    interrupted = "interrupted; datasets that were complete stay"
    return run_command(work, place=options.output, interrupted=interrupted)


class _ProgressLine:
    """One line on stderr, written over: datasets, rate and the time left."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, done: int, datasets: int, share: float) -> None:
        seconds = time.monotonic() - self._start
        left = seconds * (1 - share) / share if share else 0.0
        rate = 60 * done / seconds if seconds else 0.0
        text = f"{done}/{datasets} datasets, {share:4.0%}, {rate:.0f} datasets/min, {left:.0f} s left"
        print(f"\r{text:<70}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line."""
        print(f"\r{'':<70}\r", end="", file=sys.stderr, flush=True)


def _table(reports: Sequence[SampleReport]) -> str:
    rows = [("dataset", "splits", "episodes", "steps", "MB", "")]
    for report in reports:
        splits = report.splits.values()
        rows.append(
            (
                report.dataset,
                " ".join(report.splits),
                str(sum(split.episodes for split in splits)),
                str(sum(split.steps for split in splits)),
                f"{sum(split.bytes for split in splits) / 1e6:.1f}",
                report.status,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = []
    for row in rows:
        left = [row[column].ljust(widths[column]) for column in (0, 1)]
        right = [row[column].rjust(widths[column]) for column in (2, 3, 4)]
        lines.append("  ".join([*left, *right, row[5]]).rstrip())
    size = sum(split.bytes for report in reports for split in report.splits.values())
    return "\n".join([*lines, f"{len(reports)} datasets, {size / 1e6:.0f} MB"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m convert.sample", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--datasets", required=True, help="a mixture, dataset names with commas between, or a YAML file"
    )
    parser.add_argument("--output", required=True, type=Path, help="root; gets <tfds_name>/<version> below it")
    parser.add_argument("--episodes", type=whole(1), default=4, help="of the train split; half of it in others [4]")
    parser.add_argument("--steps", type=whole(1), default=30, help="of each episode [30]")
    parser.add_argument("--vary-steps", action="store_true", help="lengths from 0 to --steps")
    parser.add_argument("--seed", type=whole(0), default=0, help="other seeds give other scenes [0]")
    parser.add_argument("--shards", type=whole(1), default=2, help="files of a split [2]")
    parser.add_argument("--jobs", type=whole(1), help="processes [one per CPU]")
    parser.add_argument("--config", action="append", default=[], help="YAML with further datasets; may be repeated")
    parser.add_argument("--overwrite", action="store_true", help="replace samples with other parameters")
    parser.add_argument("--json", action="store_true", help="reports as JSON instead of a table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
