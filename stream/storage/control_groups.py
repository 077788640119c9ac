"""Control groups of this process, which limit its memory and processors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


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
