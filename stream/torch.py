"""The public names for PyTorch: a dataset, batches on a device, ranks, states, and the trainers that people use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stream.frameworks.step_state import StepState
from stream.frameworks.torch import Normalize, StreamDataset, to_device
from stream.frameworks.torch_carriers import as_tensors
from stream.frameworks.torch_ranks import check_ranks, ranks

if TYPE_CHECKING:
    from stream.frameworks.lerobot import lerobot_train
    from stream.frameworks.lightning import StreamDataModule
    from stream.frameworks.transformers import StreamTrainerMixin

__all__ = [
    "Normalize",
    "StepState",
    "StreamDataModule",
    "StreamDataset",
    "StreamTrainerMixin",
    "as_tensors",
    "check_ranks",
    "lerobot_train",
    "ranks",
    "to_device",
]

_OPTIONAL = {"StreamDataModule": "lightning", "StreamTrainerMixin": "transformers", "lerobot_train": "lerobot"}
"""Modules of the names that need a further library."""


def __getattr__(name: str) -> Any:
    if name in _OPTIONAL:
        return getattr(import_module(f"stream.frameworks.{_OPTIONAL[name]}"), name)
    raise AttributeError(f"module 'stream.torch' has no attribute {name!r}")
