"""A program's own /dev/shm: what other programs leave in the machine's is not what this one left."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path


def own_shared_memory(folder: Path) -> list[str]:
    """Return the start of a command line whose program has ``folder`` as its /dev/shm; empty where not permitted."""
    if not _may_mount():
        return []
    folder.mkdir(exist_ok=True)
    return ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /dev/shm && exec "$@"', str(folder)]


@cache
def _may_mount() -> bool:
    if os.geteuid() or shutil.which("unshare") is None or not Path("/dev/shm").is_dir():
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
