"""Train on a DeviceMesh of data-parallel and tensor-parallel processes; those of one model get the same rows.

torchrun --nproc-per-node 4 examples/trainers/device_mesh.py --root build/demo/oxe --tp 2
torchrun --nproc-per-node 2 examples/trainers/device_mesh.py --root build/demo/oxe --tp 1 --resume
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from policy import Policy, finish, join, last_checkpoint, parse  # type: ignore[import-not-found]
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from stream import make_loader
from stream.torch import StepState, check_ranks, ranks, to_device


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and save a checkpoint every some steps."""
    args = parse(__doc__ or "", arguments, tp=2)
    device = join()
    mesh = init_device_mesh(device.type, (dist.get_world_size() // args.tp, args.tp), mesh_dim_names=("dp", "tp"))
    sample = {"action": 4, "normalize": "mean_std", "num_workers": 1, "num_steps": args.steps}
    loader = make_loader(args.root, args.mixture, batch_size=args.batch_size, **sample, **ranks(mesh))
    batches = to_device(loader, device)
    policy = Policy(loader).to(device)
    parallelize_module(policy.body, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(policy, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(policy.parameters())
    progress = StepState(batches)
    if args.resume:
        model_state, optimizer_state = get_state_dict(policy, optimizer)
        states = {"model": model_state, "optimizer": optimizer_state, "loader": progress}
        dcp.load(states, checkpoint_id=last_checkpoint(args.out))
        set_state_dict(policy, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    start = batches.step
    for batch in batches:
        if batches.step == start + 1:
            check_ranks(loader, batch, mesh=mesh)  # once: equal in a model, different between models
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
