"""MosaicML Streaming: an MDS folder of each dataset, a ``Stream`` of each with its proportion, ``StreamingDataset``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from bench.peers.loaders.torch import import_torchvision, torch_batches
from bench.peers.protocol import Decoder, Request, flat, serve

_COLUMNS = {
    "first": "bytes",
    "second": "bytes",
    "dataset": "int",
    "episode": "int",
    "step": "int",
    "action": "bytes",
    "state": "bytes",
    "language": "str",
}


def _streaming() -> Any:
    import_torchvision()
    return import_module("streaming")


def make_copy(request: Request) -> None:
    """Write a folder for each dataset, not compressed."""
    writer_of = _streaming().MDSWriter
    pairs = request.pairs
    for number in range(len(pairs.datasets)):
        with writer_of(out=str(request.copy / f"{number:03d}"), columns=_COLUMNS) as writer:
            for place in pairs.places(number):
                writer.write(flat(pairs.pair(place)))


@contextmanager
def open_batches(request: Request) -> Iterator[Iterator[Any]]:
    """Give batches of mixed pairs, shuffled, in one epoch that is long enough."""
    streaming = _streaming()
    decode = Decoder(request)

    class Pairs(streaming.StreamingDataset):  # type: ignore[name-defined]
        def __getitem__(self, place: int) -> Any:
            return decode(super().__getitem__(place))

    # Shared memory that a killed process left would be an error.
    streaming.base.util.clean_stale_shared_memory()
    streams = [
        streaming.Stream(local=str(request.copy / f"{number:03d}"), proportion=weight)
        for number, weight in enumerate(request.pairs.weights)
    ]
    dataset = Pairs(
        streams=streams,
        epoch_size=request.samples,
        shuffle=True,
        shuffle_seed=request.seed,
        batch_size=request.batch_size,
    )
    loader = streaming.StreamingDataLoader(
        dataset, batch_size=request.batch_size, num_workers=request.num_workers, drop_last=True
    )
    with torch_batches(loader) as batches:
        yield batches


if __name__ == "__main__":
    sys.exit(serve(open_batches, make_copy))
