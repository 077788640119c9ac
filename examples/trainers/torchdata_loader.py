"""Train with torchdata's StatefulDataLoader, whose state is that of the dataset.

torchrun --nproc-per-node 2 examples/trainers/torchdata_loader.py --root build/demo/oxe
torchrun --nproc-per-node 4 examples/trainers/torchdata_loader.py --root build/demo/oxe --resume
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from policy import Policy, finish, join, last_checkpoint, parse  # type: ignore[import-not-found]
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader

from stream.torch import StreamDataset


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and save a checkpoint every some steps."""
    args = parse(__doc__ or "", arguments)
    device = join()
    sample = {"action": 4, "normalize": "mean_std", "num_workers": 1, "num_steps": args.steps}
    dataset = StreamDataset(args.root, args.mixture, batch_size=args.batch_size, **sample)
    batches = StatefulDataLoader(dataset, batch_size=None)  # no num_workers: the dataset has its own
    policy = Policy(dataset.loader).to(device)
    model, optimizer = DistributedDataParallel(policy), torch.optim.AdamW(policy.parameters())
    if args.resume:
        checkpoint = torch.load(last_checkpoint(args.out), weights_only=True)
        policy.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        batches.load_state_dict(checkpoint["batches"])
    for batch in batches:
        batch = {key: value.to(device) if torch.is_tensor(value) else value for key, value in batch.items()}
        model(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        if dataset.step % args.every == 0:
            checkpoint = {"model": policy.state_dict(), "optimizer": optimizer.state_dict()}
            if dist.get_rank() == 0:  # the state of the batches is the same in all processes
                torch.save({**checkpoint, "batches": batches.state_dict()}, args.out / f"step-{dataset.step}")
            finish(args.out, dataset.step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
