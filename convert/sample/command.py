"""Command that generates small TFDS datasets with the true features of the published ones.

``python -m convert.sample --datasets oxe29 --output DIR --episodes 4 --steps 30``
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from convert.command import print_result, run_command
from convert.registry.registry import load_registry
from convert.report import format_table
from convert.sample.writer import SampleReport, make_sample
from stream.storage.arguments import whole

__all__ = ["SampleReport", "main", "make_sample"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)

    def work() -> int:
        specs = [selected.spec for selected in load_registry(config=options.config).resolve(options.datasets)]
        with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
            bar = progress.add_task("drawing", total=1.0)
            reports = make_sample(
                options.output,
                specs,
                episodes=options.episodes,
                steps=options.steps,
                seed=options.seed,
                shards=options.shards,
                jobs=options.jobs,
                vary_steps=options.vary_steps,
                overwrite=options.overwrite,
                progress=lambda share: progress.update(bar, completed=share),
            )
        rows = [dataclasses.asdict(report) for report in reports]
        print_result(json.dumps(rows, indent=1) if options.json else _table(reports))
        return 0

    interrupted = "interrupted; complete datasets stay"
    return run_command(work, place=options.output, interrupted=interrupted)


def _table(reports: Sequence[SampleReport]) -> str:
    rows = []
    for report in reports:
        splits = report.splits.values()
        episodes, steps, size = (sum(split[key] for split in splits) for key in ("episodes", "steps", "bytes"))
        rows.append([report.dataset, " ".join(report.splits), episodes, steps, f"{size / 1e6:.1f}", report.status])
    total = sum(split["bytes"] for report in reports for split in report.splits.values())
    table = format_table(["dataset", "splits", "episodes", "steps", "MB", ""], rows)
    return f"{table}\n{len(reports)} datasets, {total / 1e6:.0f} MB"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m convert.sample",
        description="Generate small TFDS datasets with the true features of the published ones.",
    )
    add = parser.add_argument
    add("--datasets", required=True, help="mixture, dataset names separated by commas, or a YAML file")
    add("--output", required=True, type=Path, help="root; the datasets are written to <tfds_name>/<version> below it")
    add("--episodes", type=whole(1), default=4, help="episodes of the train split; other splits get half [4]")
    add("--steps", type=whole(1), default=30, help="steps of each episode [30]")
    add("--vary-steps", action="store_true", help="vary the length of episodes from 0 to --steps")
    add("--seed", type=whole(0), default=0, help="other seeds give other scenes [0]")
    add("--shards", type=whole(1), default=2, help="files of each split [2]")
    add("--jobs", type=whole(1), help="processes [one per CPU]")
    add("--config", action="append", default=[], help="YAML file with further datasets; repeatable")
    add("--overwrite", action="store_true", help="replace samples made with other parameters")
    add("--json", action="store_true", help="print reports as JSON instead of a table")
    return parser
