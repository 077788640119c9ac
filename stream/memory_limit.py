"""Memory that this process may still take."""

from __future__ import annotations

from pathlib import Path


def available_memory() -> int | None:
    """Return the bytes available without swapping, by the kernel and the control group; None if unknown."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError, IndexError):
        pass
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            cap = Path(limit).read_text().strip()
            if cap != "max":
                stat = dict(line.split() for line in Path(limit).with_name("memory.stat").read_text().splitlines())
                reclaimable = int(stat.get("inactive_file", stat.get("total_inactive_file", 0)))
                found.append(max(0, int(cap) - int(Path(used).read_text()) + reclaimable))
        except (OSError, ValueError):
            continue
    return min(found, default=None)
