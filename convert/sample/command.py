"""Command that generates small TFDS datasets with the true features of the published ones.

``pairstream sample --datasets oxe29 --output DIR --episodes 4 --steps 30``
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from convert.command import print_result
from convert.registry.registry import load_registry
from convert.report import fit_table
from convert.sample.writer import SampleReport, make_sample
from stream.base.arguments import Parser, run_command, whole_number

__all__ = ["SampleReport", "main", "make_sample"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    description = "Generate small TFDS datasets with the true features of the published ones."
    parser = Parser(prog="pairstream sample", description=description)
    add = parser.add_argument
    add("--datasets", required=True, help="mixture, dataset names separated by commas, or a YAML file")
    add("--output", required=True, type=Path, help="root; the datasets are written to <tfds_name>/<version> below it")
    add("--episodes", type=whole_number(1), default=4, help="episodes of the train split; other splits get half [4]")
    add("--steps", type=whole_number(1), default=30, help="steps of each episode [30]")
    add("--vary-steps", action="store_true", help="vary the length of episodes from 0 to --steps")
    add("--seed", type=whole_number(0), default=0, help="other seeds give other scenes [0]")
    add("--shards", type=whole_number(1), default=2, help="files of each split [2]")
    add("--jobs", type=whole_number(1), help="datasets that are written at the same time [one per CPU]")
    add("--config", action="append", default=[], help="YAML file with further datasets; repeatable")
    add("--overwrite", action="store_true", help="replace samples made with other parameters")
    add("--json", action="store_true", help="print reports as JSON instead of a table")
    options = vars(parser.parse_args(arguments))
    output, config, datasets, as_json = (options.pop(name) for name in ("output", "config", "datasets", "json"))

    def work() -> None:
        dataset_specs = [selected.spec for selected in load_registry(config=config).resolve(datasets)]
        reports = make_sample(output, dataset_specs, **options)
        print_result(json.dumps(list(map(dataclasses.asdict, reports)), indent=1) if as_json else _table(reports))

    return run_command(work, path=output, interrupted="interrupted; complete datasets stay")


def _table(reports: Sequence[SampleReport]) -> str:
    table_rows, total_bytes = [], 0
    for report in reports:
        num_episodes, num_steps, num_bytes = (
            sum(counts[name] for counts in report.splits.values()) for name in ("episodes", "steps", "bytes")
        )
        splits = " ".join(report.splits)
        table_rows.append([report.dataset, splits, num_episodes, num_steps, f"{num_bytes / 1e6:.1f}", report.status])
        total_bytes += num_bytes
    text_table = fit_table(["dataset", "splits", "episodes", "steps", "MB", ""], table_rows)
    return f"{text_table}\n{len(reports)} datasets, {total_bytes / 1e6:.0f} MB"
