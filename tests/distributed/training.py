"""Runs of the training examples: their arguments, and the losses that they save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TOLERANCE = 1e-3
"""Sums over other parts of a batch differ in the last bits, and training makes more of it."""


def arguments(root: Path, out: Path, *more: str) -> list[str]:
    locations = ["--root", str(root), "--mixture", "bridge", "--out", str(out)]
    return [*locations, "--batch-size", "8", "--num-workers", "1", "--every", "2", *more]


def torch_losses(out: Path) -> list[list[float]]:
    import torch

    saved: dict[str, Any] = torch.load(out / "checkpoint.pt", weights_only=True)
    assert saved["loader"]["step"] == len(saved["losses"])
    return saved["losses"]


def jax_losses(out: Path) -> list[list[float]]:
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(out / "checkpoints") as manager:
        return manager.restore(None, args=ocp.args.Composite(losses=ocp.args.JsonRestore())).losses
