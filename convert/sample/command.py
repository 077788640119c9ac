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
from stream.base.arguments import Parser, run_command, whole_number

__all__ = ["SampleReport", "main", "make_sample"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = vars(_parser().parse_args(arguments))
    output, config, datasets, as_json = (options.pop(name) for name in ("output", "config", "datasets", "json"))

    def work() -> int:
        dataset_specs = [selected.spec for selected in load_registry(config=config).resolve(datasets)]
        reports = make_sample(output, dataset_specs, **options)
        print_result(json.dumps(list(map(dataclasses.asdict, reports)), indent=1) if as_json else _table(reports))
        return 0

    return run_command(work, path=output, interrupted="interrupted; complete datasets stay")


def _table(reports: Sequence[SampleReport]) -> str:
    table_rows = []
    for report in reports:
        splits = report.splits.values()
        num_episodes, num_steps, num_bytes = (
            sum(split_counts[name] for split_counts in splits) for name in ("episodes", "steps", "bytes")
        )
        table_rows.append(
            [report.dataset, " ".join(report.splits), num_episodes, num_steps, f"{num_bytes / 1e6:.1f}", report.status]
        )
    total_bytes = sum(split_counts["bytes"] for report in reports for split_counts in report.splits.values())
    text_table = format_table(["dataset", "splits", "episodes", "steps", "MB", ""], table_rows)
    return f"{text_table}\n{len(reports)} datasets, {total_bytes / 1e6:.0f} MB"


def _parser() -> argparse.ArgumentParser:
    description = "Generate small TFDS datasets with the true features of the published ones."
    parser = Parser(prog="pairstream sample", description=description)
    add_argument = parser.add_argument
    add_argument("--datasets", required=True, help="mixture, dataset names separated by commas, or a YAML file")
    add_argument(
        "--output", required=True, type=Path, help="root; the datasets are written to <tfds_name>/<version> below it"
    )
    add_argument(
        "--episodes", type=whole_number(1), default=4, help="episodes of the train split; other splits get half [4]"
    )
    add_argument("--steps", type=whole_number(1), default=30, help="steps of each episode [30]")
    add_argument("--vary-steps", action="store_true", help="vary the length of episodes from 0 to --steps")
    add_argument("--seed", type=whole_number(0), default=0, help="other seeds give other scenes [0]")
    add_argument("--shards", type=whole_number(1), default=2, help="files of each split [2]")
    add_argument("--jobs", type=whole_number(1), help="datasets that are written at the same time [one per CPU]")
    add_argument("--config", action="append", default=[], help="YAML file with further datasets; repeatable")
    add_argument("--overwrite", action="store_true", help="replace samples made with other parameters")
    add_argument("--json", action="store_true", help="print reports as JSON instead of a table")
    return parser
