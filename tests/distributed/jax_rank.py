"""A process of jax.distributed on the CPU, ``python -m tests.distributed.jax_rank TASK``; see ``ranks``."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

from tests.distributed.ranks import opened_shards, tell


def main(task: dict[str, Any]) -> None:
    """Read ``steps`` batches as global arrays, from ``state`` if there is one, and tell the digest of each.

    Each process gathers the whole batch through JAX's collectives.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import stream.jax
    from stream import digest, make_loader

    if task["world_size"] > 1:
        lost_after = {"heartbeat_timeout_seconds": task["heartbeat_s"]} if "heartbeat_s" in task else {}
        jax.distributed.initialize(task["address"], task["world_size"], task["rank"], **lost_after)
    mesh = Mesh(jax.devices(), ("data",))
    rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    gather = jax.jit(lambda numbers: numbers, out_shardings=everywhere)
    settings = {"batch_size": task["batch_size"], "num_workers": task["num_workers"]}
    loader = make_loader(task["root"], task["mixture"], **settings, **stream.jax.ranks(rows))
    batches = stream.jax.to_devices(loader, rows)
    if task.get("state"):
        batches.set_state(task["state"])
    digests: list[str] = []
    samples: list[int] = []
    language: list[list[str]] = []
    for _ in range(task["steps"]):
        batch = next(batches)
        language.append(batch.pop("language"))
        samples.extend(int(n) for part in batch["sample"].addressable_shards for n in np.asarray(part.data))
        with jax.enable_x64(True):
            gathered = {key: np.asarray(value) for key, value in gather(batch).items()}
        digests.append(digest(gathered))
        if task.get("talks"):
            tell(step=batches.step)
    message = {"digests": digests, "samples": samples, "language": language, "opened": opened_shards()}
    tell(**message, bytes=loader.stats()["bytes"], state=batches.get_state())
    batches.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
