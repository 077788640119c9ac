"""Command that generates small TFDS datasets with the true features of the published ones.

``pairstream sample --datasets oxe29 --output DIR --episodes 4 --steps 30``
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from convert.command import print_result
from convert.registry.registry import load_registry
from convert.report import format_table
from convert.sample.writer import SampleReport, make_sample
from stream.base.arguments import run_command, whole

__all__ = ["SampleReport", "main", "make_sample"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = vars(_parser().parse_args(arguments))
    output, config, datasets, as_json = (options.pop(name) for name in ("output", "config", "datasets", "json"))

    def work() -> int:
        specs = [selected.spec for selected in load_registry(config=config).resolve(datasets)]
        reports = make_sample(output, specs, **options)
        print_result(json.dumps(list(map(dataclasses.asdict, reports)), indent=1) if as_json else _table(reports))
        return 0

    return run_command(work, path=output, interrupted="interrupted; complete datasets stay")


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
    description = "Generate small TFDS datasets with the true features of the published ones."
    parser = argparse.ArgumentParser(prog="pairstream sample", description=description)
    add = parser.add_argument
    add("--datasets", required=True, help="mixture, dataset names separated by commas, or a YAML file")
    add("--output", required=True, type=Path, help="root; the datasets are written to <tfds_name>/<version> below it")
    add("--episodes", type=whole(1), default=4, help="episodes of the train split; other splits get half [4]")
    add("--steps", type=whole(1), default=30, help="steps of each episode [30]")
    add("--vary-steps", action="store_true", help="vary the length of episodes from 0 to --steps")
    add("--seed", type=whole(0), default=0, help="other seeds give other scenes [0]")
    add("--shards", type=whole(1), default=2, help="files of each split [2]")
    add("--jobs", type=whole(1), help="datasets that are written at the same time [one per CPU]")
    add("--config", action="append", default=[], help="YAML file with further datasets; repeatable")
    add("--overwrite", action="store_true", help="replace samples made with other parameters")
    add("--json", action="store_true", help="print reports as JSON instead of a table")
    return parser
