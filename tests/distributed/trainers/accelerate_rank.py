"""A rank of Hugging Face's Accelerate, ``python -m tests.distributed.trainers.accelerate_rank TASK``; see ``ranks``."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from stream.base.errors import ArgumentError
from tests.distributed.ranks import tell


def main(task: dict[str, Any]) -> None:
    """Read ``steps`` batches in each of ``ways``, and tell the numbers of their samples, or the error.

    The environment is that of torchrun and ``accelerate launch --cpu``.
    """
    host, port = task["address"].split(":")
    numbers = {"RANK": task["rank"], "LOCAL_RANK": task["rank"], "WORLD_SIZE": task["world_size"], "MASTER_PORT": port}
    os.environ |= {"ACCELERATE_USE_CPU": "true", "MASTER_ADDR": host} | {k: str(v) for k, v in numbers.items()}
    import torch
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration
    from torch.utils.data import DataLoader, IterableDataset

    from stream import make_loader
    from stream.torch import StreamDataset, check_ranks, ranks, to_device

    class Batches(IterableDataset[Any]):
        """Batches of a loader, in a dataset that Accelerate cannot tell from one of single samples."""

        def __init__(self, loader: Any) -> None:
            self.loader = loader

        def __iter__(self) -> Any:
            return to_device(self.loader, "cpu")

    torch.set_num_threads(1)
    for way in task["ways"]:
        dispatches = False if way == "sharded" else None  # None is the default of accelerate
        accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatches))
        # Without texts, which accelerate refuses.
        dataset = StreamDataset(
            task["root"], task["mixture"], batch_size=task["batch_size"], action=None, state=None, language=None
        )
        batches: Any = DataLoader(dataset, batch_size=None)
        if way == "to_device":
            batches = to_device(dataset, accelerator.device)
        elif way != "as it is":
            batches = accelerator.prepare(batches)
        if way == "dispatched":
            loader = make_loader(
                task["root"], task["mixture"], batch_size=task["batch_size"], state=None, language=None, **ranks()
            )
            batches = accelerator.prepare(DataLoader(Batches(loader), batch_size=None))
        try:
            if way == "dispatched":
                check_ranks(loader, next(iter(batches)))
            samples = [batch["sample"].tolist() for _, batch in zip(range(task["steps"]), batches, strict=False)]
            tell(samples=samples, ranks=[accelerator.process_index, accelerator.num_processes])
        except ArgumentError as error:
            tell(refused=str(error))
            if way == "prepared":
                raise


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
