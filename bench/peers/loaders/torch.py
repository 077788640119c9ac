"""PyTorch's DataLoader, for the peers that only store records."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from bench.peers.protocol import Request, forever

_DECLARED: list[Any] = []


@contextmanager
def dataset_batches(request: Request, dataset: Any, *, context: str | None = None) -> Iterator[Iterator[Any]]:
    """Give batches of a map-style dataset of the exported pairs.

    Shuffled pairs are drawn independently, each with its dataset's weight divided by the dataset's size.

    Args:
        request: Batch size, workers, order and seed.
        dataset: Map-style dataset; element i is the sample of pair i.
        context: Start method of the workers, None for PyTorch's default.
    """
    import torch

    numbers = request.pairs.numbers[:, 0].tolist()
    sampler: Any = [place % len(numbers) for place in range(request.samples)]
    if request.shuffled:
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
    """Give a DataLoader's batches without end; its workers end with the block."""
    batches = forever(loader)
    try:
        yield batches
    finally:
        batches.close()  # type: ignore[attr-defined]
        loader._iterator = None


def import_torchvision() -> None:
    """Import torchvision, also a build that does not fit a PyTorch without CUDA.

    Such a build cannot load its compiled operators and then fails to extend two of them. No peer uses the operators,
    so declarations replace the two.
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
