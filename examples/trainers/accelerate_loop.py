"""Train with Hugging Face's Accelerate: model and optimizer are prepared, the loader is not.

accelerate launch --num_processes 2 examples/trainers/accelerate_loop.py --root build/demo/oxe
accelerate launch --num_processes 4 examples/trainers/accelerate_loop.py --root build/demo/oxe --resume
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from accelerate import Accelerator
from policy import Policy, finish, last_checkpoint, parse  # type: ignore[import-not-found]

from stream import make_loader
from stream.torch import StepState, ranks, to_device


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and save a checkpoint every some steps."""
    args = parse(__doc__ or "", arguments)
    accelerator = Accelerator()
    sample = {"action": 4, "normalize": "mean_std", "num_workers": 1, "num_steps": args.steps}
    loader = make_loader(args.root, args.mixture, batch_size=args.batch_size, **sample, **ranks())
    batches = to_device(loader, accelerator.device)
    model = Policy(loader)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.register_for_checkpointing(StepState(batches))
    if args.resume:
        accelerator.load_state(str(last_checkpoint(args.out)))
    for batch in batches:
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()
        if batches.step % args.every == 0:
            accelerator.save_state(str(args.out / f"step-{batches.step}"))
            finish(args.out, batches.step)
    accelerator.end_training()


if __name__ == "__main__":
    main()
