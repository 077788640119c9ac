"""``pairstream doctor ROOT``: look for what makes converted data bad to train on, before training does.

``pairstream verify`` checks the files, this command their content: all columns of the indexes, and some pictures.
Nothing is changed. ``convert.rules`` has the rules and thresholds.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, TextIO

from convert.command import root_parser, run_report
from convert.datasets import find_datasets
from convert.doctor.dataset import Examined, examine_dataset, read_dataset
from convert.doctor.frames import swapped_colours
from convert.errors import UsageError
from convert.findings import Report, count_severities
from convert.pool import Crashed, ProcessPool
from convert.rules import RULES, SEVERITIES
from stream.base.arguments import whole_number
from stream.base.progress import Progress

_INDENT = " " * 12
_RULES = "\n".join(
    f"  {rule.severity:<8}  {rule.name}\n"
    + textwrap.fill(rule.meaning, 98, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)
    for rule in RULES.values()
)

_EPILOG = f"""\
rules (thresholds: convert/rules.py):
{_RULES}

exit codes:
  0    no errors; with --strict no warnings either
  1    errors; with --strict warnings too
  2    a wrong name, path or option; nothing was checked
  130  interrupted

examples:
  pairstream doctor data/oxe
  pairstream doctor data/oxe --datasets bridge,rt1 --frames 512 --strict
"""


def examine(
    root: str | os.PathLike[str],
    *,
    frames: int = 64,
    seed: int = 0,
    datasets: Sequence[str] | None = None,
    jobs: int = 1,
    progress: TextIO | None = None,
) -> Report:
    """Look at every converted dataset at or below ``root``; changes nothing, and damaged files never raise.

    Each process has one dimension of a split in memory, and the mean and the standard deviation of the action of each
    episode of a dataset.

    Args:
        root: Output root, ``ROOT/<dataset>`` or ``ROOT/<dataset>/<version>``.
        frames: Number of frames of each dataset to decode, two a pair, at least eight of each split. The indexes are
            read completely.
        seed: Seed of the choice of pairs.
        datasets: Names of the datasets to look at, default all.
        jobs: Number of processes, each for one dataset at a time; with 1, everything runs in this process.
        progress: Stream to show progress on.

    Raises:
        UsageError: Nothing was converted here, a dataset does not exist, or a number is too small.
    """
    for option_name, option_value, smallest in (("frames", frames, 2), ("jobs", jobs, 1), ("seed", seed, 0)):
        if option_value < smallest:
            raise UsageError(f"{option_name} is {option_value}, expected {smallest} or more")
    started = time.monotonic()
    reports = [read_dataset(folder) for folder in find_datasets(root, datasets)]
    shard_counts = [sum(len(split.shards) for split in report.splits.values()) for report in reports]
    examinations = [partial(examine_dataset, report, frames=frames, seed=seed) for report in reports]
    with (
        Progress(sum(shard_counts), "shards", label="doctor", stream=progress) as progress_line,
        ProcessPool(jobs, name="doctor") as pool,
    ):
        results = pool.run(examinations, progress=progress_line, task_sizes=shard_counts, is_failure=_is_damaged)
        for dataset_number, examined in enumerate(results):
            if isinstance(examined, Crashed):
                reports[dataset_number].notes.add("unreadable", None, str(examined))
            else:
                reports[dataset_number] = examined
    casts = {str(report.folder): report.total.casts for report in reports}
    swapped = swapped_colours(casts)
    for report in reports:
        if sentence := swapped.get(str(report.folder)):
            report.notes.add("colours_swapped", None, sentence, count=2 * len(report.total.casts))
    return Report(
        root=str(root),
        settings={"frames": frames, "seed": seed},
        looked_at=f"all indexes and {sum(report.total.pairs for report in reports):,} pairs of frames",
        seconds=time.monotonic() - started,
        datasets=reports,
    )


def _is_damaged(report: Examined) -> bool:
    return bool(report.notes.damage)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    description = "Look for what makes converted data bad to train on."
    parser = root_parser("doctor", description=description, epilog=_EPILOG)
    parser.add_argument(
        "--frames", type=whole_number(2), default=64, help="frames of each dataset to decode, two a pair (default: 64)"
    )
    parser.add_argument("--seed", type=whole_number(0), default=0, help="seed of the choice of frames (default: 0)")
    parser.add_argument("--jobs", type=whole_number(1), default=1, help="number of processes (default: 1)")
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")
    return run_report(parser, arguments, make_report=_examine, interrupt_message="interrupted")


def _examine(options: argparse.Namespace, dataset_names: list[str] | None) -> tuple[Any, str, bool]:
    settings = {"frames": options.frames, "seed": options.seed, "jobs": options.jobs}
    diagnosis = examine(options.root, **settings, datasets=dataset_names, progress=sys.stderr)
    counts = count_severities(diagnosis.findings)
    is_bad = any(counts[f"{severity}s"] for severity in SEVERITIES[: 2 if options.strict else 1])
    return diagnosis.to_json(), diagnosis.to_text(), is_bad
