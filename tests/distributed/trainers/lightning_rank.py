"""A fit of Lightning in several processes, ``python -m tests.distributed.trainers.lightning_rank TASK``; see ``ranks``.

Lightning starts the other ranks itself, by running this again.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.distributed.ranks import tell


def main(task: dict[str, Any]) -> None:
    """Train ``devices`` ranks up to ``max_steps``, from ``ckpt_path`` if there is one; each notes its samples."""
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl
    import torch

    from stream.torch import StreamDataModule

    torch.set_num_threads(1)

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.samples: dict[str, list[list[int]]] = {"train": [], "val": []}

        def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
            self.samples["train"].append(batch["sample"].tolist())
            return (batch["frames"].float().mean() / 255 - self.weight) ** 2

        def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
            self.samples["val"].append(batch["sample"].tolist())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    folder, steps = Path(task["folder"]), task["max_steps"]
    splits: dict[str, Any] = {"split": "train[:50%]", "val_split": "train[50%:]", "val_steps": 1}
    data = StreamDataModule(task["root"], "bridge", batch_size=task["batch_size"], num_workers=1, **splits)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=task["devices"],
        strategy="ddp",
        max_steps=steps,
        val_check_interval=1,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        callbacks=[pl.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    ckpt_path = folder / task["ckpt"] if task.get("ckpt") else None
    trainer.fit(model, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
    name = f"to-{steps}-rank-{trainer.global_rank}-of-{trainer.world_size}.json"
    (folder / name).write_text(json.dumps({**model.samples, "weight": float(model.weight)}))
    tell(rank=trainer.global_rank)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
