"""Grain alone: an ArrayRecord file of each dataset, ``MapDataset.mix``, and worker processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from bench.peers.protocol import Decoder, Request, forever, pack, serve


def make_copy(request: Request) -> None:
    """Write a file for each dataset, one record a group, not compressed."""
    writer_of = import_module("array_record.python.array_record_module").ArrayRecordWriter
    pairs = request.pairs
    for number in range(len(pairs.datasets)):
        writer = writer_of(str(request.copy / f"{number:03d}.arrayrecord"), "group_size:1,uncompressed")
        for place in pairs.places(number):
            writer.write(pack(pairs.pair(place)))
        writer.close()


@contextmanager
def open_batches(request: Request) -> Iterator[Iterator[Any]]:
    """Give batches of mixed pairs, each dataset shuffled again in every epoch."""
    import grain

    # Grain's workers receive the flags of absl, which only absl's own main function parses.
    import_module("absl.flags").FLAGS.mark_as_parsed()
    pairs = request.pairs
    datasets = []
    for number in range(len(pairs.datasets)):
        source = grain.sources.ArrayRecordDataSource(str(request.copy / f"{number:03d}.arrayrecord"))
        records = grain.MapDataset.source(source).seed(request.seed + number)
        datasets.append((records.shuffle() if request.shuffled else records).repeat())
    mixed = grain.MapDataset.mix(datasets, pairs.weights).map(Decoder(request))
    dataset = mixed.to_iter_dataset().batch(request.batch_size, drop_remainder=True)
    if request.num_workers:
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=request.num_workers)
        dataset = dataset.mp_prefetch(options)
    batches = forever(dataset)
    try:
        yield batches
    finally:
        batches.close()  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(serve(open_batches, make_copy))
