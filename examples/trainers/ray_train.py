"""Train with Ray Train: each worker is a rank, and the reported checkpoint has the loader's state.

python examples/trainers/ray_train.py --root build/demo/oxe --workers 2
python examples/trainers/ray_train.py --root build/demo/oxe --workers 4 --resume
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from policy import Policy, parse  # type: ignore[import-not-found]
from ray import train
from ray.train.torch import TorchTrainer, get_device, prepare_model

from stream import make_loader
from stream.torch import ranks, to_device


def train_worker(config: dict[str, Any]) -> None:
    """Train in one worker, which has joined the process group."""
    args = Namespace(**config)
    sample = {"action": 4, "normalize": "mean_std", "num_workers": 1, "num_steps": args.steps}
    loader = make_loader(args.root, args.mixture, batch_size=args.batch_size, **sample, **ranks())
    batches = to_device(loader, get_device())  # not prepare_data_loader
    policy = Policy(loader)
    model, optimizer = prepare_model(policy), torch.optim.AdamW(policy.parameters())
    if last := train.get_checkpoint():
        with last.as_directory() as folder:
            states = torch.load(Path(folder) / "states.pt", weights_only=True)
        policy.load_state_dict(states["model"])
        optimizer.load_state_dict(states["optimizer"])
        batches.set_state(states["loader"])
    for batch in batches:
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if batches.step % args.every == 0:
            with tempfile.TemporaryDirectory() as folder:
                states = {"model": policy.state_dict(), "optimizer": optimizer.state_dict()}
                if loader.rank == 0:
                    torch.save({**states, "loader": batches.get_state()}, Path(folder) / "states.pt")
                checkpoint = train.Checkpoint.from_directory(folder) if loader.rank == 0 else None
                train.report({"loss": loss.item()}, checkpoint=checkpoint)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in some workers; a run of the same name continues from its last checkpoint."""
    args = parse(__doc__ or "", arguments, workers=2)
    out = args.out.resolve()
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={**vars(args), "root": args.root.resolve()},
        scaling_config=train.ScalingConfig(num_workers=args.workers, use_gpu=torch.cuda.is_available()),
        run_config=train.RunConfig(name=out.name, storage_path=str(out.parent)),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
