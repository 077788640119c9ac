"""``python -m convert.doctor ROOT``: look for what makes converted data bad to train on, before training does.

``convert.verify`` says whether the files are what their manifests say; this says whether what they hold makes sense:
all columns of the indexes, and some of the pictures. Nothing is changed. Rules and thresholds are in
`convert.doctor.rules`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from convert.command import add_root, print_result, run_command, split_names
from convert.doctor.dataset import DatasetReport, Patient
from convert.doctor.frames import swapped_colours
from convert.doctor.page import write_page
from convert.doctor.report import Diagnosis
from convert.doctor.rules import RULES, SEVERITIES, Example, Place
from convert.doctor.shard import check_index, check_shard, read_first_frames
from convert.errors import EXIT_FAILED, UsageError
from convert.report import human_seconds
from convert.verify.dataset import find_datasets
from convert.verify.pool import WorkerPool
from stream.storage.arguments import Parser, interrupt_on_kill, whole

__all__ = ["DatasetReport", "Diagnosis", "examine", "main"]

_MOST_LOOKED_THROUGH = 100
"""Folders in which the files of a source are looked for."""

_RULES = "\n".join(f"  {rule.severity:<8} {rule.name:<21} {rule.meaning}" for rule in RULES.values())

_EPILOG = f"""\
rules (thresholds: convert/doctor/rules.py):
{_RULES}

exit codes:
  0    no errors; with --strict no warnings either
  1    errors; with --strict warnings too
  2    a wrong name, path or option; nothing was looked at
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

    One shard is in memory at a time for each process, and beside that 8 bytes an episode and dimension of the action.

    Args:
        root: an output root, ``ROOT/<dataset>`` or ``ROOT/<dataset>/<version>``.
        frames: of each dataset to decode, two a pair, at least eight of each split; the indexes are read in full.
        seed: which pairs; with the same seed the same ones.
        datasets: names of those to look at; default all.
        jobs: processes; with 1 everything is done in this one.
        pictures: keep small pictures with the findings, for the page.
        progress: a stream to show progress on, if it is a terminal.

    Raises:
        UsageError: nothing was converted there, there is no such dataset, or a number is too small.
    """
    for name, value, least in (("frames", frames, 2), ("jobs", jobs, 1), ("seed", seed, 0)):
        if value < least:
            raise UsageError(f"{name} is {value}, expected {least} or more")
    _refuse_source(Path(root))
    started = time.monotonic()
    patients = [Patient(path, frames=frames, seed=seed, pictures=pictures) for path in find_datasets(root, datasets)]
    with _Progress(sum(len(patient.tasks) for patient in patients), progress) as shown, WorkerPool(jobs) as pool:
        for patient in patients:
            indexes = list(patient.indexes.values())
            patient.take_indexes(_run(pool, check_index, indexes, shown, patient.name, counts=False))
            patient.take(_run(pool, check_shard, patient.tasks, shown, patient.name))
            # Before the next one, so that the figures of all episodes of only one dataset are in memory.
            patient.compare(_run(pool, read_first_frames, patient.suspects(), shown, patient.name, counts=False))
            patient.forget()
    for name, text in swapped_colours({f"{p.name} {p.version}": p.casts for p in patients}).items():
        (patient,) = (p for p in patients if f"{p.name} {p.version}" == name)
        example = Example(place=Place(), text=text)
        patient.notes.add("colours_swapped", None, example, count=2 * len(patient.casts))
    return Diagnosis(
        root=str(root),
        frames=frames,
        seed=seed,
        seconds=time.monotonic() - started,
        datasets=tuple(patient.report() for patient in patients),
    )


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
    parser.add_argument("--seed", type=whole(0), default=0, help="which frames (default: 0)")
    parser.add_argument("--jobs", type=whole(1), default=1, help="processes (default: 1)")
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with pictures")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _refuse_source(root: Path) -> None:
    """Say of a folder of TFDS datasets what to do instead."""
    folders = [root]
    for level in range(3):
        for folder in folders[:_MOST_LOOKED_THROUGH]:
            if (folder / "dataset_info.json").is_file() and (folder / "features.json").is_file():
                name = folder.absolute().parent.name
                raise UsageError(
                    f"{root}: holds TFDS datasets that are not converted; convert a few episodes first: "
                    f"python -m convert.run --datasets {name} --source {folder.absolute().parent.parent} "
                    "--episodes 'train[:20]' --output DIR, then python -m convert.doctor DIR"
                )
        if level < 2:
            folders = [child for folder in folders[:_MOST_LOOKED_THROUGH] for child in _subfolders(folder)]


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
    except OSError:
        return []


def _run(
    pool: WorkerPool,
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    shown: _Progress,
    name: str,
    *,
    counts: bool = True,
) -> list[Any]:
    """Do tasks in the processes of a pool; returns the results in the order of the tasks."""
    results: list[Any] = [None] * len(tasks)
    for index, result in pool.run(function, tasks, tick=shown.tick):
        results[index] = result
        shown.finish(name, counts)
    return results


class _Progress:
    """A line on a terminal, written over: shards, the dataset and the time left."""

    def __init__(self, total: int, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None and stream.isatty() else None
        self._total = total
        self._done = 0
        self._name = ""
        self._started = time.monotonic()
        self._shown = 0.0

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            print("\r\x1b[K", end="", file=self._stream, flush=True)

    def finish(self, name: str, counts: bool) -> None:
        self._name = name
        self._done += counts

    def tick(self) -> None:
        now = time.monotonic()
        if self._stream is None or now - self._shown < 0.2:
            return
        self._shown = now
        spent = now - self._started
        left = f", {human_seconds(spent / self._done * (self._total - self._done))} left" if self._done else ""
        line = f"{self._done:,}/{self._total:,} shards, {human_seconds(spent)}{left}, {self._name}"
        print(f"\r\x1b[K{line}", end="", file=self._stream, flush=True)


if __name__ == "__main__":
    sys.exit(main())
