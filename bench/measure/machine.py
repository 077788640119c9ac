"""The machine of a measurement: its description, and the CPU time and memory of processes.

It needs only the standard library and psutil, because the environments of the peers import it too. Memory is the
proportional set size (PSS), which divides each page among the processes that use it. Trainer and workers all map the
ring of batches, so the sum of their resident sets would count the ring several times.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import psutil


def describe_machine(libraries: Sequence[str]) -> dict[str, Any]:
    """Return processor, usable cores, memory in bytes, load, and the versions of the named distributions."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": os.getloadavg(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {library: _version(library) for library in libraries},
    }


def busy_seconds() -> float:
    """Return the CPU time that all cores have spent since the machine started, time of other guests included.

    The difference of two calls, minus the caller's own CPU time, is the CPU time of other programs.
    """
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq + times.steal


def family() -> list[int]:
    """Return the process numbers of this process and all its descendants."""
    return [os.getpid(), *(process.pid for process in psutil.Process().children(recursive=True))]


def cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants, ended ones included."""
    total = 0.0
    for process_id in family():
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(process_id).cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def resident(process_id: int, key: Literal["VmHWM", "RssAnon"] = "VmHWM") -> int | None:
    """Return the highest resident set of a process in bytes, or its anonymous memory; None if the process is gone."""
    return _proc_bytes(process_id, "status", f"{key}:")


def proportional_set(process_id: int) -> int | None:
    """Return the memory of a process in bytes, each shared page divided among its users; None if unknown."""
    return _proc_bytes(process_id, "smaps_rollup", "Pss:")


def own_set(process_id: int) -> int | None:
    """Return a process's share of heap, stacks and shared memory in bytes, None if unknown.

    Mapped files are left out: their share depends on the other programs that use the same libraries.
    """
    heap, shared = (_proc_bytes(process_id, "smaps_rollup", key) for key in ("Pss_Anon:", "Pss_Shmem:"))
    return None if heap is None or shared is None else heap + shared


class MemoryLog:
    """Samples of the memory of some processes, taken between measurements because a sample takes milliseconds.

    Without ``pids`` the processes are this one and its descendants at each sample.
    """

    def __init__(self, pids: Sequence[int] | None, *, measure: Callable[[int], int | None] = proportional_set) -> None:
        self._pids = pids
        self._measure = measure
        self.samples: list[dict[str, Any]] = []

    def look(self, batches: int) -> None:
        """Take a sample after ``batches`` batches."""
        pss = [self._measure(process_id) for process_id in (family() if self._pids is None else self._pids)]
        self.samples.append({"batches": batches, "pss": pss, "available": psutil.virtual_memory().available})

    @property
    def totals(self) -> list[int | None]:
        """Memory of all processes together, None where one is unknown."""
        return [None if None in sample["pss"] else sum(sample["pss"]) for sample in self.samples]

    def summary(self) -> dict[str, Any]:
        """Return the figures of a run, None for unknown ones.

        A ``slope_bytes_per_batch`` within two ``slope_error`` of 0 shows no growth.
        """
        totals = self.totals
        known_totals = [total for total in totals if total is not None]
        complete = len(known_totals) == len(totals)
        rise, error = slope([sample["batches"] for sample in self.samples], known_totals) if complete else (None, None)
        return {
            "peak_pss_bytes": max(known_totals, default=None),
            "final_pss_bytes": totals[-1] if totals else None,
            "slope_bytes_per_batch": rise,
            "slope_error": error,
            "lowest_available_bytes": min((sample["available"] for sample in self.samples), default=None),
        }


def slope(positions: Sequence[float], values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the slope of the least-squares line and its standard error, None where there are too few points.

    >>> slope([0, 1, 2], [5.0, 7.0, 9.0])
    (2.0, 0.0)
    >>> slope([0, 1], [5.0, 7.0])
    (2.0, None)
    """
    if len(set(positions)) < 2:
        return None, None
    rise, start = statistics.linear_regression(positions, values)
    if len(positions) < 3:
        return rise, None
    squares = sum((value - start - rise * position) ** 2 for position, value in zip(positions, values, strict=True))
    spread = statistics.variance(positions) * (len(positions) - 1)
    return rise, math.sqrt(squares / (len(positions) - 2) / spread)


def _proc_bytes(process_id: int, file: str, key: str) -> int | None:
    try:
        lines = Path(f"/proc/{process_id}/{file}").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), None)


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None
