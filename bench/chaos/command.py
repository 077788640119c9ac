"""``python -m bench.chaos``: bring about what goes wrong in months of use, and check that nothing is lost.

Each fault is a scenario with real processes: ``python -m convert.run`` on a small sample, or a training script on the
loader. A conversion has to end, at the latest when the same command is given again, with output that is byte for byte
that of an undisturbed one, and a training run with the same batches; in between there may be one clear error line. No
process, temporary file or shared memory may be left. The exit code is 1 if any of that does not hold.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.chaos import convert, limits, loader
from bench.chaos.yard import MODES, Broken, Fault, NotPossible, Yard
from bench.measure.child import ChildFailed
from bench.measure.command import print_result, run_command
from bench.measure.machine import describe_machine
from convert.report import format_table, human_seconds
from stream.loader.state import write_json
from stream.storage.arguments import Parser, interrupt_on_kill, whole
from stream.storage.errors import ArgumentError

RESULT_FILE = "chaos.json"
_LIBRARIES = ("apache-beam", "array-record", "dask", "grain", "numpy", "pyarrow")
_DATASETS = "berkeley_fanuc_manipulation,kuka"
"""PNG and JPEG; their names are those of TFDS too."""
_SHARES = {"in memory": 0.4, "2 processes": 0.4, "Dask": 0.2}
_LINE = 100
_PRIVATE = "CHAOS_HAS_ITS_OWN_SHM"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A fault in one way of running; ``count`` attempts, ``short`` in the short form."""

    name: str
    where: str
    run: Callable[[Yard, Fault, random.Random, int], None]
    count: int
    short: int = 0


def scenarios(yard: Yard, *, kills: int) -> list[Scenario]:
    """All of them, the longest first; ``kills`` is spread over the three ways to convert."""
    training = loader.Training(yard)
    found = [
        Scenario(
            name="conversion killed",
            where=mode,
            run=convert.killed,
            count=round(kills * _SHARES[mode]),
            short=1 if mode != "Dask" else 0,
        )
        for mode in MODES
    ]

    def add(name: str, run: Any, modes: Mapping[str, int], **short: int) -> None:
        for mode, count in modes.items():
            found.append(Scenario(name=name, where=mode, run=run, count=count, short=short.get(mode.split()[0], 0)))

    everywhere = dict.fromkeys(MODES, 3)
    add("merging killed", convert.merging_killed, {"in memory": 8, "2 processes": 6, "Dask": 2}, **{"in": 1})
    add("files lost", convert.files_lost, {"in memory": 8, "2 processes": 6, "Dask": 2}, **{"in": 1})
    add("worker of a conversion killed", convert.worker_killed, {"2 processes": 4, "Dask": 2})
    add("conversion stopped, continued or killed", convert.stopped, everywhere)
    add("two conversions at once", convert.two_at_once, everywhere)
    add("source changed between runs", convert.source_changed, {"in memory": 5, "2 processes": 5}, **{"in": 1})
    add("disk full", limits.disk_full, {"in memory": 8, "2 processes": 4, "Dask": 4}, **{"in": 1})
    add("file size limit", limits.file_size_limit, everywhere)
    add("few file handles", limits.few_handles, everywhere)
    add("too little address space", limits.address_space, {"in memory": 6, "2 processes": 4, "Dask": 3})
    add("too little memory (cgroup)", limits.memory_cgroup, {"in memory": 4, "2 processes": 4, "Dask": 3})
    add("read-only output", limits.read_only, {"in memory": 2, "2 processes": 2, "Dask": 1})
    for name, run in loader.SCENARIOS.items():
        count = {"read-only data": 1, "too little address space": 6}.get(name, 4)
        short = 1 if name in ("worker killed", "trainer stopped") else 0
        found.append(
            Scenario(name=f"loader: {name}", where="2 workers", run=partial(run, training), count=count, short=short)
        )
    return found


def run_chaos(options: argparse.Namespace, *, damage: Callable[[Yard], None] | None = None) -> dict[str, Any]:
    """Make the sample, bring about the faults; returns what ``--json`` prints.

    Args:
        options: of the command line.
        damage: called with the yard before the faults; the tests let it spoil the reference, which has to be noticed.

    Raises:
        Broken: the sample cannot be made or converted even without faults.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-", dir=options.work) as work:
        shards, size = (4, 128) if options.short else (10, 384)
        yard = Yard(Path(work), datasets=_DATASETS, shards=shards, size=size)
        yard.make(episodes=shards, steps=7 if options.short else 10)
        if damage is not None:
            damage(yard)
        tell = _Teller()
        chosen = []
        for scenario in scenarios(yard, kills=options.kills):
            count = scenario.short if options.short else scenario.count
            if count and (not options.only or any(text in scenario.name for text in options.only)):
                chosen.append((scenario, count, Fault(scenario.name, scenario.where)))
        with ThreadPoolExecutor(options.jobs) as pool:
            try:
                for done in [pool.submit(_attempt, yard, *each, options.seed, tell) for each in chosen]:
                    done.result()
            except BaseException:
                # Ctrl-C: those under way end what they do, and clean up; the others are not begun.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        faults = [fault.as_dict() for _, _, fault in chosen]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "parameters": {"kills": options.kills, "seed": options.seed, "short": options.short, "jobs": options.jobs},
        "machine": describe_machine(_LIBRARIES),
        "seconds": time.monotonic() - began,
        "faults": faults,
        "broken": sum(bool(fault["problems"]) for fault in faults),
    }


class _Teller:
    """Prints lines of progress from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def __call__(self, line: str) -> None:
        with self._lock:
            print(f"{human_seconds(time.monotonic() - self._began):>6} {line}", file=sys.stderr, flush=True)


