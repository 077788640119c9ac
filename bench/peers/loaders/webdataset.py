"""WebDataset: tar files of each dataset, read in order with a shuffle buffer, and mixed by ``RandomMix``."""

from __future__ import annotations

import io
import random
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from bench.peers.loaders.torch import torch_batches
from bench.peers.protocol import Decoder, Request, pack, serve

_SHARD_PAIRS = 1000
_LEAST_SHARDS = 2
_BUFFER = 256


def make_copy(request: Request) -> None:
    """Write tar files of at most 1,000 pairs in random order, at least two of a dataset and one for each worker."""
    pairs = request.pairs
    for number in range(len(pairs.datasets)):
        places = pairs.places(number)
        random.Random(request.seed).shuffle(places)
        shards = max(_LEAST_SHARDS, request.num_workers, -(-len(places) // _SHARD_PAIRS))
        for shard in range(shards):
            with tarfile.open(request.copy / f"{number:03d}-{shard:05d}.tar", "w") as tar:
                for place in places[shard::shards]:
                    record = pack(pairs.pair(place))
                    entry = tarfile.TarInfo(f"{place:09d}.pair")
                    entry.size = len(record)
                    tar.addfile(entry, io.BytesIO(record))


def _sample(entry: dict[str, Any], *, decode: Decoder) -> dict[str, Any]:
    return decode(entry["pair"])


@contextmanager
def open_batches(request: Request) -> Iterator[Iterator[Any]]:
    """Give batches of mixed pairs; tar files are drawn with replacement, as its authors advise for training."""
    import torch

    wds = import_module("webdataset")
    pairs = request.pairs
    sample = partial(_sample, decode=Decoder(request))
    datasets = []
    for number in range(len(pairs.datasets)):
        files = sorted(str(path) for path in request.copy.glob(f"{number:03d}-*.tar"))
        if request.shuffled:
            dataset = wds.WebDataset(files, resampled=True, seed=request.seed + number, shardshuffle=False)
            dataset = dataset.shuffle(_BUFFER)
        else:
            dataset = wds.WebDataset(files, shardshuffle=False).repeat()
        datasets.append(dataset.map(sample))
    mix = wds.RandomMix(datasets, pairs.weights)
    loader = torch.utils.data.DataLoader(mix, batch_size=request.batch_size, num_workers=request.num_workers)
    with torch_batches(loader) as batches:
        yield batches


if __name__ == "__main__":
    sys.exit(serve(open_batches, make_copy))
