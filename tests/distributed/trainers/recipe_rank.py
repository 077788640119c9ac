"""A process of a program of ``examples/trainers``, ``python -m tests.distributed.trainers.recipe_rank TASK``.

It notes each row that the model trains on, and kills itself with SIGKILL in a step. Lightning starts further processes
by running this again, and Ray by ``watch_ray``.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from stream import digest
from tests.fixtures.command import REPOSITORY

TASK = "PAIRSTREAM_TEST_RECIPE"
NOTED = ("frames", "action", "action_mask")
"""Batch keys that are hashed row by row: those that the models train on."""


def main(task: dict[str, Any]) -> None:
    rank, world_size = str(task.get("rank", 0)), str(task.get("world_size", 1))
    arguments = list(task["arguments"])
    if task["launcher"] == "torchrun":
        host, port = task["address"].split(":")
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": host}
        os.environ |= {"MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
    elif task["launcher"] == "jax" and world_size != "1":
        arguments += ["--processes", world_size, "--process-id", rank, "--coordinator", task["address"]]
    os.environ |= {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", TASK: json.dumps(task)}
    if task["launcher"] == "ray":
        import ray

        variables = {name: os.environ[name] for name in (TASK, "OMP_NUM_THREADS")}
        variables["PYTHONPATH"] = str(REPOSITORY)
        hook = "tests.distributed.trainers.recipe_rank.watch_ray"
        ray.init("local", num_cpus=2, runtime_env={"env_vars": variables, "worker_process_setup_hook": hook})
    watch(task)
    importlib.import_module(task["recipe"]).main(arguments)


def watch(task: dict[str, Any]) -> None:
    """Note the rows of each step that the program trains, before it trains it."""
    sys.path.insert(0, str(REPOSITORY / "examples/trainers"))
    if task["recipe"] == "jax_orbax":
        _watch_jax(task)
        return
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    policy_class: Any = importlib.import_module("policy").Policy
    forward = policy_class.forward
    counts: list[int] = []

    def noting_forward(self: Any, **batch: Any) -> Any:
        rank = dist.get_rank() if dist.is_initialized() else 0
        counts.append(rank)
        _note(task, rank, batch["sample"].tolist(), {key: batch[key] for key in NOTED})
        if len(counts) == task["kill_at"]:
            if dist.is_initialized():
                dist.barrier()  # so that all processes die in one step
            os.kill(os.getpid(), signal.SIGKILL)
        return forward(self, **batch)

    policy_class.forward = noting_forward


def watch_ray() -> None:
    """Watch in a worker of Ray."""
    watch(json.loads(os.environ[TASK]))


def _watch_jax(task: dict[str, Any]) -> None:
    import jax
    from jax.experimental import multihost_utils

    recipe: Any = importlib.import_module("jax_orbax")
    train_step = recipe.train_step
    counts: list[int] = []

    def noting_step(weights: Any, *arrays: Any) -> Any:
        counts.append(0)
        parts = {
            key: np.concatenate([np.asarray(shard.data) for shard in array.addressable_shards])
            for key, array in zip(NOTED, arrays, strict=True)
        }
        _note(task, jax.process_index(), [], parts)
        if len(counts) == task["kill_at"]:
            if jax.process_count() > 1:
                multihost_utils.sync_global_devices("kill")
            os.kill(os.getpid(), signal.SIGKILL)
        return train_step(weights, *arrays)

    recipe.train_step = noting_step


def _note(task: dict[str, Any], rank: int, samples: list[int], arrays: dict[str, Any]) -> None:
    rows = row_digests(arrays)
    with Path(task["notes"], f"{rank}.jsonl").open("a") as file:
        file.write(json.dumps({"samples": samples, "rows": rows}) + "\n")


def row_digests(arrays: dict[str, Any]) -> list[str]:
    """Return the hash of each row of some arrays."""
    return [digest({key: array[row] for key, array in arrays.items()})[:16] for row in range(len(arrays["action"]))]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