def _attempt(yard: Yard, scenario: Scenario, count: int, fault: Fault, seed: int, tell: _Teller) -> None:
    began = time.monotonic()
    try:
        scenario.run(yard, fault, random.Random(f"{seed} {scenario.name} {scenario.where}"), count)
    except NotPossible as reason:
        fault.tried -= 1
        fault.skipped = str(reason)
    except (OSError, ChildFailed) as error:
        fault.problems.append(f"{type(error).__name__}: {error}")
    fault.seconds = time.monotonic() - began
    told = fault.skipped or f"{fault.survived} of {fault.tried} survived"
    tell(f"{fault.name}, {fault.where}: {told}{''.join(f'{chr(10)}       ! {each}' for each in fault.problems)}")


def chaos_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """Fault, way of running, tried, survived, and what a user saw."""
    rows = []
    for fault in result["faults"]:
        seen = "; ".join(fault["told"]) or "-"
        if fault["skipped"]:
            seen = f"not tried: {fault['skipped']}"
        if fault["problems"]:
            seen = f"BROKEN: {fault['problems'][0]}"
        rows.append((fault["fault"], fault["where"], str(fault["tried"]), str(fault["survived"]), seen))
    return rows


_HEADER = ("fault", "where", "tried", "survived", "how it looks")


def chaos_table(result: Mapping[str, Any]) -> str:
    """The rows as a table in Markdown."""
    rows = [_HEADER, tuple("---" for _ in _HEADER)]
    rows += [(*row[:4], " ".join(row[4].split()).replace("|", "\\|")) for row in chaos_rows(result)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def format_result(result: Mapping[str, Any]) -> str:
    """The rows as a table for a terminal, problems below it."""
    rows = [(*row[:4], row[4] if len(row[4]) <= _LINE else f"{row[4][:_LINE]} ...") for row in chaos_rows(result)]
    tried = sum(fault["tried"] for fault in result["faults"])
    lines = [format_table(_HEADER, rows), f"{tried} faults in {human_seconds(result['seconds'])}"]
    for fault in result["faults"]:
        lines += [f"BROKEN: {fault['fault']}, {fault['where']}: {problem}" for problem in fault["problems"]]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    made = Parser(prog="python -m bench.chaos", description="Bring about faults and check that nothing is lost.")
    add = made.add_argument
    add("--only", action="append", default=[], metavar="TEXT", help="only faults with this in their name; repeatable")
    add("--kills", type=whole(1), default=100, help="kills of a conversion (default: %(default)s)")
    add("--seed", type=whole(0), default=0, help="of the moments and limits (default: %(default)s)")
    add("--jobs", type=whole(1), default=2, help="faults that are tried at once (default: %(default)s)")
    add("--short", action="store_true", help="one of each of the shorter ones, in half a minute")
    add("--work", type=Path, metavar="DIR", help="folder to work in (default: the temporary one)")
    add("--out", type=Path, metavar="DIR", help=f"folder for {RESULT_FILE}")
    add("--json", action="store_true", help="print all figures instead of a table")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = parser().parse_args(arguments)
    interrupt_on_kill()

    def work() -> int:
        for folder in (options.out, options.work):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
        result = run_chaos(options)
        if not result["faults"]:
            raise ArgumentError(f"no fault is called {' or '.join(options.only)}")
        if options.out is not None:
            write_json(options.out / RESULT_FILE, result)
        print_result(result, format_result, as_json=options.json)
        return 1 if result["broken"] else 0

    return run_command(work, place=options.work or options.out, failures=(Broken,))


def _be_private() -> None:
    """Start anew with a /dev/shm of this program alone, where that is permitted: others leave things in it too."""
    if os.environ.get(_PRIVATE) or os.geteuid() or shutil.which("unshare") is None:
        return
    mount = f'{_PRIVATE}=1; export {_PRIVATE}; mount -t tmpfs chaos-shm /dev/shm; exec "$0" "$@"'
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0:
        os.execvp(
            "unshare", ["unshare", "--mount", "sh", "-c", mount, sys.executable, "-m", "bench.chaos", *sys.argv[1:]]
        )


if __name__ == "__main__":
    _be_private()
    sys.exit(main())
