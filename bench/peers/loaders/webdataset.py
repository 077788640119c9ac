"""WebDataset: tar files of each dataset, read in order with a shuffle buffer, and mixed by ``RandomMix``."""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from bench.peers.loaders.torch import tensors, torch_batches
from bench.peers.protocol import Request, decode, pack, serve, unpack

_SHARD_PAIRS = 1000
_LEAST_SHARDS = 2
_BUFFER = 256


def make_copy(request: Request) -> None:
    """Write tar files of at most 1,000 pairs, two or more of a dataset, in a random order of pairs."""
    import random

    pairs = request.pairs
    for number in range(len(pairs.datasets)):
        places = pairs.places(number)
        random.Random(request.seed).shuffle(places)
        shards = max(_LEAST_SHARDS, -(-len(places) // _SHARD_PAIRS))
        for shard in range(shards):
            with tarfile.open(request.copy / f"{number:03d}-{shard:05d}.tar", "w") as tar:
                for place in places[shard::shards]:
                    record = pack(pairs.pair(place))
                    entry = tarfile.TarInfo(f"{place:09d}.pair")
                    entry.size = len(record)
                    tar.addfile(entry, io.BytesIO(record))


def _sample(
    entry: dict[str, Any], *, vector: tuple[int, int, int], shape: tuple[int, int], full: bool
) -> dict[str, Any]:
    return tensors(decode(unpack(entry["pair"], vector), shape, full=full))


@contextmanager
def open_batches(request: Request) -> Iterator[Iterator[Any]]:
    """Give batches of mixed pairs; tar files are drawn with replacement, as its authors advise for training."""
    import torch

    wds = import_module("webdataset")
    pairs = request.pairs
    sample = partial(_sample, vector=tuple(pairs.about["vector"]), shape=pairs.shape, full=request.full)
    datasets = []
    for number in range(len(pairs.datasets)):
        files = sorted(str(path) for path in request.copy.glob(f"{number:03d}-*.tar"))
        dataset = wds.WebDataset(files, resampled=True, seed=request.seed + number, shardshuffle=False)
        datasets.append(dataset.shuffle(_BUFFER).map(sample))
    mix = wds.RandomMix(datasets, pairs.weights)
    loader = torch.utils.data.DataLoader(mix, batch_size=request.batch_size, num_workers=request.num_workers)
    with torch_batches(loader) as batches:
        yield batches


if __name__ == "__main__":
    sys.exit(serve(open_batches, make_copy))
