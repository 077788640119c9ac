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

from bench.convert.source import VERSION, BenchSource
from bench.measure.machine import busy_seconds, peak_resident, proportional_set
from bench.measure.session import start
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


class ConversionFailed(RuntimeError):
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
    first, last = watch.activity(source.shards)
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
    def __init__(self, pid: int, journal: Path) -> None:
        self._journal = journal
        self._locked: dict[str, float] = {}
        self._finished: dict[str, float] = {}
        self._gone: float | None = None
        self._makers: dict[str, int] = {}
        self._known = [psutil.Process(pid)]
        self._rss: dict[int, int] = {}
        self._pss: dict[int, int] = {}
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

    def activity(self, shards: int) -> tuple[float, float]:
        """Return the start of the first shard and the end of the last one, in seconds since the epoch."""
        if len(self._locked) != shards:
            raise ConversionFailed(f"saw {len(self._locked)} of {shards} shards being made; use more --pairs")
        last = self._gone if self._gone is not None and len(self._finished) < shards else max(self._finished.values())
        return min(self._locked.values()), last

    def processes(self, first: float, last: float) -> list[dict[str, Any]]:
        """Return the figures of the parent, each worker and any other child, with CPU time between two moments."""
        found = []
        for pid in {self._known[0].pid, *self._rss, *self._makers.values()}:
            shards = sorted(stem for stem, maker in self._makers.items() if maker == pid)
            is_parent = pid == self._known[0].pid
            role = " and ".join([*(["parent"] if is_parent else []), *(["worker"] if shards else [])]) or "other"
            memory = {"rss": self._rss.get(pid, 0), "pss": self._pss.get(pid)}
            cpu = self.cpu_between(first, last, pid)
            found.append({"role": role, "shards": shards, **memory, "cpu_seconds": cpu})
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
            if self._locked and self._gone is None:
                self._gone = time.time()
            return
        times = {"lock": self._locked, "status.json": self._finished}
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
            self._known = [self._known[0], *self._known[0].children(recursive=True)]
        for pid in (process.pid for process in self._known):
            # The latest value, not the largest: between fork and exec a child has its parent's.
            self._rss[pid] = peak_resident(pid) or self._rss.get(pid, 0)
            if (pss := proportional_set(pid)) is not None:
                self._pss[pid] = max(self._pss.get(pid, 0), pss)
