"""CPU time and memory of this process and all that it started, from /proc with the standard library alone."""

from __future__ import annotations

import os
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants, those that ended and were waited for included."""
    total = 0
    for pid in family():
        fields = _stat(pid)
        if fields:
            # utime, stime, and cutime, cstime of children that have ended.
            total += sum(int(field) for field in fields[11:15])
    return total / _TICK


def proportional_set() -> int | None:
    """Return the memory of this process and its descendants in bytes, shared pages counted once; None if unknown."""
    found = [_pss(pid) for pid in family()]
    known = [size for size in found if size is not None]
    return sum(known) if known else None


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


def _stat(pid: int) -> list[str]:
    """The fields of a process's ``stat`` from its state on; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except (OSError, IndexError):
        return []


def _pss(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), None)
