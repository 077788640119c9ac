"""The machine of a measurement: its description, and the CPU time and memory of processes.

It needs only the standard library, because the environments of the peers import it too.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

_TICK = os.sysconf("SC_CLK_TCK")


def describe_machine(libraries: Sequence[str]) -> dict[str, Any]:
    """Return processor, usable cores, memory in bytes, load, and the versions of the named distributions."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": os.getloadavg(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in libraries},
    }


def busy_seconds() -> float:
    """Return the CPU time that all cores have spent since the machine started, time of other guests included.

    The difference of two calls, minus the caller's own CPU time, is the CPU time of other programs.
    """
    user, nice, system, _idle, _wait, *interrupts = Path("/proc/stat").read_text().split()[1:9]
    return sum(map(int, (user, nice, system, *interrupts))) / _TICK


def family() -> list[int]:
    """Return the process numbers of this process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants, ended ones included."""
    # utime, stime, cutime and cstime; the latter two are of ended children.
    return sum(int(field) for pid in family() for field in _stat(pid)[11:15]) / _TICK


def peak_resident(pid: int) -> int | None:
    """Return the highest resident set of a process in bytes, None if the process is gone."""
    return _proc_bytes(pid, "status", "VmHWM:")


def resident_of_no_file(pid: int) -> int | None:
    """Return the anonymous memory of a process in bytes, None if unknown; faster than ``own_set``."""
    return _proc_bytes(pid, "status", "RssAnon:")


def proportional_set(pid: int) -> int | None:
    """Return the memory of a process in bytes, each shared page divided among its users; None if unknown."""
    return _proc_bytes(pid, "smaps_rollup", "Pss:")


def own_set(pid: int) -> int | None:
    """Return a process's share of heap, stacks and shared memory in bytes, None if unknown.

    Mapped files are left out: their share depends on the other programs that use the same libraries.
    """
    parts = [_proc_bytes(pid, "smaps_rollup", key) for key in ("Pss_Anon:", "Pss_Shmem:")]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's ``stat`` from its state on, none if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except (OSError, IndexError):
        return []


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
