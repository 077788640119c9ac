"""A rank of torch.distributed with loaders made in several ways, ``python -m tests.distributed.torch_start TASK``."""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.distributed.ranks import tell
from tests.documentation.blocks import block_with, run_block


def main(task: dict[str, Any]) -> None:
    """Tell by way the samples of the first two batches of this rank, or the error."""
    warnings.simplefilter("ignore")
    import torch
    import torch.distributed as dist

    from stream import ArgumentError, make_loader
    from stream.torch import StreamDataModule, StreamDataset, ranks, to_device

    arguments = {"root": task["root"], "mixture": "bridge", "batch_size": task["batch_size"]}
    early, module = StreamDataset(**arguments), StreamDataModule(**arguments)
    before = [early.loader.world_size, module.loader.world_size]
    rank, world_size = task["rank"], task["world_size"]
    dist.init_process_group("gloo", init_method=f"file://{task['store']}", rank=rank, world_size=world_size)
    module.setup("fit")

    def untold() -> Iterable[dict[str, Any]]:
        try:
            yield next(iter(make_loader(**arguments)))
        except ArgumentError as error:
            tell(refused=str(error))

    ways: dict[str, Iterable[dict[str, Any]]] = {
        "a dataset made before the group": early,
        "the same in a DataLoader": torch.utils.data.DataLoader(early, batch_size=None),
        "the same on a device": to_device(early, "cpu"),
        "Lightning, looked at before the group": module.train_dataloader(),
        "ranks()": make_loader(**arguments, **ranks()),
        "a loader that was told nothing": untold(),
        "all rows on purpose": make_loader(**arguments, rank=0, world_size=1),
    }
    accepted: dict[str, Any] = {}
    for way, batches in ways.items():
        early.seek(0)
        accepted[way] = [batch["sample"].tolist() for batch in itertools.islice(batches, 2)]
    code = block_with(
        Path(task["root"]), "images, actions, real", **{'"cuda"': '"cpu"', "build/demo/frames": task["root"]}
    )
    loader = run_block(code, {"train_step": lambda *_: None, "model": None})["loader"]
    tell(before=before, ways=accepted, readme=[loader.rank, loader.world_size, loader.stats()["batches"]])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
