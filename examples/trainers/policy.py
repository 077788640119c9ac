"""A small policy, arguments and the last checkpoint, for the programs of this folder."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stream import Loader


class Policy(nn.Module):
    """A policy that predicts a chunk of actions from frame t, small enough for a CPU.

    Args:
        loader: Loader, whose batches have actions of these dimensions.
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__()
        self.action_shape = loader.batch_at(0)["action"].shape[1:]
        self.body = nn.Sequential(nn.Linear(3 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, math.prod(self.action_shape)))

    def forward(
        self, frames: torch.Tensor, action: torch.Tensor, action_mask: torch.Tensor, **_: Any
    ) -> dict[str, torch.Tensor]:
        """Return the loss of a batch, as the Trainer of transformers expects it."""
        pixels = frames[:, 0].permute(0, 3, 1, 2).float() / 255
        chunk = self.body(nn.functional.adaptive_avg_pool2d(pixels, 8).flatten(1)).view(-1, *self.action_shape)
        return {"loss": ((chunk - action) ** 2 * action_mask).sum() / action_mask.sum().clamp(min=1)}


def parse(description: str, arguments: Sequence[str] | None = None, **more: Any) -> argparse.Namespace:
    """Return the arguments of a program; ``more`` has additional ones, with their defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("build/demo/oxe"), help="converted root")
    parser.add_argument("--mixture", default="oxe29", help="a mixture, a dataset, or a YAML file")
    parser.add_argument("--batch-size", type=int, default=32, help="rows of all processes together")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--out", type=Path, default=Path("runs/trainers"), help="for checkpoints")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in --out")
    for name, default in more.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default}")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    return args


def join() -> torch.device:
    """Join the processes that torchrun started, and return the device of this one."""
    on_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_cuda else "gloo")
    return device


def finish(out: Path, step: int) -> None:
    """Name ``step-N`` the last checkpoint, once all processes have written it."""
    if dist.is_initialized():
        dist.barrier()
    if not dist.is_initialized() or dist.get_rank() == 0:
        (out / "last.tmp").write_text(f"step-{step}")
        os.replace(out / "last.tmp", out / "last")


def last_checkpoint(out: Path) -> Path:
    """Return the last checkpoint that was finished."""
    return out / (out / "last").read_text()
