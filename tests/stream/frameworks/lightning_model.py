"""A model for Lightning's Trainer; importing it takes five seconds, so a test does that when it runs."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch


class CountingModel(pl.LightningModule):
    """A model that notes the steps of its batches."""

    def __init__(self, fail_at: int = -1) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.fail_at = fail_at
        self.trained: list[int] = []
        self.frames: dict[str, Any] = {}
        self.validated: list[int] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Any:
        step = int(batch["sample"][0]) // 4
        self.trained.append(step)
        self.frames[f"train {step}"] = batch["frames"].numpy()
        if step == self.fail_at:
            raise RuntimeError("the model failed")
        return (batch["frames"].float().mean() / 255 - self.weight) ** 2

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        step = int(batch["sample"][0]) // 4
        self.validated.append(step)
        self.frames[f"val {step}"] = batch["frames"].numpy()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)
