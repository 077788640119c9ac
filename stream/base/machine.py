"""Memory, processors and open files that the machine, its control groups and other ranks leave to this process."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import resource
import signal
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from stream.base.errors import LimitError

_MAX_OPEN = 1 << 15
"""More than the 22,131 shards of the 29 datasets: on a network file system, opening a file costs a request."""
_FILES = "raise the limit on open files (ulimit -n), or release batches that you keep"
_LIMITS = {
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOMEM: "take fewer workers, or raise the limit on memory",
}
"""Errors of opening a file that do not mean damage, and the remedy."""
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""Files with limit and use of a control group, and the key in ``memory.stat`` of memory the kernel frees on demand."""


def anonymous_file(name: str) -> int:
    """Return the descriptor of a new file without a name, in memory if the platform has such files."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())


def extend(descriptor: int, num_bytes: int) -> None:
    """Extend a file, and allocate its bytes if the platform can: a missing page would end the process with SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, num_bytes)
    else:
        os.truncate(descriptor, max(num_bytes, os.fstat(descriptor).st_size))


def reopen(descriptor: int, *, proc: Path = Path("/proc")) -> BinaryIO:
    """Open an open file again, with a separate position; without ``/proc`` its content comes into memory."""
    with contextlib.suppress(FileNotFoundError):
        return open(proc / "self" / "fd" / str(descriptor), "rb")
    return io.BytesIO(os.pread(descriptor, os.fstat(descriptor).st_size, 0))


def _affinity(process_id: int) -> int:
    """Return the number of processors that a process may use, 0 if the platform does not say."""
    return len(os.sched_getaffinity(process_id)) if hasattr(os, "sched_getaffinity") else 0


def available_memory(*, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes available without swapping, or None if unknown: the kernel's figure or a control group's."""
    available = [_machine_memory(proc)]
    for folder, is_v2 in own_groups("memory", proc=proc, groups=groups):
        available.append(_group_memory(folder, *(_V2 if is_v2 else _V1)))
    return min((num_bytes for num_bytes in available if num_bytes is not None), default=None)


def _machine_memory(proc: Path) -> int | None:
    with contextlib.suppress(OSError):
        if match := re.search(r"^MemAvailable: +(\d+)", (proc / "meminfo").read_text(), re.MULTILINE):
            return int(match[1]) * 1024
    return None


def _group_memory(folder: Path, limit_file: str, usage_file: str, inactive_key: str) -> int | None:
    try:
        limit_text = (folder / limit_file).read_text().strip()
        if limit_text == "max":
            return None
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, int(limit_text) - int((folder / usage_file).read_text()) + int(statistics.get(inactive_key, 0)))
    except (OSError, ValueError):
        return None


def own_groups(controller: str, *, proc: Path, groups: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's control groups, from its own group up to the mount point.

    ``controller`` is ``memory`` or ``cpu``. A folder comes with whether it is of version 2 of the control groups.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group_path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        mount = groups / controller if controllers else groups
        # A container may mount its own group as the root: then only the mount point itself has these files.
        folder = mount / group_path.strip("/")
        yield from ((group, not controllers) for group in (folder, *folder.parents) if group.is_relative_to(mount))


def usable_processors(
    *,
    environment: Mapping[str, str] = os.environ,
    proc: Path = Path("/proc"),
    groups: Path = Path("/sys/fs/cgroup"),
) -> int:
    """Return the number of processors for this process and its children, at least 1.

    It is the share of one rank in the processors that the ranks of this machine have together, and no more than the
    process's own affinity. A control group's quota is rounded down. ``environment`` has the ranks of this machine:
    ``LOCAL_WORLD_SIZE`` of ``torchrun``, or ``SLURM_STEP_TASKS_PER_NODE`` of ``srun``.
    """
    own_processors = _affinity(0) or os.cpu_count() or 1
    local_ranks, shared_processors = _local_ranks(environment)
    quotas = (_quota(folder, is_v2) for folder, is_v2 in own_groups("cpu", proc=proc, groups=groups))
    available = min([shared_processors or own_processors, *(quota for quota in quotas if quota is not None)])
    return max(1, min(own_processors, int(available / local_ranks)))


def _local_ranks(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the ranks of this machine, and the processors that they share; 0 for this process's own."""
    world_size = environment.get("LOCAL_WORLD_SIZE", "")
    if world_size.isdecimal() and int(world_size):
        try:
            # A rank may be bound to some processors; torchrun, its parent, has the processors of all ranks.
            return int(world_size), _affinity(os.getppid())
        except OSError:
            return int(world_size), 0
    # "4(x2),3" is 4 tasks on each of two nodes, and 3 on the third.
    task_counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    tasks_by_node = [int(num_tasks) for num_tasks, repeats in task_counts for _ in range(int(repeats or 1))]
    node_number, processors = (environment.get(variable, "") for variable in ("SLURM_NODEID", "SLURM_CPUS_ON_NODE"))
    if not (node_number.isdecimal() and int(node_number) < len(tasks_by_node) and tasks_by_node[int(node_number)]):
        return 1, 0
    return tasks_by_node[int(node_number)], int(processors) if processors.isdecimal() else 0


def _quota(folder: Path, is_v2: bool) -> float | None:
    """Return the processors that a control group may keep busy, or None for no limit."""
    try:
        if is_v2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{quantity}_us").read_text() for quantity in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None  # "max" too


def default_max_open() -> int:
    """Return the number of shards to keep open: half of the file descriptors left to this process, at most 32,768."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft_limit = 4096 if soft_limit == resource.RLIM_INFINITY else soft_limit
    num_open = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else soft_limit // 2
    return max(4, min(_MAX_OPEN, (soft_limit - num_open) // 2))


def limit_of(error: Exception) -> LimitError | None:
    """Return the LimitError of an error that a limit of this process caused, else None."""
    if not isinstance(error, OSError) or error.errno not in _LIMITS:
        return None
    return LimitError(f"{error.filename or 'a shard'} cannot be opened: {error.strerror}; {_LIMITS[error.errno]}")


def describe_exit(exit_code: int) -> str:
    """Return how a process ended; a negative code is a signal.

    >>> describe_exit(3), describe_exit(-9)
    ('ended with exit code 3', 'was killed by SIGKILL, as the kernel does when memory runs out')
    """
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    signal_name = signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else f"signal {-exit_code}"
    cause = ", as the kernel does when memory runs out" if -exit_code == signal.SIGKILL else ""
    return f"was killed by {signal_name}{cause}"
