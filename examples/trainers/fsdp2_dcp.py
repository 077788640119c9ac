"""Train with FSDP2, and save with torch's distributed checkpoints (DCP), which other numbers of processes load.

torchrun --nproc-per-node 2 examples/trainers/fsdp2_dcp.py --root build/demo/oxe
torchrun --nproc-per-node 4 examples/trainers/fsdp2_dcp.py --root build/demo/oxe --resume
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from policy import Policy, finish, join, last_checkpoint, parse  # type: ignore[import-not-found]
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from stream import make_loader
from stream.torch import StepState, ranks, to_device


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and save a checkpoint every some steps."""
    args = parse(__doc__ or "", arguments)
    device = join()
    sample = {"action": 4, "normalize": "mean_std", "num_workers": 1, "num_steps": args.steps}
    loader = make_loader(args.root, args.mixture, batch_size=args.batch_size, **sample, **ranks())
    batches = to_device(loader, device)
    policy = Policy(loader).to(device)
    for layer in (policy.body[0], policy.body[2], policy):
        fully_shard(layer)
    optimizer = torch.optim.AdamW(policy.parameters())
    progress = StepState(batches)
    if args.resume:
        model_state, optimizer_state = get_state_dict(policy, optimizer)
        states = {"model": model_state, "optimizer": optimizer_state, "loader": progress}
        dcp.load(states, checkpoint_id=last_checkpoint(args.out))
        set_state_dict(policy, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    for batch in batches:
        policy(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        if batches.step % args.every == 0:
            model_state, optimizer_state = get_state_dict(policy, optimizer)
            states = {"model": model_state, "optimizer": optimizer_state, "loader": progress}
            dcp.save(states, checkpoint_id=args.out / f"step-{batches.step}")
            finish(args.out, batches.step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
