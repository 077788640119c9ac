"""Runs ``python -m convert.run`` as users do and watches it from outside: when its shards are made, CPU time, memory.

Steady time goes from the moment when the first worker takes the lock of its first shard (the lock file is made then) to
the moment when the last shard is recorded as finished (the time of its status file). Before that is start-up: importing
Beam, planning, starting workers. After it, Beam's end and the manifest. If the journal is gone before the last status
file was seen, the end is when it was found gone, at most one look later.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.convert_source import VERSION, BenchSource
from bench.machine import busy_seconds, peak_resident, proportional_set
from convert.journal import FOLDER
from stream.format import dataset_dir

_LOOK_EVERY = 0.05
_PSS_EVERY = 1.0
_SHARD_FILE = re.compile(r"(?P<stem>.+-\d{5}-of-\d{5})\.(?P<rest>.+)")
_TEMPORARY = re.compile(r"arrayrecord\.(?P<pid>\d+)-\w+\.tmp")
_GRACE = 10.0


class ConversionFailed(RuntimeError):
    """The conversion did not end well; the message has the end of its log."""


@dataclass(kw_only=True)
class ProcessMemory:
    """Peak memory of one process in bytes. rss: the kernel's own high-water mark; pss: the largest of one sample a
    second, with shared pages divided among those who share them, None where the kernel does not tell."""

    role: str
    rss: int = 0
    pss: int | None = None
    shards: list[str] = field(default_factory=list)


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
    memory: tuple[ProcessMemory, ...]
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
    repository = str(Path(__file__).resolve().parent.parent)
    paths = [repository, *filter(None, [os.environ.get("PYTHONPATH")])]
    result_file, log_file = output / "result.json", output / "log.txt"
    with result_file.open("wb") as stdout, log_file.open("wb") as stderr:
        started = time.time()
        process = subprocess.Popen(
            command, stdout=stdout, stderr=stderr, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        )
        watch = _Watch(process.pid, dataset_dir(output, source.case.dataset, VERSION) / FOLDER)
        try:
            while process.poll() is None:
                watch.look()
                time.sleep(_LOOK_EVERY)
        finally:
            _end(process)
        ended = time.time()
        watch.look()
    if process.returncode:
        tail = "\n".join(log_file.read_text(errors="replace").splitlines()[-20:])
        raise ConversionFailed(f"{' '.join(command)} ended with exit code {process.returncode}:\n{tail}")
    first, last = watch.activity(source.shape.shards)
    cpu, busy = watch.cpu_between(first, last)
    return ConversionRun(
        wall_seconds=ended - started,
        startup_seconds=first - started,
        steady_seconds=last - first,
        end_seconds=ended - last,
        cpu_seconds=cpu,
        others_cpu_seconds=max(0.0, busy - cpu),
        memory=watch.memory(),
        result=json.loads(result_file.read_text())["complete"][0],
    )


class _Watch:
    def __init__(self, pid: int, journal: Path) -> None:
        self._pid = pid
        self._journal = journal
        self._locked: dict[str, float] = {}
        self._finished: dict[str, float] = {}
        self._gone: float | None = None
        self._processes: dict[int, ProcessMemory] = {}
        self._cpu: list[tuple[float, float, float]] = []
        self._cpu_of: dict[int, float] = {}
        self._makers: dict[str, int] = {}
        self._next_pss = 0.0

    def look(self) -> None:
        """See what there is now: shards begun and finished, memory, CPU time."""
        self._look_at_journal()
        self._look_at_processes()

    def activity(self, shards: int) -> tuple[float, float]:
        """Return when the first shard was begun and the last one finished, in seconds since the epoch."""
        if len(self._locked) != shards:
            raise ConversionFailed(f"saw {len(self._locked)} of {shards} shards being made; is the workload too small?")
        last = self._gone if self._gone is not None and len(self._finished) < shards else max(self._finished.values())
        return min(self._locked.values()), last

    def cpu_between(self, first: float, last: float) -> tuple[float, float]:
        """Return the CPU time between two moments, of our processes and of all, from the looks nearest to them."""
        begin = min(self._cpu, key=lambda sample: abs(sample[0] - first))
        end = min(self._cpu, key=lambda sample: abs(sample[0] - last))
        return end[1] - begin[1], end[2] - begin[2]

    def memory(self) -> tuple[ProcessMemory, ...]:
        """Return the peak of the parent, of each worker and of any other child."""
        for stem, pid in self._makers.items():
            entry = self._processes.setdefault(pid, ProcessMemory(role="other"))
            entry.role = "parent and worker" if pid == self._pid else "worker"
            entry.shards = sorted({*entry.shards, stem})
        order = ("parent", "parent and worker", "worker", "other")
        return tuple(sorted(self._processes.values(), key=lambda entry: (order.index(entry.role), entry.shards)))

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

    def _look_at_processes(self) -> None:
        now = time.time()
        with_pss = now >= self._next_pss
        if with_pss:
            self._next_pss = now + _PSS_EVERY
        try:
            parent = psutil.Process(self._pid)
            found = [parent, *parent.children(recursive=True)]
        except psutil.Error:
            return
        for process in found:
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            self._cpu_of[process.pid] = times.user + times.system
            role = "parent" if process.pid == self._pid else "other"
            entry = self._processes.setdefault(process.pid, ProcessMemory(role=role))
            # The last reading, not the largest: between fork and exec a child still has its parent's.
            entry.rss = peak_resident(process.pid) or entry.rss
            if with_pss and (pss := proportional_set(process.pid)) is not None:
                entry.pss = max(entry.pss or 0, pss)
        self._cpu.append((now, sum(self._cpu_of.values()), busy_seconds()))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a conversion that is still running, because the benchmark was interrupted."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
