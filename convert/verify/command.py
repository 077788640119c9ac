"""``python -m convert.verify ROOT``: check that converted datasets are what their manifests say.

The manifest against the files, the tables of each index against each other, and the shards against the index;
``--deep`` also reads every record, decodes every frame and computes derived columns and statistics again. Nothing is
changed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TextIO

from convert.command import add_root, print_result, run_command, split_names
from convert.errors import EXIT_FAILED, UsageError
from convert.report import human_bytes, human_seconds
from convert.verify.dataset import Survey, find_datasets, survey
from convert.verify.index import IndexResult, IndexTask, check_index
from convert.verify.pool import Crashed, WorkerPool
from convert.verify.report import DatasetReport, Finding, Problem, Report
from convert.verify.shard import ShardTask, check_shard
from stream.format.names import shard_file, table_file
from stream.storage.arguments import interrupt_on_kill

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
        deep: read every record, decode every frame, compute derived columns and statistics again: about eight times
            the work.
        datasets: names of those to check; default all.
        jobs: processes; default one per CPU. They check a shard or an index each, and one that dies of a damaged file
            costs only that. With 1 everything is done in this process; otherwise a script needs a main guard, as
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
    splits = [(looked, task) for looked in surveys for task in looked.splits]
    shards = [(looked, task) for looked in surveys for task in looked.shards]
    sound: dict[tuple[str, str], bool] = {}
    shown = _Progress([*(_bytes(task) for _, task in splits), *(_bytes(task) for _, task in shards)], progress)
    # Not more than there is work for, but never in this process unless that was asked for.
    workers = jobs if jobs is not None else max(2, os.cpu_count() or 1)
    with shown, WorkerPool(workers) as pool:
        # The indexes first: what is wrong with one is no fault of the shards that it describes.
        for number, index in pool.run(check_index, [task for _, task in splits], tick=shown.tick):
            looked, split = splits[number]
            if isinstance(index, Crashed):
                file = f"{split.split}/{table_file('episodes')}"
                index = IndexResult(findings=(_crash(file, index),), records_sound=False)
            findings[looked.folder] += index.findings
            sound[split.folder, split.split] = index.records_sound
            shown.finish(_bytes(split))
        tasks = [replace(task, index_sound=sound[str(looked.folder), task.shard.split]) for looked, task in shards]
        for number, result in pool.run(check_shard, tasks, tick=shown.tick):
            looked, task = shards[number]
            findings[looked.folder] += (_crash(task.name, result),) if isinstance(result, Crashed) else result
            shown.finish(_bytes(task))
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
    parser.add_argument(
        "--deep", action="store_true", help="decode every frame, compute derived columns and statistics again"
    )
    parser.add_argument("--jobs", type=int, help="processes; 1: all in one (default: one per core)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _crash(file: str, crashed: Crashed) -> Finding:
    return Finding(
        file=file,
        text=f"the process that checked it was ended by {crashed.reason}, expected it to finish; out of memory, or "
        "damage that the manifest does not show",
    )


def _owners(surveys: Iterable[Survey]) -> dict[str, str]:
    """Return the file that has a SHA-256, by the manifests."""
    owners: dict[str, str] = {}
    for looked in surveys:
        for split, entry in (looked.manifest.splits if looked.manifest is not None else {}).items():
            folder = looked.folder / split
            owners |= {table.sha256: str(folder / table_file(kind)) for kind, table in entry.index.items()}
            owners |= {shard.file.sha256: str(folder / shard_file(shard.name)) for shard in entry.shards}
    return owners


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
        bytes=sum(shard.file.bytes for shard in shards)
        + sum(table.bytes for split in splits.values() for table in split.index.values()),
        verdict="incomplete" if looked.incomplete else "damaged" if damaged else "ok",
        notes=looked.notes,
    )


class _Progress:
    """Files, MB/s and ETA: in place on a terminal, else a line now and then."""

    def __init__(self, sizes: Sequence[int], stream: TextIO | None) -> None:
        self._stream = stream
        self._total = len(sizes)
        self._total_bytes = sum(sizes)
        self._done = 0
        self._bytes = 0
        self._started = self._shown = time.monotonic()
        self._tty = stream is not None and stream.isatty()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tty:
            print("\r\x1b[K", end="", file=self._stream, flush=True)

    def finish(self, size: int) -> None:
        self._done += 1
        self._bytes += size

    def tick(self) -> None:
        now = time.monotonic()
        if self._stream is None or now - self._shown < (0.2 if self._tty else _LINE_EVERY):
            return
        self._shown = now
        rate = self._bytes / max(now - self._started, 1e-6)
        left = f", ETA {human_seconds((self._total_bytes - self._bytes) / rate)}" if rate else ""
        done = f"{self._done:,}/{self._total:,} indexes and shards"
        line = f"{done}, {human_bytes(rate)}/s, {human_seconds(now - self._started)}{left}"
        print(f"\r\x1b[K{line}" if self._tty else line, end="" if self._tty else "\n", file=self._stream, flush=True)


def _bytes(task: IndexTask | ShardTask) -> int:
    if isinstance(task, IndexTask):
        return sum(table.bytes for table in task.entry.index.values())
    return task.shard.entry.file.bytes


if __name__ == "__main__":
    sys.exit(main())
