"""Observation of ``python -m convert.run`` from outside: times of its shards, CPU time, memory.

Steady time goes from the first lock of a shard (the lock file is made then) to the last finished shard (the time of its
status file). Start-up comes before: importing Beam, planning, starting workers. The end comes after: merging the index,
statistics, the manifest. If the journal disappears before the last status file was seen, steady time ends then.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.convert.source import BenchSource
from bench.measure.child import BenchFailed
from bench.measure.machine import busy_seconds, resident
from bench.measure.session import start
from bench.synthetic import VERSION
from convert.journal.journal import FOLDER

_JOURNAL_EVERY_S = 0.05
_PROCESSES_EVERY_S = 0.25
_LIMIT_S = 4 * 3600.0


def run_conversion(source: BenchSource, output: Path, *, num_workers: int, size: int, quality: int) -> dict[str, Any]:
    """Convert ``source`` into the folder ``output``, which must not exist; raises BenchFailed.

    ``wall_seconds`` is the sum of ``startup_seconds``, ``steady_seconds`` and ``end_seconds``. CPU times are of the
    steady time. ``worker_bytes`` is the largest resident set of any process but the parent.
    """
    output.mkdir(parents=True)
    arguments = ["--datasets", source.case.dataset, "--config", str(source.config), "--source", str(source.root)]
    arguments += ["--output", str(output), "--image-size", str(size), "--quality", str(quality)]
    started = time.time()
    with ThreadPoolExecutor(1) as pool, start(*arguments, "--num-workers", str(num_workers), "--json") as command:
        watch = _Watch(command.pid, output / source.case.dataset / VERSION / FOLDER)
        done = pool.submit(command.wait, _LIMIT_S)
        while not done.done():
            watch.look()
            time.sleep(_JOURNAL_EVERY_S)
        ended = time.time()
        watch.look()
        result = done.result()
    if result.code:
        tail = "\n".join(result.err.splitlines()[-20:])
        raise BenchFailed(f"python -m convert.run {' '.join(arguments)}: exit code {result.code}:\n{tail}")
    if len(watch.locked) != len(source.files):
        raise BenchFailed(f"saw {len(watch.locked)} of {len(source.files)} shards being made; use more --pairs")
    first, last = min(watch.locked.values()), max(watch.finished.values(), default=0.0)
    if watch.journal_end is not None and len(watch.finished) < len(source.files):
        last = watch.journal_end
    cpu_seconds, machine_cpu = watch.cpu_between(first, last)
    return {
        "wall_seconds": ended - started,
        "startup_seconds": first - started,
        "steady_seconds": last - first,
        "end_seconds": ended - last,
        "cpu_seconds": cpu_seconds,
        "others_cpu_seconds": max(0.0, machine_cpu - cpu_seconds),
        "parent_bytes": watch.resident.pop(command.pid, 0),
        "worker_bytes": max(watch.resident.values(), default=0),
        "result": json.loads(result.out)["complete"][0],
    }


class _Watch:
    """Times of each shard and of the end of the journal, since the epoch, and memory of each process in bytes."""

    def __init__(self, process_id: int, journal: Path) -> None:
        self.locked: dict[str, float] = {}
        self.finished: dict[str, float] = {}
        self.journal_end: float | None = None
        self.resident: dict[int, int] = {}
        self._journal, self._parent = journal, psutil.Process(process_id)
        self._cpu: dict[int, float] = {}
        self._samples: list[tuple[float, float, float]] = []
        self._next_sample = 0.0

    def look(self) -> None:
        """Record shards started and finished and, if due, CPU time and memory."""
        self._look_at_journal()
        if time.time() < self._next_sample:
            return
        self._next_sample = time.time() + _PROCESSES_EVERY_S
        processes = [self._parent]
        with contextlib.suppress(psutil.Error):
            processes += self._parent.children(recursive=True)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                self._cpu[process.pid] = sum(process.cpu_times()[:2])
                # The latest value, not the largest: between fork and exec a child has its parent's memory.
                self.resident[process.pid] = resident(process.pid) or self.resident.get(process.pid, 0)
        self._samples.append((time.time(), sum(self._cpu.values()), busy_seconds()))

    def cpu_between(self, first: float, last: float) -> tuple[float, float]:
        """Return the CPU time of all processes of the conversion, and of the machine, between two moments."""
        times, conversion, machine = np.array(self._samples).T
        begin, end = np.array([np.interp([first, last], times, values) for values in (conversion, machine)]).T
        return float(end[0] - begin[0]), float(end[1] - begin[1])

    def _look_at_journal(self) -> None:
        try:
            entries = list(os.scandir(self._journal))
        except FileNotFoundError:
            if self.locked and self.journal_end is None:
                self.journal_end = time.time()
            return
        for entry in entries:
            stem, _, suffix = entry.name.partition(".")
            times = {"lock": self.locked, "status.json": self.finished}.get(suffix)
            if times is not None and stem not in times and "-of-" in stem:
                with contextlib.suppress(FileNotFoundError):
                    times[stem] = entry.stat().st_mtime
