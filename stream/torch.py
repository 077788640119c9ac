"""The public names for PyTorch: a dataset, batches on a device, normalisation on it, and trainers that people use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stream.frameworks.torch import Normalize, StreamDataset, ranks, to_device
from stream.frameworks.torch_carriers import as_tensors

if TYPE_CHECKING:
    from stream.frameworks.lerobot import lerobot_train
    from stream.frameworks.lightning import StreamDataModule

__all__ = ["Normalize", "StreamDataModule", "StreamDataset", "as_tensors", "lerobot_train", "ranks", "to_device"]

_OPTIONAL = {"StreamDataModule": "lightning", "lerobot_train": "lerobot"}
"""Modules of the names that need a further library."""


def __getattr__(name: str) -> Any:
    if name in _OPTIONAL:
        return getattr(import_module(f"stream.frameworks.{_OPTIONAL[name]}"), name)
    raise AttributeError(f"module 'stream.torch' has no attribute {name!r}")
