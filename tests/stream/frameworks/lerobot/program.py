"""A program for LeRobot's own environment: ``lerobot-train`` with ACT on the batches of a loader.

Arguments: root, ranks or none, and LeRobot's options.
"""

# ruff: noqa: E402

from __future__ import annotations

import sys
from pathlib import Path

import torch

from bench.peers.loaders.torch import import_torchvision

import_torchvision()

from stream import make_loader
from stream.adapters import lerobot
from stream.torch import lerobot_train, ranks

if __name__ == "__main__":
    root = Path(sys.argv.pop(1))
    torch.set_num_threads(1)
    sample = lerobot.sample("act", chunk_size=10, image_size=(64, 64))
    lerobot_train(make_loader(root, "viola", batch_size=4, seed=3, num_workers=1, **ranks(), **sample))
