"""LitData: a folder of chunks of each dataset, mixed by ``CombinedStreamingDataset``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from bench.peers.loaders.torch import torch_batches
from bench.peers.protocol import Decoder, Request, flat, serve

_CHUNK_BYTES = 1 << 26


def make_copy(request: Request) -> None:
    """Write a folder for each dataset with LitData's own writer, not compressed."""
    cache_of = import_module("litdata.streaming").Cache
    pairs = request.pairs
    for number in range(len(pairs.datasets)):
        cache = cache_of(str(request.copy / f"{number:03d}"), chunk_bytes=_CHUNK_BYTES)
        for count, place in enumerate(pairs.places(number)):
            cache[count] = flat(pairs.pair(place))
        cache.done()
        cache.merge()


@contextmanager
def open_batches(request: Request) -> Iterator[Iterator[Any]]:
    """Give batches of mixed pairs; an epoch ends with the first dataset that ends, and the next epoch begins."""
    litdata = import_module("litdata")
    pairs, decode = request.pairs, Decoder(request)
    datasets = [
        litdata.StreamingDataset(
            str(request.copy / f"{number:03d}"), shuffle=True, drop_last=False, seed=request.seed, transform=decode
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
