"""LitData: a folder of chunks of each dataset, mixed by ``CombinedStreamingDataset``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from bench.peers.loaders.torch import tensors, torch_batches
from bench.peers.protocol import Request, decode, serve

_CHUNK_BYTES = 1 << 26


def make_copy(request: Request) -> None:
    """Write a folder a dataset with LitData's own writer, not compressed."""
    cache_of = import_module("litdata.streaming").Cache
    pairs = request.pairs
    for number in range(len(pairs.datasets)):
        cache = cache_of(str(request.copy / f"{number:03d}"), chunk_bytes=_CHUNK_BYTES)
        for count, place in enumerate(pairs.places(number)):
            pair = pairs.pair(place)
            cache[count] = {**pair, "action": pair["action"].tobytes(), "state": pair["state"].tobytes()}
        cache.done()
        cache.merge()


def _sample(
    pair: dict[str, Any], *, vector: tuple[int, int, int], shape: tuple[int, int], full: bool
) -> dict[str, Any]:
    if full:
        window, width, _ = vector
        pair["action"] = np.frombuffer(pair["action"], np.float32).reshape(window, width)
        pair["state"] = np.frombuffer(pair["state"], np.float32)
    return tensors(decode(pair, shape, full=full))


@contextmanager
def open_batches(request: Request) -> Iterator[Iterator[Any]]:
    """Give batches of mixed pairs; an epoch ends with the first dataset that does, and is begun anew."""
    litdata = import_module("litdata")
    pairs = request.pairs
    sample = partial(_sample, vector=tuple(pairs.about["vector"]), shape=pairs.shape, full=request.full)
    datasets = [
        litdata.StreamingDataset(
            str(request.copy / f"{number:03d}"), shuffle=True, drop_last=False, seed=request.seed, transform=sample
        )
        for number in range(len(pairs.datasets))
    ]
    mixed = litdata.CombinedStreamingDataset(datasets, seed=request.seed, weights=pairs.weights, iterate_over_all=False)
    loader = litdata.StreamingDataLoader(
        mixed,
        batch_size=request.batch_size,
        num_workers=request.num_workers,
        drop_last=True,
        persistent_workers=request.num_workers > 0,
    )
    with torch_batches(loader) as batches:
        yield batches


if __name__ == "__main__":
    sys.exit(serve(open_batches, make_copy))
