"""A training script with the functions that ``lerobot_train`` replaces in LeRobot's, and the same calls of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

CONFIG = SimpleNamespace()
"""Options of the command line."""
LOG: list[Any] = []
"""Dataset, then the batches that were trained on."""


def make_train_eval_datasets(config: Any) -> tuple[Any, Any]:
    raise AssertionError("LeRobot's dataset is opened")


def cycle(dataloader: Any) -> Iterator[Any]:
    raise AssertionError("LeRobot's DataLoader is read")


def save_checkpoint(checkpoint_dir: Path, step: int, cfg: Any) -> None:
    folder = checkpoint_dir / "training_state"
    folder.mkdir(parents=True)
    (folder / "training_step.json").write_text(json.dumps({"step": step}))


def main() -> None:
    """Train, as LeRobot 0.6 does, with a checkpoint after each step."""
    config = CONFIG
    dataset, _ = make_train_eval_datasets(config)
    LOG.append(dataset)
    bounds = zip(dataset.meta.episodes["dataset_from_index"], dataset.meta.episodes["dataset_to_index"], strict=True)
    assert all(stop - start > getattr(config.policy, "drop_n_last_frames", 0) for start, stop in bounds)
    step = 0
    if config.resume:
        step = json.loads((config.checkpoint_path / "training_state/training_step.json").read_text())["step"]
    batches = cycle(torch.utils.data.DataLoader(dataset, shuffle=True))
    for _ in range(step, config.steps):
        LOG.append(next(batches))
        step += 1
        save_checkpoint(checkpoint_dir=config.output_dir / str(step), step=step, cfg=config)
