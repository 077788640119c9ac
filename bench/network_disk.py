"""A network disk for measurements: a folder mounted again, read-only, where each request to the server takes time.

It is a FUSE file system of one process, which the kernel treats as it treats NFS: names, attributes and pages that were
asked for once are kept, for all processes of the machine; each ``open`` asks the server again. Requests to it are
counted, by the process that made them.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.measure.child import BenchFailed
from bench.measure.session import end, wait_until

_KEPT_S = 3600
_GRACE_S = 30
_DEVICE = "/dev/fuse"
_UNMOUNT = "fusermount3"


@dataclass
class Mounted:
    """A mounted folder.

    Attributes:
        path: Where it is mounted.
        requests: Once it is unmounted: count by process (its number as text), kind of request and ending of the file.
            The kinds are ``lookup`` (a name and its attributes), ``list`` (a folder), ``open`` and ``read`` (a piece of
            at most 128 kB).
    """

    path: Path
    requests: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)


def missing() -> str | None:
    """Return what this machine lacks to mount a folder, None if nothing."""
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return f"{_DEVICE} cannot be opened"
    if ctypes.util.find_library("fuse3") is None or shutil.which(_UNMOUNT) is None:
        return "libfuse is not installed; install it (apt-get install fuse3)"
    if find_spec("mfusepy") is None:
        return "mfusepy is not installed; install it (pip install mfusepy)"
    return None


@contextlib.contextmanager
def mounted(source: Path, *, delay_s: float) -> Iterator[Mounted]:
    """Mount a folder during the context.

    Args:
        source: Folder.
        delay_s: Seconds that each request takes.

    Raises:
        BenchFailed: It cannot be mounted.
    """
    if lacks := missing():
        raise BenchFailed(lacks)
    with tempfile.TemporaryDirectory(prefix="network-disk-") as folder:
        disk, counts = Mounted(Path(folder, "disk")), Path(folder, "counts")
        disk.path.mkdir()
        arguments = [str(source.resolve()), str(disk.path), str(delay_s), str(counts)]
        process = subprocess.Popen([sys.executable, "-m", "bench.network_disk", *arguments], stderr=subprocess.PIPE)
        try:
            if not wait_until(lambda: disk.path.is_mount() or process.poll() is not None, seconds=30):
                raise BenchFailed(f"{disk.path}: was not mounted within 30 s")
            if process.poll() is not None:
                assert process.stderr is not None
                raise BenchFailed(f"{disk.path}: cannot be mounted: {process.stderr.read().decode().strip()[-300:]}")
            yield disk
        finally:
            # Lazily, as a program that was killed may still have a file open.
            subprocess.run([_UNMOUNT, "-u", "-z", disk.path], capture_output=True, check=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            end(process)
        disk.requests.update(json.loads(counts.read_text()))


def _serve(source: str, mount: str, delay_s: float, counts: str) -> None:
    """Serve until the folder is unmounted, and write the counts of requests."""
    import mfusepy

    found: Counter[tuple[int, str, str]] = Counter()
    processes: dict[int, int] = {}

    def asked(kind: str, path: str) -> str:
        thread = mfusepy.fuse_get_context()[2]
        if thread not in processes:
            processes[thread] = _process_of(thread)
        found[processes[thread], kind, os.path.splitext(path)[1]] += 1
        time.sleep(delay_s)
        return source + path

    class Disk(mfusepy.Operations):
        """The folder of the server."""

        use_ns = True

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            found = os.lstat(asked("lookup", path))
            names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_blocks", "st_rdev")
            times = {f"st_{name}": getattr(found, f"st_{name}_ns") for name in ("atime", "mtime", "ctime")}
            return {name: getattr(found, name) for name in names} | times

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", *os.listdir(asked("list", path))]

        def open(self, path: str, flags: int) -> int:
            return os.open(asked("open", path), os.O_RDONLY)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            asked("read", path)
            return os.pread(fh, size, offset)

        def release(self, path: str, fh: int) -> int:
            os.close(fh)
            return 0

    kept = {"kernel_cache": True, "entry_timeout": _KEPT_S, "attr_timeout": _KEPT_S}
    mfusepy.FUSE(Disk(), mount, foreground=True, ro=True, fsname="network-disk", **kept)
    requests: dict[int, dict[str, dict[str, int]]] = {}
    for (process, kind, ending), count in found.items():
        requests.setdefault(process, {}).setdefault(kind, {})[ending] = count
    Path(counts).write_text(json.dumps(requests))


def _process_of(thread: int) -> int:
    """Return the process of a thread, the thread itself if it has ended."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{thread}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Tgid:")).split()[1])
    return thread


if __name__ == "__main__":
    _source, _mount, _delay, _counts = sys.argv[1:]
    _serve(_source, _mount, float(_delay), _counts)
