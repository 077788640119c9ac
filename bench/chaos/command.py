"""``python -m bench.chaos``: cause the faults of months of use, and check that nothing is lost.

Each fault happens to real processes: ``python -m convert.run`` on a small sample, or a training script on the loader. A
conversion must end, at the latest when the same command is given again, with output that is byte for byte that of an
undisturbed one, and a training run with the same batches. One clear error line in between is allowed. No process,
temporary file or shared memory may be left. The exit code is 1 if one of these conditions does not hold.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.chaos import convert, limits, loader
from bench.chaos.yard import Broken, Fault, Yard
from bench.measure.command import print_result, run_command
from bench.measure.machine import describe_machine
from bench.measure.tables import markdown_table
from convert.report import human_seconds
from stream.loader.state import write_json
from stream.storage.arguments import Parser, interrupt_on_kill, whole
from stream.storage.errors import ArgumentError

RESULT_FILE = "chaos.json"
_LIBRARIES = ("apache-beam", "array-record", "dask", "grain", "numpy", "pyarrow")
_DATASETS = "berkeley_fanuc_manipulation,kuka"
"""PNG and JPEG; their names are also those of TFDS."""
_PRIVATE = "CHAOS_HAS_ITS_OWN_SHM"

_CONVERSION: tuple[tuple[str, Any, tuple[int, int, int], tuple[int, int, int]], ...] = (
    ("conversion killed", convert.killed, (40, 40, 20), (1, 1, 0)),
    ("merging killed", convert.merging_killed, (8, 6, 2), (1, 0, 0)),
    ("files lost", convert.files_lost, (8, 6, 2), (1, 0, 0)),
    ("worker of a conversion killed", convert.worker_killed, (0, 4, 2), (0, 0, 0)),
    ("conversion stopped, continued or killed", convert.stopped, (3, 3, 3), (0, 0, 0)),
    ("two conversions at once", convert.two_at_once, (3, 3, 3), (0, 0, 0)),
    ("source changed between runs", convert.source_changed, (5, 5, 0), (1, 0, 0)),
    ("disk full", limits.disk_full, (8, 4, 4), (1, 0, 0)),
    ("file size limit", limits.file_size_limit, (3, 3, 3), (0, 0, 0)),
    ("few file handles", limits.few_handles, (3, 3, 3), (0, 0, 0)),
    ("too little address space", limits.address_space, (6, 4, 3), (0, 0, 0)),
    ("too little memory (cgroup)", limits.memory_cgroup, (4, 4, 3), (0, 0, 0)),
    ("read-only output", limits.read_only_output, (2, 2, 1), (0, 0, 0)),
)
"""Attempts of each fault of a conversion, in each of the three ways of running, and in the short form."""
_TRAINING: tuple[tuple[str, Any, int, int], ...] = (
    ("loader: worker killed", loader.worker_killed, 4, 1),
    ("loader: trainer killed", loader.trainer_killed, 4, 0),
    ("loader: worker stopped", loader.worker_stopped, 4, 0),
    ("loader: trainer stopped", loader.trainer_stopped, 4, 1),
    ("loader: few file handles", limits.few_handles, 4, 0),
    ("loader: too little address space", limits.address_space, 6, 0),
    ("loader: too little memory (cgroup)", limits.memory_cgroup, 4, 0),
    ("loader: read-only data", limits.read_only_data, 1, 0),
)
"""Attempts of each fault of a training run, and in the short form."""


def plan_faults(yard: Yard, options: argparse.Namespace) -> list[Fault]:
    """Return the faults to try, the longest first; ``--kills`` is spread over the three ways to convert."""
    training = loader.Training(yard)
    found = []
    for name, run, counts, short in _CONVERSION:
        for way, count in zip(convert.WAYS, short if options.short else counts, strict=True):
            kills = run is convert.killed and not options.short
            found.append(Fault(name, way, run, round(count * options.kills / 100) if kills else count))
    for name, run, count, one in _TRAINING:
        found.append(Fault(name, training, run, one if options.short else count))
    wanted = options.only or [""]
    return [fault for fault in found if fault.count and any(text in fault.name for text in wanted)]


def run_chaos(options: argparse.Namespace, *, damage: Callable[[Yard], None] = lambda _: None) -> dict[str, Any]:
    """Make the sample, cause the faults, and return the content of ``--json``.

    Args:
        options: Options of the command line.
        damage: Called with the yard before the faults; the tests damage the reference, which must be noticed.

    Raises:
        Broken: The sample cannot be made or converted without faults.
    """
    began = time.monotonic()

    def attempt(yard: Yard, fault: Fault) -> None:
        fault.try_all(yard, random.Random(f"{options.seed} {fault.name} {fault.program.where}"))
        told = fault.skipped or f"{fault.survived} of {fault.tried} survived"
        lines = [f"{fault.name}, {fault.program.where}: {told}", *(f"! {problem}" for problem in fault.problems)]
        # One write for all lines: several threads report.
        sys.stderr.write(f"{human_seconds(time.monotonic() - began):>6} " + "\n       ".join(lines) + "\n")

    with tempfile.TemporaryDirectory(prefix="chaos-", dir=options.work) as work:
        shards, size = (4, 128) if options.short else (10, 384)
        yard = Yard(Path(work), datasets=_DATASETS, shards=shards, size=size)
        yard.make(episodes=shards, steps=7 if options.short else 10)
        damage(yard)
        faults = plan_faults(yard, options)
        with ThreadPoolExecutor(options.jobs) as pool:
            try:
                for done in [pool.submit(attempt, yard, fault) for fault in faults]:
                    done.result()
            except BaseException:
                # Ctrl-C: running attempts clean up, the others do not start.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return {
        "date": time.strftime("%Y-%m-%d"),
        "parameters": {"kills": options.kills, "seed": options.seed, "short": options.short, "jobs": options.jobs},
        "machine": describe_machine(_LIBRARIES),
        "seconds": time.monotonic() - began,
        "faults": [fault.as_dict() for fault in faults],
        "broken": sum(bool(fault.problems) for fault in faults),
    }


def format_result(result: Mapping[str, Any]) -> str:
    """Return the faults as a table in Markdown, problems below it."""
    rows, problems = [], []
    for fault in result["faults"]:
        seen = "; ".join(fault["told"]) or "-"
        if fault["skipped"]:
            seen = f"not tried: {fault['skipped']}"
        if fault["problems"]:
            seen = f"BROKEN: {fault['problems'][0]}"
        rows.append([fault["fault"], fault["where"], fault["tried"], fault["survived"], " ".join(seen.split())])
        problems += [f"BROKEN: {fault['fault']}, {fault['where']}: {problem}" for problem in fault["problems"]]
    tried = sum(fault["tried"] for fault in result["faults"])
    table = markdown_table(["fault", "where", "tried", "survived", "how it looks"], rows, right=False)
    return "\n".join([table, "", f"{tried} faults in {human_seconds(result['seconds'])}", *problems])


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    made = Parser(prog="python -m bench.chaos", description="Cause faults and check that nothing is lost.")
    add = made.add_argument
    add(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="only faults with this text in their name; repeatable",
    )
    add("--kills", type=whole(1), default=100, help="kills of a conversion (default: %(default)s)")
    add("--seed", type=whole(0), default=0, help="seed of moments and limits (default: %(default)s)")
    add("--jobs", type=whole(1), default=2, help="faults to try at once (default: %(default)s)")
    add("--short", action="store_true", help="one of each of the shorter faults, in half a minute")
    add("--work", type=Path, metavar="DIR", help="folder to work in (default: the temporary one)")
    add("--out", type=Path, metavar="DIR", help=f"folder for {RESULT_FILE}")
    add("--json", action="store_true", help="print all figures instead of a table")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parser().parse_args(arguments)
    interrupt_on_kill()

    def work() -> int:
        for folder in filter(None, (options.out, options.work)):
            folder.mkdir(parents=True, exist_ok=True)
        result = run_chaos(options)
        if not result["faults"]:
            raise ArgumentError(f"no fault is called {' or '.join(options.only)}")
        if options.out is not None:
            write_json(options.out / RESULT_FILE, result)
        print_result(result, format_result, as_json=options.json)
        return 1 if result["broken"] else 0

    return run_command(work, place=options.work or options.out, failures=(Broken,))


def use_private_memory() -> None:
    """Start the program again with its own /dev/shm, where permitted: other programs leave files in the shared one."""
    if os.environ.get(_PRIVATE) or os.geteuid() or shutil.which("unshare") is None:
        return
    mount = f'{_PRIVATE}=1; export {_PRIVATE}; mount -t tmpfs chaos-shm /dev/shm; exec "$0" "$@"'
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0:
        again = [sys.executable, "-m", "bench.chaos", *sys.argv[1:]]
        os.execvp("unshare", ["unshare", "--mount", "sh", "-c", mount, *again])
