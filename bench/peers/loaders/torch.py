"""What the peers that only store records have in common: PyTorch's DataLoader, with its weighted sampler."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from bench.peers.protocol import Request, forever

_DECLARED: list[Any] = []


@contextmanager
def weighted_batches(request: Request, dataset: Any, *, context: str | None = None) -> Iterator[Iterator[Any]]:
    """Give batches of a map-style dataset of the exported pairs, in their order.

    Pairs are drawn independently of one another, each with its dataset's weight divided by the dataset's size.

    Args:
        request: size of a batch, workers, seed.
        dataset: element i is the sample of pair i.
        context: how workers start; None takes PyTorch's default.
    """
    import torch

    numbers = request.pairs.numbers[:, 0].tolist()
    sizes, weights = Counter(numbers), request.pairs.weights
    sampler = torch.utils.data.WeightedRandomSampler(
        [weights[number] / sizes[number] for number in numbers],
        num_samples=request.samples,
        generator=torch.Generator().manual_seed(request.seed),
    )
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=request.batch_size,
        sampler=sampler,
        num_workers=request.num_workers,
        multiprocessing_context=context if request.num_workers else None,
        drop_last=True,
    )
    with torch_batches(loader) as batches:
        yield batches


@contextmanager
def torch_batches(loader: Any) -> Iterator[Iterator[Any]]:
    """Give a DataLoader's batches without end; its workers are ended at the end of the block."""
    batches = forever(lambda: loader, [0])
    try:
        yield batches
    finally:
        batches.close()  # type: ignore[attr-defined]
        loader._iterator = None


def tensors(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample with its arrays as tensors, as PyTorch's collation hands them on without another copy."""
    import torch

    return {
        key: torch.from_numpy(np.array(value) if not value.flags.writeable else value)
        if isinstance(value, np.ndarray)
        else value
        for key, value in sample.items()
    }


def import_torchvision() -> None:
    """Import torchvision for a peer that imports it, also where its build does not fit a PyTorch without CUDA.

    Such a torchvision cannot load its compiled operators, and then fails to add to two of them. No peer uses any of
    these, so a declaration takes the place of each of the two.
    """
    import torch

    try:
        import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        _DECLARED.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            _DECLARED[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import_module("torchvision")
