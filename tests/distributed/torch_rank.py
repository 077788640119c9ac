"""A rank of torch.distributed, ``python -m tests.distributed.torch_rank TASK``; see ``ranks``."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

from tests.distributed.ranks import digest_of_all, opened_shards, tell

TIMEOUT_S = 60
"""For each message between ranks."""


def main(task: dict[str, Any]) -> None:
    """Read ``steps`` batches, from ``state`` if there is one, once with each of ``num_workers``.

    Rank 0 gathers the parts of all ranks through gloo and tells the digest of each global batch.
    """
    import torch
    import torch.distributed as dist

    from stream.torch import StreamDataset

    torch.set_num_threads(1)
    rank, world_size = task["rank"], task["world_size"]
    dist.init_process_group(
        "gloo",
        init_method=f"file://{task['store']}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=task.get("timeout_s", TIMEOUT_S)),
    )
    for num_workers in task["num_workers"]:
        data = StreamDataset(task["root"], task["mixture"], batch_size=task["batch_size"], num_workers=num_workers)
        if task.get("state"):
            data.load_state_dict(task["state"])
        batches = iter(data)
        digests: list[str] = []
        samples: list[int] = []
        for _ in range(task["steps"]):
            batch = next(batches)
            samples.extend(batch["sample"].tolist())
            arrays = {key: value.numpy() if torch.is_tensor(value) else value for key, value in batch.items()}
            parts: list[Any] = [None] * world_size
            dist.gather_object(arrays, parts if rank == 0 else None)
            if rank == 0:
                digests.append(digest_of_all(parts))
            if task.get("talks"):
                tell(step=data.state_dict()["step"])
        opened = opened_shards()
        tell(
            digests=digests, samples=samples, opened=opened, bytes=data.loader.stats()["bytes"], state=data.state_dict()
        )
        batches.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
