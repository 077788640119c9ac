"""``pairstream verify ROOT``: check that converted datasets are what their manifests say.

The manifest is compared with the files, the tables of each index with each other, and the shards with the index.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from convert.command import root_parser, run_report
from convert.datasets import find_datasets
from convert.errors import UsageError
from convert.findings import Notes, Report
from convert.index.shards import list_shards
from convert.pool import Crashed, ProcessPool
from convert.shard.pairs import record_offsets
from convert.verify.dataset import VerifiedDataset, verify_dataset
from convert.verify.index import check_ids, check_index
from convert.verify.shard import check_shard, stored_cameras
from stream.base.progress import Progress
from stream.format.names import table_file

_EPILOG = """\
exit codes:
  0    no errors
  1    errors: damage, or an incomplete conversion
  2    a wrong name, path or option; nothing was checked
  130  interrupted

examples:
  pairstream verify data/oxe
  pairstream verify data/oxe --deep --datasets bridge,rt1 --jobs 8
  pairstream verify data/oxe/bridge/0.1.0 --json
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
    reports = [verify_dataset(folder) for folder in find_datasets(root, datasets)]
    total_bytes = sum(entry.bytes for report in reports for _, entry in report.files())
    # At least two processes, unless one was asked for: a crash must not end this process.
    workers = jobs if jobs is not None else max(2, os.cpu_count() or 1)
    with (
        Progress(total_bytes, "B", label="verify", stream=progress) as progress_line,
        ProcessPool(workers, name="verify") as pool,
    ):
        # The findings of an index decide whether its shards are compared with it.
        for of_shards in (False, True):
            checks = [check for report in reports for check in _list_checks(report, deep=deep, of_shards=of_shards)]
            tasks, sizes = [check.run for check in checks], [check.bytes for check in checks]
            results = pool.run(tasks, progress=progress_line, task_sizes=sizes, is_failure=_is_damaged)
            for check, check_notes in zip(checks, results, strict=True):
                if isinstance(check_notes, Crashed):
                    check.report.notes.add_file(check.file, str(check_notes))
                else:
                    check.report.notes.merge(check_notes)
    _name_swapped(reports)
    return Report(
        root=str(root),
        settings={"deep": deep},
        looked_at="every frame decoded" if deep else "sizes, checksums and indexes (--deep decodes every frame)",
        seconds=time.monotonic() - started,
        datasets=reports,
    )


def _name_swapped(reports: Sequence[VerifiedDataset]) -> None:
    """Say of each damaged file that has the bytes of another which one that is."""
    path_by_hash = {entry.sha256: path for report in reports for path, entry in report.files()}
    for damage in (damage for report in reports for damage in report.notes.damage):
        if damage.sha256 in path_by_hash:
            damage.text += f"; these are the bytes of {path_by_hash[damage.sha256]}"


def _is_damaged(notes: Notes) -> bool:
    return bool(notes.damage)


class _Check(NamedTuple):
    """A check to run in a process, the file to name if the process dies, and the number of bytes to read."""

    report: VerifiedDataset
    run: Callable[[], Notes]
    file: Path
    bytes: int


def _list_checks(report: VerifiedDataset, *, deep: bool, of_shards: bool) -> Iterator[_Check]:
    """Yield the check of the index of each split, or, after these checks, of each shard."""
    if (manifest := report.manifest) is None:
        return
    offsets, cameras = record_offsets(manifest.layout, manifest.parameters), stored_cameras(manifest)
    damaged_files = {damage.file for damage in report.notes.damage}
    valid_splits = {}
    for split, entry in manifest.splits.items():
        folder = report.folder / split
        episodes_path, records_path = (folder / table_file(kind) for kind in ("episodes", "records"))
        if not folder.is_dir():
            continue
        if not of_shards:
            num_bytes = sum(table.bytes for table in (*entry.index.values(), *entry.labels.values()))
            yield _Check(report, partial(check_index, folder, manifest, deep=deep), records_path, num_bytes)
            continue
        if episodes_path.exists() and str(episodes_path) not in damaged_files:
            valid_splits[split] = entry
        is_sound = str(records_path) not in damaged_files
        check = partial(check_shard, offsets=offsets, deep=deep, index_sound=is_sound, cameras=cameras)
        for shard in list_shards(folder, entry):
            yield _Check(report, partial(check, shard), shard.path, shard.entry.file.bytes)
    if valid_splits:
        episodes_path = report.folder / next(iter(valid_splits)) / table_file("episodes")
        num_bytes = sum(entry.index["episodes"].bytes for entry in valid_splits.values())
        yield _Check(report, partial(check_ids, report.folder, valid_splits), episodes_path, num_bytes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    description = "Check that converted datasets are what their manifests say."
    parser = root_parser("verify", description=description, epilog=_EPILOG)
    parser.add_argument(
        "--deep", action="store_true", help="decode every frame, compute derived columns and statistics again"
    )
    parser.add_argument("--jobs", type=int, help="number of processes (default: one per CPU)")
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")

    def work(options: argparse.Namespace, dataset_names: list[str] | None) -> tuple[Any, str, bool]:
        report = verify_root(
            options.root, deep=options.deep, datasets=dataset_names, jobs=options.jobs, progress=sys.stderr
        )
        return report.to_json(), report.to_text(), not report.ok

    return run_report(parser, arguments, make_report=work, interrupt_message="interrupted; nothing was changed")
