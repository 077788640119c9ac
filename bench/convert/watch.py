"""Runs ``python -m convert.run`` as users do and watches it from outside: when its shards are made, CPU time, memory.

Steady time goes from the moment when the first worker takes the lock of its first shard (the lock file is made then) to
the moment when the last shard is recorded as finished (the time of its status file). Before that is start-up: importing
Beam, planning, starting workers. After it: merging the index, statistics, Beam's end and the manifest. If the journal
is gone before the last status file was seen, the end is when it was found gone, at most one look later.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.convert.source import VERSION, BenchSource
from bench.measure.child import end
from bench.measure.machine import busy_seconds, peak_resident, proportional_set
from convert.journal.journal import FOLDER

# The journal costs microseconds to look at, CPU times little more, a list of children and PSS milliseconds.
_JOURNAL_EVERY = 0.05
_CPU_EVERY = 0.25
_MEMORY_EVERY = 1.0
_SHARD_FILE = re.compile(r"(?P<stem>.+-\d{5}-of-\d{5})\.(?P<rest>.+)")
_TEMPORARY = re.compile(r"arrayrecord\.\w+-(?P<pid>\d+)-\w+\.tmp")


class ConversionFailed(RuntimeError):
    """The conversion did not end well; the message has the end of its log."""


@dataclass(kw_only=True)
class ProcessUse:
    """What one process took.

    role: ``parent``, ``worker``, ``parent and worker`` or ``other``. shards: what it made. rss, pss: peak memory in
    bytes; the first is the kernel's own high-water mark of the resident set, the second the largest of one sample a
    second, with shared pages divided among their users, None where the kernel does not tell. cpu_seconds: CPU time
    during the steady time.
    """

    role: str
    shards: list[str] = field(default_factory=list)
    rss: int = 0
    pss: int | None = None
    cpu_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """CPU seconds since their start, of each process of the conversion by id and of the whole machine."""

    time: float
    processes: dict[int, float]
    machine: float


@dataclass(frozen=True, kw_only=True)
class ConversionRun:
    """What one conversion took, in seconds, and what it gave.

    startup_seconds, steady_seconds and end_seconds make up wall_seconds. cpu_seconds: CPU time of all its processes
    during the steady time; others_cpu_seconds: of everything else on the machine. result: the dataset's entry in the
    output of ``--json``.
    """

    wall_seconds: float
    startup_seconds: float
    steady_seconds: float
    end_seconds: float
    cpu_seconds: float
    others_cpu_seconds: float
    processes: tuple[ProcessUse, ...]
    result: dict[str, Any]


def run_conversion(source: BenchSource, output: Path, *, num_workers: int, size: int, quality: int) -> ConversionRun:
    """Convert ``source`` into the folder ``output``, which must not be there.

    Raises:
        ConversionFailed: another exit code than 0, or not every shard was converted.
    """
    output.mkdir(parents=True)
    command = [sys.executable, "-m", "convert.run", "--datasets", source.case.dataset, "--config", str(source.config)]
    command += ["--source", str(source.root), "--output", str(output), "--image-size", str(size)]
    command += ["--quality", str(quality), "--num-workers", str(num_workers), "--json"]
    repository = str(Path(__file__).resolve().parents[2])
    paths = [repository, *filter(None, [os.environ.get("PYTHONPATH")])]
    result_file, log_file = output / "result.json", output / "log.txt"
    with result_file.open("wb") as stdout, log_file.open("wb") as stderr:
        started = time.time()
        process = subprocess.Popen(
            command, stdout=stdout, stderr=stderr, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        )
        watch = _Watch(process.pid, output / source.case.dataset / VERSION / FOLDER)
        try:
            while process.poll() is None:
                watch.look()
                time.sleep(_JOURNAL_EVERY)
        finally:
            end(process)
        ended = time.time()
        watch.look()
    if process.returncode:
        tail = "\n".join(log_file.read_text(errors="replace").splitlines()[-20:])
        raise ConversionFailed(f"{' '.join(command)} ended with exit code {process.returncode}:\n{tail}")
    first, last = watch.activity(source.shape.shards)
    processes = watch.processes(first, last)
    cpu = sum(process.cpu_seconds for process in processes)
    return ConversionRun(
        wall_seconds=ended - started,
        startup_seconds=first - started,
        steady_seconds=last - first,
        end_seconds=ended - last,
        cpu_seconds=cpu,
        others_cpu_seconds=max(0.0, watch.machine_cpu(first, last) - cpu),
        processes=processes,
        result=json.loads(result_file.read_text())["complete"][0],
    )


class _Watch:
    def __init__(self, pid: int, journal: Path) -> None:
        self._journal = journal
        self._locked: dict[str, float] = {}
        self._finished: dict[str, float] = {}
        self._gone: float | None = None
        self._makers: dict[str, int] = {}
        self._uses = {pid: ProcessUse(role="parent")}
        self._samples: list[_Sample] = []
        self._cpu: dict[int, float] = {}
        self._known = [psutil.Process(pid)]
        self._next_cpu = self._next_memory = 0.0

    def look(self) -> None:
        """See what there is now: shards begun and finished and, if it is time for that, CPU time and memory."""
        self._look_at_journal()
        now = time.time()
        if now >= self._next_memory:
            self._next_memory = now + _MEMORY_EVERY
            self._look_at_memory()
        if now >= self._next_cpu:
            self._next_cpu = now + _CPU_EVERY
            self._look_at_cpu()

    def activity(self, shards: int) -> tuple[float, float]:
        """Return when the first shard was begun and the last one finished, in seconds since the epoch."""
        if len(self._locked) != shards:
            raise ConversionFailed(f"saw {len(self._locked)} of {shards} shards being made; give it more --pairs")
        last = self._gone if self._gone is not None and len(self._finished) < shards else max(self._finished.values())
        return min(self._locked.values()), last

    def processes(self, first: float, last: float) -> tuple[ProcessUse, ...]:
        """Return what the parent, each worker and any other child took, with CPU time between two moments."""
        for stem, pid in sorted(self._makers.items()):
            use = self._uses.setdefault(pid, ProcessUse(role="other"))
            use.role = "parent and worker" if use.role.startswith("parent") else "worker"
            use.shards.append(stem)
        for pid, use in self._uses.items():
            use.cpu_seconds = self._between(first, last, [sample.processes.get(pid, 0.0) for sample in self._samples])
        order = ("parent", "parent and worker", "worker", "other")
        return tuple(sorted(self._uses.values(), key=lambda use: (order.index(use.role), use.shards)))

    def machine_cpu(self, first: float, last: float) -> float:
        """Return the CPU time that the machine spent on anything between two moments."""
        return self._between(first, last, [sample.machine for sample in self._samples])

    def _between(self, first: float, last: float, values: list[float]) -> float:
        begin, end = np.interp([first, last], [sample.time for sample in self._samples], values)
        return float(end - begin)

    def _look_at_journal(self) -> None:
        try:
            names = os.listdir(self._journal)
        except FileNotFoundError:
            if self._locked and self._gone is None:
                self._gone = time.time()
            return
        for name in names:
            match = _SHARD_FILE.fullmatch(name)
            if match is None:
                continue
            if match["rest"] == "lock":
                self._note(self._locked, match["stem"], name)
            elif match["rest"] == "status.json":
                self._note(self._finished, match["stem"], name)
            elif temporary := _TEMPORARY.fullmatch(match["rest"]):
                self._makers[match["stem"]] = int(temporary["pid"])

    def _note(self, times: dict[str, float], stem: str, name: str) -> None:
        if stem not in times:
            try:
                times[stem] = (self._journal / name).stat().st_mtime
            except FileNotFoundError:
                return

    def _look_at_memory(self) -> None:
        try:
            self._known = [self._known[0], *self._known[0].children(recursive=True)]
        except psutil.Error:
            return
        for process in self._known:
            use = self._uses.setdefault(process.pid, ProcessUse(role="other"))
            # The last reading, not the largest: between fork and exec a child still has its parent's.
            use.rss = peak_resident(process.pid) or use.rss
            if (pss := proportional_set(process.pid)) is not None:
                use.pss = max(use.pss or 0, pss)

    def _look_at_cpu(self) -> None:
        for process in self._known:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._cpu[process.pid] = times.user + times.system
        self._samples.append(_Sample(time=time.time(), processes=dict(self._cpu), machine=busy_seconds()))
