"""Processes on a DeviceMesh, forks of one that share its imports, ``python -m tests.distributed.mesh_ranks TASK``."""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from tests.distributed.ranks import tell


def main(task: dict[str, Any]) -> None:
    """Start ``dp`` x ``tp`` processes, which check the ranks of each case, and tell what ``check_ranks`` said."""
    import torch

    import stream.torch

    torch.set_num_threads(1)
    assert stream.torch.ranks() == {"rank": 0, "world_size": 1}  # the group begins after the fork
    context = multiprocessing.get_context("fork")
    processes = range(task["dp"] * task["tp"])
    children = [context.Process(target=_check, args=(task, process, len(processes))) for process in processes]
    for child in children:
        child.start()
    for child in children:
        child.join()
    sys.exit(max(abs(child.exitcode or 0) for child in children))


def _check(task: dict[str, Any], process: int, count: int) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from stream import ArgumentError, digest, make_loader
    from stream.torch import check_ranks

    dist.init_process_group("gloo", init_method=f"file://{task['store']}", rank=process, world_size=count)
    mesh = init_device_mesh("cpu", (task["dp"], task["tp"]), mesh_dim_names=("dp", "tp"))
    make: Any = partial(make_loader, task["root"], task["mixture"], action=2)
    answers: list[dict[str, Any]] = []
    for name, case in _cases(process, mesh, make).items():
        try:
            loader, batch, arguments = case()
            check_ranks(loader, batch, **arguments)
            report = {"ranks": [loader.rank, loader.world_size], "digest": digest(loader.batch_at(0))}
        except ArgumentError as error:
            report = {"refused": str(error)}
        answers.append({"process": process, "case": name, **report})
    gathered: list[Any] = [None] * count
    dist.gather_object(answers, gathered if process == 0 else None)
    # One process prints, as lines of several would mix.
    for answer in chain(*gathered) if process == 0 else ():
        tell(**answer)
    dist.destroy_process_group()


def _cases(process: int, mesh: Any, make: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """Return functions of a loader, a batch and the arguments of ``check_ranks``, by the name of their case."""
    from stream.torch import as_tensors, ranks

    on_mesh: dict[str, Any] = {"mesh": mesh}
    is_third = process == 3
    loader = make(batch_size=8, **ranks(mesh))
    batch = as_tensors(loader.batch_at(2))
    numbers = dict(batch)
    if is_third:
        del numbers["state"]
    beyond = {"rank": min(loader.rank, loader.world_size - 2), "world_size": loader.world_size}
    return {
        "a step": lambda: (loader, batch, on_mesh),
        "before the first step": lambda: (loader, None, {}),
        "the global rank": lambda: (make(batch_size=16, **ranks()), None, on_mesh),
        "rows that the ranks do not divide": lambda: (make(batch_size=6, **ranks(mesh)), None, on_mesh),
        "another seed": lambda: (make(batch_size=8, seed=int(is_third), **ranks(mesh)), None, on_mesh),
        "a rank is missing": lambda: (make(batch_size=8, **beyond), None, {}),
        "the next step": lambda: (loader, loader.batch_at(int(is_third)), on_mesh),
        "rows of rank 0": lambda: (loader, loader.with_ranks(0, loader.world_size).batch_at(0), on_mesh),
        "another column": lambda: (loader, numbers, on_mesh),
        "without numbers of samples": lambda: (loader, {"action": loader.batch_at(0)["action"]}, on_mesh),
        "one process fails": lambda: (loader, {"sample": np.array([1 << 62])} if is_third else batch, on_mesh),
        "one batch for all": lambda: (loader, {"action": np.zeros((2, 2, 7))}, on_mesh),
    }


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
