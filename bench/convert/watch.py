"""Observation of ``python -m convert.run`` from outside: times of its shards, CPU time, memory.

Steady time goes from the first lock of a shard (the lock file is made then) to the last finished shard (the time of its
status file). Start-up comes before: importing Beam, planning, starting workers. The end comes after: merging the index,
statistics, the manifest. If the journal disappears before the last status file was seen, steady time ends then.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.convert.source import BenchSource
from bench.measure.child import BenchFailed
from bench.measure.machine import busy_seconds, peak_resident, proportional_set
from bench.measure.session import start
from bench.synthetic import VERSION
from convert.journal.journal import FOLDER

_JOURNAL_EVERY = 0.05
_CPU_EVERY = 0.25
_MEMORY_EVERY = 1.0
_LIMIT_S = 4 * 3600.0
_SHARD_FILE = re.compile(r"(?P<stem>.+-\d{5}-of-\d{5})\.(?P<rest>.+)")
_TEMPORARY = re.compile(r"\w+-(?P<pid>\d+)-\w+\.tmp")
_ROLES = ("parent", "parent and worker", "worker", "other")
_MACHINE = 0
"""Process id that stands for the machine."""


class ConversionFailed(BenchFailed):
    """The conversion did not end well; the message has the end of its log."""


def run_conversion(source: BenchSource, output: Path, *, num_workers: int, size: int, quality: int) -> dict[str, Any]:
    """Convert ``source`` into the folder ``output``, which must not exist.

    Returns:
        wall_seconds: Sum of startup_seconds, steady_seconds and end_seconds.
        cpu_seconds: CPU time of all its processes during the steady time.
        others_cpu_seconds: CPU time of everything else on the machine during the steady time.
        processes: Role, shards, peak memory in bytes (resident and proportional set) and CPU time of each process.
        result: Entry of the dataset in the output of ``--json``.

    Raises:
        ConversionFailed: The exit code is not 0, or not every shard was converted.
    """
    output.mkdir(parents=True)
    arguments = ["--datasets", source.case.dataset, "--config", str(source.config), "--source", str(source.root)]
    arguments += ["--output", str(output), "--image-size", str(size), "--quality", str(quality)]
    started = time.time()
    with (
        ThreadPoolExecutor(1) as pool,
        start(*arguments, "--num-workers", str(num_workers), "--json") as command,
    ):
        watch = _Watch(command.pid, output / source.case.dataset / VERSION / FOLDER)
        done = pool.submit(command.wait, _LIMIT_S)
        while not done.done():
            watch.look()
            time.sleep(_JOURNAL_EVERY)
        ended = time.time()
        watch.look()
        result = done.result()
    if result.code:
        tail = "\n".join(result.err.splitlines()[-20:])
        raise ConversionFailed(f"python -m convert.run {' '.join(arguments)}: exit code {result.code}:\n{tail}")
    if len(watch.locked) != len(source.files):
        raise ConversionFailed(f"saw {len(watch.locked)} of {len(source.files)} shards being made; use more --pairs")
    first, last = min(watch.locked.values()), max(watch.finished.values(), default=0.0)
    if watch.gone is not None and len(watch.finished) < len(source.files):
        last = watch.gone
    processes = watch.processes(first, last)
    cpu = sum(process["cpu_seconds"] for process in processes)
    return {
        "wall_seconds": ended - started,
        "startup_seconds": first - started,
        "steady_seconds": last - first,
        "end_seconds": ended - last,
        "cpu_seconds": cpu,
        "others_cpu_seconds": max(0.0, watch.cpu_between(first, last, _MACHINE) - cpu),
        "processes": processes,
        "result": json.loads(result.out)["complete"][0],
    }


class _Watch:
    """Observations of a conversion.

    Attributes:
        locked, finished: Start and end of each shard, in seconds since the epoch.
        gone: Time at which the journal was gone, if it is.
    """

    def __init__(self, pid: int, journal: Path) -> None:
        self.locked: dict[str, float] = {}
        self.finished: dict[str, float] = {}
        self.gone: float | None = None
        self._journal, self._parent = journal, psutil.Process(pid)
        self._makers: dict[str, int] = {}
        self._known = [self._parent]
        self._memory: dict[int, dict[str, int | None]] = {}
        self._cpu: dict[int, float] = {}
        self._samples: list[tuple[float, dict[int, float]]] = []
        self._next_cpu = self._next_memory = 0.0

    def look(self) -> None:
        """Record shards started and finished and, if due, CPU time and memory."""
        self._look_at_journal()
        now = time.time()
        if now >= self._next_memory:
            self._next_memory = now + _MEMORY_EVERY
            self._look_at_memory()
        if now >= self._next_cpu:
            self._next_cpu = now + _CPU_EVERY
            for process in self._known:
                with contextlib.suppress(psutil.Error):
                    self._cpu[process.pid] = sum(process.cpu_times()[:2])
            self._samples.append((time.time(), {**self._cpu, _MACHINE: busy_seconds()}))

    def processes(self, first: float, last: float) -> list[dict[str, Any]]:
        """Return the figures of the parent, each worker and any other child, with CPU time between two moments."""
        found = []
        for pid in {self._parent.pid, *self._memory, *self._makers.values()}:
            shards = sorted(stem for stem, maker in self._makers.items() if maker == pid)
            roles = {"parent": pid == self._parent.pid, "worker": bool(shards)}
            role = " and ".join(name for name, has in roles.items() if has) or "other"
            memory = self._memory.get(pid, {"rss": 0, "pss": None})
            found.append({"role": role, "shards": shards, **memory, "cpu_seconds": self.cpu_between(first, last, pid)})
        return sorted(found, key=lambda use: (_ROLES.index(use["role"]), use["shards"]))

    def cpu_between(self, first: float, last: float, pid: int) -> float:
        """Return the CPU time of a process, or of the machine, between two moments."""
        times, values = zip(*((at, sample.get(pid, 0.0)) for at, sample in self._samples), strict=True)
        begin, end = np.interp([first, last], times, values)
        return float(end - begin)

    def _look_at_journal(self) -> None:
        try:
            entries = list(os.scandir(self._journal))
        except FileNotFoundError:
            if self.locked and self.gone is None:
                self.gone = time.time()
            return
        times = {"lock": self.locked, "status.json": self.finished}
        for entry in entries:
            if not (match := _SHARD_FILE.fullmatch(entry.name)):
                continue
            if (known := times.get(match["rest"])) is not None and match["stem"] not in known:
                with contextlib.suppress(FileNotFoundError):
                    known[match["stem"]] = entry.stat().st_mtime
            elif temporary := _TEMPORARY.fullmatch(match["rest"]):
                self._makers[match["stem"]] = int(temporary["pid"])

    def _look_at_memory(self) -> None:
        with contextlib.suppress(psutil.Error):
            self._known = [self._parent, *self._parent.children(recursive=True)]
        for pid in (process.pid for process in self._known):
            old = self._memory.get(pid, {"rss": 0, "pss": None})
            # Of the resident set the latest value, not the largest: between fork and exec a child has its parent's.
            found = [size for size in (proportional_set(pid), old["pss"]) if size is not None]
            self._memory[pid] = {"rss": peak_resident(pid) or old["rss"], "pss": max(found, default=None)}
