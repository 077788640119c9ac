"""``python -m convert.doctor ROOT``: look for what makes converted data bad to train on, before training does.

``convert.verify`` checks that the files are what their manifests say. This command checks that their content makes
sense: all columns of the indexes, and some of the pictures. Nothing is changed. ``convert.doctor.rules`` has the rules
and thresholds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from convert.command import add_root, print_result, run_command, split_names
from convert.doctor.dataset import DatasetReport, look_at, read_dataset
from convert.doctor.frames import swapped_colours
from convert.doctor.page import write_page
from convert.doctor.report import Diagnosis
from convert.doctor.rules import RULES, SEVERITIES
from convert.errors import EXIT_FAILED, UsageError
from convert.verify.dataset import find_datasets
from convert.verify.pool import WorkerPool, progress_bar
from stream.storage.arguments import Parser, interrupt_on_kill, whole

__all__ = ["DatasetReport", "Diagnosis", "examine", "main"]

_RULES = "\n".join(f"  {rule.severity:<8} {rule.name:<21} {rule.meaning}" for rule in RULES.values())

_EPILOG = f"""\
rules (thresholds: convert/doctor/rules.py):
{_RULES}

exit codes:
  0    no errors; with --strict no warnings either
  1    errors; with --strict warnings too
  2    a wrong name, path or option; nothing was checked
  130  interrupted

examples:
  python -m convert.doctor data/oxe
  python -m convert.doctor data/oxe --datasets bridge,rt1 --frames 512 --html doctor.html
"""


def examine(
    root: str | os.PathLike[str],
    *,
    frames: int = 64,
    seed: int = 0,
    datasets: Sequence[str] | None = None,
    jobs: int = 1,
    pictures: bool = False,
    progress: TextIO | None = None,
) -> Diagnosis:
    """Look at every converted dataset at or below ``root``; changes nothing, and damaged files never raise.

    Each process has one shard, or one dimension of a split, in memory. This process also has the mean and the standard
    deviation of the action of each episode of one dataset.

    Args:
        root: Output root, ``ROOT/<dataset>`` or ``ROOT/<dataset>/<version>``.
        frames: Number of frames of each dataset to decode, two a pair, at least eight of each split. The indexes are
            read completely.
        seed: Seed of the choice of pairs.
        datasets: Names of the datasets to look at, default all.
        jobs: Number of processes; with 1, everything runs in this process.
        pictures: Keep small pictures with the findings, for the page.
        progress: Stream to show progress on, if it is a terminal.

    Raises:
        UsageError: Nothing was converted here, a dataset does not exist, or a number is too small.
    """
    for name, value, least in (("frames", frames, 2), ("jobs", jobs, 1), ("seed", seed, 0)):
        if value < least:
            raise UsageError(f"{name} is {value}, expected {least} or more")
    _refuse_source(Path(root))
    started = time.monotonic()
    reports = [read_dataset(folder) for folder in find_datasets(root, datasets)]
    shards = sum(len(split.shards) for report in reports for split in report.splits.values())
    terminal = progress if progress is not None and progress.isatty() else None
    with progress_bar(shards, " shards", terminal) as shown, WorkerPool(jobs) as pool:
        for report in reports:
            look_at(report, frames=frames, seed=seed, pictures=pictures, pool=pool, shown=shown)
    for folder, text in swapped_colours({str(report.folder): report.total.casts for report in reports}).items():
        (report,) = (report for report in reports if str(report.folder) == folder)
        report.notes.add("colours_swapped", None, text, count=2 * len(report.total.casts))
    return Diagnosis(root=str(root), frames=frames, seed=seed, seconds=time.monotonic() - started, datasets=reports)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    interrupt_on_kill()

    def work() -> int:
        names = split_names(options.datasets)
        if options.html is not None and (options.html.is_dir() or not options.html.parent.is_dir()):
            what = "is a folder" if options.html.is_dir() else "is in no folder that exists"
            raise UsageError(f"--html {options.html} {what}; expected a file to write")
        diagnosis = examine(
            options.root,
            frames=options.frames,
            seed=options.seed,
            datasets=names,
            jobs=options.jobs,
            pictures=options.html is not None,
            progress=sys.stderr,
        )
        if options.html is not None:
            write_page(options.html, diagnosis)
        print_result(json.dumps(diagnosis.to_json(), indent=1) if options.json else diagnosis.to_text())
        bad = SEVERITIES[: 2 if options.strict else 1]
        return EXIT_FAILED if any(diagnosis.count(severity) for severity in bad) else 0

    return run_command(work, place=options.root, interrupted="interrupted")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m convert.doctor",
        description="Look for what makes converted data bad to train on.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_root(parser)
    parser.add_argument(
        "--frames", type=whole(2), default=64, help="frames of each dataset to decode, two a pair (default: 64)"
    )
    parser.add_argument("--seed", type=whole(0), default=0, help="seed of the choice of frames (default: 0)")
    parser.add_argument("--jobs", type=whole(1), default=1, help="number of processes (default: 1)")
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with pictures")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _refuse_source(root: Path) -> None:
    """Raise UsageError if a folder has TFDS datasets that are not converted."""
    for below in ("", "*/", "*/*/"):
        for file in root.glob(f"{below}features.json"):
            folder = file.absolute().parent
            if (folder / "dataset_info.json").is_file():
                raise UsageError(
                    f"{root}: holds TFDS datasets that are not converted; convert a few episodes first: "
                    f"python -m convert.run --datasets {folder.parent.name} --source {folder.parent.parent} "
                    "--episodes 'train[:20]' --output DIR, then python -m convert.doctor DIR"
                )
