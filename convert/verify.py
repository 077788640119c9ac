"""``python -m convert.verify ROOT``: check that converted datasets are what their manifests say.

Manifest against files, and the files of each shard against each other; ``--deep`` also reads every record, decodes
every frame and computes the statistics again. Nothing is changed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from convert.command import add_root, print_result, run_command, split_names
from convert.errors import EXIT_FAILED, UsageError
from convert.report import human_bytes, human_seconds
from convert.verify_dataset import Survey, check_sizes, find_datasets, survey
from convert.verify_pool import Crashed, WorkerPool
from convert.verify_report import DatasetReport, Finding, Problem, Report
from convert.verify_shard import ShardResult, ShardTask, check_shard
from convert.verify_statistics import StatisticsTask, check_statistics
from stream.arguments import interrupt_on_kill
from stream.format import MANIFEST_NAME, shard_file

__all__ = ["DatasetReport", "Problem", "Report", "main", "verify_root"]

_LINE_EVERY = 30.0

_EPILOG = """\
exit codes:
  0    everything is as it should be
  1    something is off, or not complete; one line each
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
        root: an output root, ``ROOT/<dataset>`` or ``ROOT/<dataset>/<version>``.
        deep: read every record, decode every frame, compute the statistics again: about eight times the work. The
            statistics take 4 bytes of memory a step and value of one split.
        datasets: names of those to check; default all.
        jobs: processes; default one per CPU. They check a shard each, and one that dies of a damaged file costs only
            that shard. With 1 everything is done in this process; otherwise a script needs a main guard, as
            ``multiprocessing`` asks for.
        progress: a stream to show progress on.

    Returns:
        What was found. ``ok`` says whether it is all well.

    Raises:
        UsageError: nothing was converted there, there is no such dataset, or ``jobs`` is below 1.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs is {jobs}, expected 1 or more")
    started = time.monotonic()
    surveys = [survey(folder, deep=deep) for folder in find_datasets(root, datasets)]
    findings = {looked.folder: list(looked.findings) for looked in surveys}
    tasks = [(looked, task) for looked in surveys for task in looked.tasks]
    sizes: dict[Path, Counter[str]] = defaultdict(Counter)
    shown = _Progress([task for _, task in tasks], progress)
    # Not more than there is work for, but never in this process unless that was asked for.
    workers = jobs if jobs is not None else max(2, os.cpu_count() or 1)
    with shown, WorkerPool(workers) as pool:
        for index, result in pool.run(check_shard, [task for _, task in tasks], tick=shown.tick):
            looked, task = tasks[index]
            if isinstance(result, Crashed):
                result = ShardResult(findings=(_crash(f"{task.split}/{task.entry.name}", result),))
            findings[looked.folder] += result.findings
            sizes[looked.folder].update(result.sizes)
            shown.finish(task)
        if deep:
            for looked in surveys:
                # With frames missing or broken, their number says nothing new.
                if looked.manifest is not None and not findings[looked.folder]:
                    findings[looked.folder] += check_sizes(looked.manifest, sizes[looked.folder])
            again = [(looked, task) for looked in surveys for task in _statistics(looked, findings[looked.folder])]
            for index, found in pool.run(check_statistics, [task for _, task in again], tick=shown.tick):
                looked = again[index][0]
                findings[looked.folder] += (_crash(MANIFEST_NAME, found),) if isinstance(found, Crashed) else found
    owners = _owners(surveys)
    return Report(
        root=str(root),
        deep=deep,
        seconds=time.monotonic() - started,
        datasets=tuple(_summarise(looked, damaged=bool(findings[looked.folder])) for looked in surveys),
        problems=tuple(
            _problem(looked, finding, owners)
            for looked in surveys
            for finding in sorted(findings[looked.folder], key=lambda finding: finding.file)
        ),
    )


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
    parser.add_argument("--deep", action="store_true", help="decode every frame and compute the statistics again")
    parser.add_argument("--jobs", type=int, help="processes; 1: all in one (default: one per core)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _statistics(looked: Survey, findings: Iterable[Finding]) -> Iterable[StatisticsTask]:
    """The splits of which all steps files are as they should be."""
    if looked.manifest is None:
        return
    damaged = {finding.file for finding in findings}
    for name, split in looked.manifest.splits.items():
        shards = tuple(shard.name for shard in split.shards)
        if not damaged.intersection((name, *(f"{name}/{shard_file(shard, 'steps')}" for shard in shards))):
            yield StatisticsTask(
                folder=str(looked.folder),
                split=name,
                shards=shards,
                spec=looked.manifest.spec,
                statistics=looked.manifest.statistics.get(name, {}),
            )


def _crash(file: str, crashed: Crashed) -> Finding:
    return Finding(
        file=file,
        text=f"the process that checked it was ended by {crashed.reason}, expected it to finish; out of memory, or "
        "damage that the manifest does not show",
    )


def _owners(surveys: Iterable[Survey]) -> dict[str, str]:
    """Which file has which SHA-256, by the manifests."""
    return {
        file.sha256: str(looked.folder / split / shard_file(shard.name, kind))
        for looked in surveys
        if looked.manifest is not None
        for split, entry in looked.manifest.splits.items()
        for shard in entry.shards
        for kind, file in shard.files.items()
    }


def _problem(looked: Survey, finding: Finding, owners: dict[str, str]) -> Problem:
    splits = looked.manifest.splits if looked.manifest is not None else {}
    split = finding.file.split("/", 1)[0]
    twin = owners.get(finding.sha256 or "")
    return Problem(
        dataset=looked.dataset,
        version=looked.version,
        split=split if "/" in finding.file or split in splits else None,
        file=str(looked.folder / finding.file),
        problem=finding.text + (f"; these are the bytes of {twin}" if twin else ""),
    )


def _summarise(looked: Survey, *, damaged: bool) -> DatasetReport:
    splits = looked.manifest.splits if looked.manifest is not None else {}
    shards = [shard for split in splits.values() for shard in split.shards]
    return DatasetReport(
        dataset=looked.dataset,
        version=looked.version,
        path=str(looked.folder),
        splits=tuple(splits),
        shards=len(shards),
        records=sum(shard.records for shard in shards),
        bytes=sum(file.bytes for shard in shards for file in shard.files.values()),
        verdict="incomplete" if looked.incomplete else "damaged" if damaged else "ok",
        notes=looked.notes,
    )


class _Progress:
    """Shards, MB/s and ETA: in place on a terminal, else a line now and then."""

    def __init__(self, tasks: Sequence[ShardTask], stream: TextIO | None) -> None:
        self._stream = stream
        self._total = len(tasks)
        self._total_bytes = sum(_size(task) for task in tasks)
        self._done = 0
        self._bytes = 0
        self._started = self._shown = time.monotonic()
        self._tty = stream is not None and stream.isatty()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tty:
            print("\r\x1b[K", end="", file=self._stream, flush=True)

    def finish(self, task: ShardTask) -> None:
        self._done += 1
        self._bytes += _size(task)

    def tick(self) -> None:
        now = time.monotonic()
        if self._stream is None or now - self._shown < (0.2 if self._tty else _LINE_EVERY):
            return
        self._shown = now
        rate = self._bytes / max(now - self._started, 1e-6)
        left = f", ETA {human_seconds((self._total_bytes - self._bytes) / rate)}" if rate else ""
        line = (
            f"{self._done:,}/{self._total:,} shards, {human_bytes(rate)}/s, {human_seconds(now - self._started)}{left}"
        )
        if self._done == self._total:
            line = f"{self._done:,} shards, computing statistics, {human_seconds(now - self._started)}"
        print(f"\r\x1b[K{line}" if self._tty else line, end="" if self._tty else "\n", file=self._stream, flush=True)


def _size(task: ShardTask) -> int:
    return sum(file.bytes for file in task.entry.files.values())


if __name__ == "__main__":
    sys.exit(main())
