"""The public names for PyTorch: a dataset, batches on a device, normalisation on it, and a Lightning DataModule."""

from typing import TYPE_CHECKING, Any

from stream.frameworks.torch import Normalize, StreamDataset, ranks, to_device
from stream.frameworks.torch_carriers import as_tensors

if TYPE_CHECKING:
    from stream.frameworks.lightning import StreamDataModule

__all__ = ["Normalize", "StreamDataModule", "StreamDataset", "as_tensors", "ranks", "to_device"]


def __getattr__(name: str) -> Any:
    if name == "StreamDataModule":  # needs Lightning, which is an extra
        from stream.frameworks.lightning import StreamDataModule

        return StreamDataModule
    raise AttributeError(f"module 'stream.torch' has no attribute {name!r}")
