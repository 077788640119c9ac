"""The machine that a figure was measured on: what it is, how busy it is, how much memory a process takes."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil


def describe_machine(libraries: Sequence[str]) -> dict[str, Any]:
    """Return processor, cores that may be used, memory in bytes, load, and the versions of some distributions."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": os.getloadavg(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in libraries},
    }


def busy_seconds() -> float:
    """Return the CPU time that all cores have spent on anything since the machine was started, other guests' included.

    The difference of two calls, less one's own CPU time, is what else was going on.
    """
    times = psutil.cpu_times()
    return float(sum(times)) - times.idle - times.iowait - times.guest - times.guest_nice


def peak_resident(pid: int) -> int | None:
    """Return the kernel's high-water mark of a process's resident set in bytes; None if the process is gone."""
    return _proc_bytes(pid, "status", "VmHWM:")


def resident_of_no_file(pid: int) -> int | None:
    """Return the memory of a process that is of no file, in bytes; quicker than ``own_set``, None if unknown."""
    return _proc_bytes(pid, "status", "RssAnon:")


def proportional_set(pid: int) -> int | None:
    """Return the memory of a process in bytes, shared pages divided among their users; None if that is not known."""
    return _proc_bytes(pid, "smaps_rollup", "Pss:")


def own_set(pid: int) -> int | None:
    """Return a process's share of memory that is of no file, in bytes: heap, stacks and shared memory; None if unknown.

    That of mapped files depends on which other programs of the machine use the same libraries.
    """
    parts = [_proc_bytes(pid, "smaps_rollup", key) for key in ("Pss_Anon:", "Pss_Shmem:")]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _proc_bytes(pid: int, file: str, key: str) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), None)


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
