"""Memory that this process can still allocate, and the control groups that limit it and its processors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""Files with limit and use of a control group, and the key in ``memory.stat`` of memory the kernel frees on demand."""


def available_memory(*, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes available without swapping, or None if unknown.

    The smallest of the kernel's figure and those of the control groups counts.

    Args:
        proc: Mount point of ``/proc``.
        groups: Mount point of the control groups.
    """
    own = own_groups("memory", proc=proc, groups=groups)
    found = [_machine_memory(proc), *(_group_memory(folder, *(_V2 if is_v2 else _V1)) for folder, is_v2 in own)]
    return min((size for size in found if size is not None), default=None)


def _machine_memory(proc: Path) -> int | None:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _group_memory(folder: Path, limit: str, used: str, inactive: str) -> int | None:
    try:
        cap = (folder / limit).read_text().strip()
        if cap == "max":
            return None
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, int(cap) - int((folder / used).read_text()) + int(stat.get(inactive, 0)))
    except (OSError, ValueError):
        return None


def own_groups(controller: str, *, proc: Path, groups: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's control groups, from its own group up to the mount point.

    Args:
        controller: ``memory`` or ``cpu``.
        proc: Mount point of ``/proc``.
        groups: Mount point of the control groups.

    Yields:
        Folder, and whether it is of version 2 of the control groups.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = groups / controller if controllers else groups
        # A container may mount its own group as the root: then only the mount point itself has these files.
        folder = mount / path.strip("/")
        yield from ((each, not controllers) for each in (folder, *folder.parents) if each.is_relative_to(mount))
