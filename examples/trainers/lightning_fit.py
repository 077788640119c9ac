"""Train with Lightning: a DataModule, whose state is in Lightning's own checkpoints.

python examples/trainers/lightning_fit.py --root build/demo/oxe --devices 2
python examples/trainers/lightning_fit.py --root build/demo/oxe --devices 4 --resume
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from policy import Policy, parse  # type: ignore[import-not-found]

from stream.torch import StreamDataModule


class Model(pl.LightningModule):
    """The policy with its optimizer."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        """Return the loss."""
        return self.policy(**batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and save a checkpoint every some steps."""
    args = parse(__doc__ or "", arguments, devices=1)
    sample: dict[str, Any] = {"action": 4, "normalize": "mean_std", "num_workers": 1}
    data = StreamDataModule(args.root, args.mixture, batch_size=args.batch_size, **sample)
    checkpoints = pl.callbacks.ModelCheckpoint(args.out, every_n_train_steps=args.every, save_last=True)
    trainer = pl.Trainer(
        devices=args.devices,
        strategy="ddp",
        max_steps=args.steps,
        callbacks=[checkpoints],
        default_root_dir=args.out,
        logger=False,
        enable_progress_bar=False,
    )
    ckpt_path = args.out / "last.ckpt" if args.resume else None
    trainer.fit(Model(Policy(data.loader)), datamodule=data, ckpt_path=ckpt_path, weights_only=True)


if __name__ == "__main__":
    main()
