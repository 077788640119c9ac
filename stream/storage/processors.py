"""Processors that this process may use: its affinity, its control groups, and the other ranks of its machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from stream.storage.memory import own_groups


def usable_processors(
    *,
    environment: Mapping[str, str] = os.environ,
    proc: Path = Path("/proc"),
    groups: Path = Path("/sys/fs/cgroup"),
) -> int:
    """Return the number of processors for this process and its children, at least 1.

    It is the share of one rank in the processors that the ranks of this machine have together, and no more than the
    process's own affinity. A control group's quota is rounded down.

    Args:
        environment: Environment, which tells the ranks of this machine: ``LOCAL_WORLD_SIZE`` of ``torchrun``, or
            ``SLURM_STEP_TASKS_PER_NODE`` of ``srun``.
        proc: Mount point of ``/proc``.
        groups: Mount point of the control groups.
    """
    own = len(os.sched_getaffinity(0))
    ranks, shared = _local_ranks(environment)
    quotas = (_quota(folder, is_v2) for folder, is_v2 in own_groups("cpu", proc=proc, groups=groups))
    together = min([shared or own, *(quota for quota in quotas if quota is not None)])
    return max(1, min(own, int(together / ranks)))


def _local_ranks(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the ranks of this machine, and the processors that they share; 0 for this process's own."""
    ranks = environment.get("LOCAL_WORLD_SIZE", "")
    if ranks.isdecimal() and int(ranks):
        try:
            # A rank may be bound to processors of its own; torchrun, its parent, has those of all.
            return int(ranks), len(os.sched_getaffinity(os.getppid()))
        except OSError:
            return int(ranks), 0
    # "4(x2),3" is 4 tasks on each of two nodes, and 3 on the third.
    tasks = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    nodes = [int(count) for count, times in tasks for _ in range(int(times or 1))]
    node, processors = (environment.get(name, "") for name in ("SLURM_NODEID", "SLURM_CPUS_ON_NODE"))
    if not (node.isdecimal() and int(node) < len(nodes) and nodes[int(node)]):
        return 1, 0
    return nodes[int(node)], int(processors) if processors.isdecimal() else 0


def _quota(folder: Path, is_v2: bool) -> float | None:
    """Return the processors that a control group may keep busy, or None for no limit."""
    try:
        if is_v2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None  # "max" too
