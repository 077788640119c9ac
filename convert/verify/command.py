"""``python -m convert.verify ROOT``: check that converted datasets are what their manifests say.

The check compares the manifest with the files, the tables of each index with each other, and the shards with the
index. ``--deep`` also reads every record, decodes every frame, and computes derived columns and statistics again.
Nothing is changed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TextIO

from convert.command import add_root, print_result, run_command, split_names
from convert.errors import EXIT_FAILED, UsageError
from convert.verify.dataset import find_datasets, survey
from convert.verify.index import check_index
from convert.verify.manifest import pair_offsets
from convert.verify.pool import Crashed, WorkerPool, progress_bar
from convert.verify.report import DatasetReport, Finding, Problem, Report
from convert.verify.shard import check_shard
from convert.verify.split_shard import list_shards
from stream.format.names import table_file
from stream.storage.arguments import interrupt_on_kill

__all__ = ["DatasetReport", "Problem", "Report", "main", "verify_root"]

_EPILOG = """\
exit codes:
  0    no problems
  1    problems, or an incomplete conversion; one line each
  2    a wrong name, path or option; nothing was checked
  130  interrupted

examples:
  python -m convert.verify data/oxe
  python -m convert.verify data/oxe --deep --datasets bridge,rt1 --jobs 8
  python -m convert.verify data/oxe/bridge/0.1.0 --json
"""


def verify_root(
    root: str | os.PathLike[str],
    *,
    deep: bool = False,
    datasets: Sequence[str] | None = None,
    jobs: int | None = None,
    progress: TextIO | None = None,
) -> Report:
    """Check every converted dataset at or below ``root``; changes nothing, and damaged files never raise.

    Args:
        root: Output root, ``ROOT/<dataset>`` or ``ROOT/<dataset>/<version>``.
        deep: Read every record, decode every frame, and compute derived columns and statistics again: about eight
            times the work.
        datasets: Names of the datasets to check, default all.
        jobs: Number of processes, default one per CPU. Each checks a shard or an index at a time; a process that dies
            of a damaged file costs only its task. With 1, everything runs in this process. Otherwise, a script needs a
            main guard, as for ``multiprocessing``.
        progress: Stream to show progress on.

    Raises:
        UsageError: Nothing was converted here, a dataset does not exist, or ``jobs`` is below 1.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs is {jobs}, expected 1 or more")
    started = time.monotonic()
    reports = [survey(folder) for folder in find_datasets(root, datasets)]
    total = sum(report.to_json()["bytes"] for report in reports)
    # At least two processes, unless one was asked for: a crash must not end this process.
    workers = jobs if jobs is not None else max(2, os.cpu_count() or 1)
    with progress_bar(total, "B", progress) as shown, WorkerPool(workers) as pool:
        # The findings of an index decide whether its shards are compared with it.
        for list_checks in (_index_checks, _shard_checks):
            checks = [check for report in reports for check in list_checks(report, deep)]
            results = pool.run([check.run for check in checks], shown=shown, sizes=[check.bytes for check in checks])
            for check, found in zip(checks, results, strict=True):
                if isinstance(found, Crashed):
                    text = (
                        f"the process that checked it was ended by {found.reason}, expected it to finish; out of "
                        "memory, or damage that the manifest does not show"
                    )
                    found = [Finding(check.file, text)]
                check.report.findings += found
    return Report(root=str(root), deep=deep, seconds=time.monotonic() - started, datasets=reports)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parsed = _build_parser().parse_args(arguments)
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    interrupt_on_kill()

    def work() -> int:
        names = split_names(parsed.datasets)
        report = verify_root(parsed.root, deep=parsed.deep, datasets=names, jobs=parsed.jobs, progress=sys.stderr)
        print_result(json.dumps(report.to_json(), indent=1) if parsed.json else report.to_text())
        return 0 if report.ok else EXIT_FAILED

    return run_command(work, place=parsed.root, interrupted="interrupted; nothing was changed")


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m convert.verify",
        description="Check that converted datasets are what their manifests say.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_root(parser)
    parser.add_argument(
        "--deep", action="store_true", help="decode every frame, compute derived columns and statistics again"
    )
    parser.add_argument("--jobs", type=int, help="number of processes (default: one per CPU)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


class _Check(NamedTuple):
    """A check to run in a process, the file to name if the process dies, and the number of bytes to read."""

    report: DatasetReport
    run: Callable[[], list[Finding]]
    file: str
    bytes: int


def _index_checks(report: DatasetReport, deep: bool) -> Iterator[_Check]:
    """Yield the check of the index of each split."""
    for split, entry in report.splits.items():
        if report.manifest is not None and (report.folder / split).is_dir():
            run = partial(
                check_index,
                report.folder,
                split,
                entry,
                offset=pair_offsets(report.manifest)[0],
                spec=report.manifest.spec,
                statistics=report.manifest.statistics.get(split, {}),
                deep=deep,
            )
            size = sum(table.bytes for table in entry.index.values())
            yield _Check(report, run, f"{split}/{table_file('records')}", size)


def _shard_checks(report: DatasetReport, deep: bool) -> Iterator[_Check]:
    """Yield the check of each shard, after the checks of the indexes."""
    wrong = {finding.file for finding in report.findings}
    for split, entry in report.splits.items():
        if report.manifest is not None and (report.folder / split).is_dir():
            sound = f"{split}/{table_file('records')}" not in wrong
            offsets = pair_offsets(report.manifest)[1]
            for shard in list_shards(report.folder, split, entry):
                run = partial(check_shard, shard, frame_offsets=offsets, deep=deep, index_sound=sound)
                yield _Check(report, run, f"{split}/{shard.path.name}", shard.entry.file.bytes)
