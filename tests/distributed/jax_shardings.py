"""A process of JAX with batches in several shardings, ``python -m tests.distributed.jax_shardings TASK``."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

from tests.distributed.ranks import tell


def main(task: dict[str, Any]) -> None:
    """Tell of each sharding of ``cases`` a line with this process's parts of the steps, or why it is refused.

    A case has the ``mesh`` (numbers of devices, [data, model]), its ``spec``, and ``ranks`` if the loader takes others.
    With ``augment`` the devices augment, and the line has the largest difference from the workers' frames in levels.
    """
    os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={task['devices']}"}
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import stream.jax
    from stream import ArgumentError, Frames, digest, make_loader

    jax.distributed.initialize(task["address"], task["world_size"], task["rank"])
    for case in task["cases"]:
        devices = np.array(jax.local_devices() if case.get("local") else jax.devices(), object)
        mesh = Mesh(devices[np.array(case["mesh"])], ("data", "model"))
        sharding = NamedSharding(mesh, PartitionSpec(*map(_axes, case["spec"])))
        try:
            ranks = case.get("ranks") or stream.jax.ranks(sharding)
            frames = Frames(augment=case.get("augment"))
            loader = make_loader(task["root"], task["mixture"], batch_size=task["batch_size"], frames=frames, **ranks)
            batches = stream.jax.to_devices(loader, sharding, augment="device")
        except ArgumentError as error:
            tell(refused=str(error))
            continue
        parts, language = [], []
        difference = 0
        for step in range(task["steps"]):
            batch = next(batches)
            if case.get("augment"):
                difference = max(difference, _difference(batch.pop("frames"), loader.batch_at(step)["frames"]))
            language.append(batch.pop("language"))
            held: dict[tuple[int, int], dict[str, np.ndarray]] = {}
            for key, value in batch.items():
                for shard in value.addressable_shards:
                    rows = shard.index[0].indices(value.shape[0])[:2]
                    data = np.asarray(shard.data)
                    assert np.array_equal(held.setdefault((shard.device.id, *rows), {}).setdefault(key, data), data)
            parts.append([[*rows, digest(arrays)] for (_, *rows), arrays in held.items()])
        batches.close()
        tell(ranks=ranks, rows=value.shape[0], parts=parts, language=language, difference=difference)


def _difference(frames: Any, expected: np.ndarray) -> int:
    """Return the largest difference of this process's frames from those of its rank."""
    shards = frames.addressable_shards
    first = min(shard.index[0].indices(len(frames))[0] for shard in shards)
    differences = []
    for shard in shards:
        start, stop, _ = shard.index[0].indices(len(frames))
        rows = expected[start - first : stop - first].astype(int)
        differences.append(np.abs(np.asarray(shard.data).astype(int) - rows).max())
    return int(max(differences))


def _axes(axes: Any) -> Any:
    return tuple(axes) if isinstance(axes, list) else axes


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
