"""Train a small latent-action model on frame pairs with PyTorch.

An encoder turns frames t and t + offset into a few numbers; a decoder draws frame t + offset from frame t and these
numbers. Run it, interrupt it with Ctrl-C, and continue with --resume:

    python examples/train_torch.py --root build/demo/oxe --mixture oxe29 --steps 200 --out runs/demo

With several processes each reads and decodes only its rows of the batch, and they train one model. A run may continue
with another number of processes:

    torchrun --nproc-per-node 2 examples/train_torch.py --root build/demo/oxe --steps 200 --out runs/demo
"""

from __future__ import annotations

from latent_action import LatentAction  # type: ignore[import-not-found]
from torch_run import parse, run  # type: ignore[import-not-found]

if __name__ == "__main__":
    args = parse(__doc__ or "", root="build/demo/oxe", out="runs/demo")
    run(args, lambda: (LatentAction(), {}), baseline="predicting frame t")
