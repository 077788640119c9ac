"""Grain alone: an ArrayRecord file of each dataset, ``MapDataset.mix``, and worker processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from bench.peers.protocol import Request, decode, forever, pack, serve, unpack


def make_copy(request: Request) -> None:
    """Write a file a dataset, one record a group, not compressed."""
    writer_of = import_module("array_record.python.array_record_module").ArrayRecordWriter
    pairs = request.pairs
    for number in range(len(pairs.datasets)):
        writer = writer_of(str(request.copy / f"{number:03d}.arrayrecord"), "group_size:1,uncompressed")
        for place in pairs.places(number):
            writer.write(pack(pairs.pair(place)))
        writer.close()


def _sample(record: bytes, *, vector: tuple[int, int, int], shape: tuple[int, int], full: bool) -> dict[str, Any]:
    return decode(unpack(record, vector), shape, full=full)


@contextmanager
def open_batches(request: Request) -> Iterator[Iterator[Any]]:
    """Give batches of mixed pairs, each dataset shuffled anew in every epoch."""
    import grain

    # Its workers are told the flags of absl, which are read only in absl's own main function.
    import_module("absl.flags").FLAGS.mark_as_parsed()
    pairs = request.pairs
    datasets = []
    for number in range(len(pairs.datasets)):
        source = grain.sources.ArrayRecordDataSource(str(request.copy / f"{number:03d}.arrayrecord"))
        datasets.append(grain.MapDataset.source(source).seed(request.seed + number).shuffle().repeat())
    sample = partial(_sample, vector=tuple(pairs.about["vector"]), shape=pairs.shape, full=request.full)
    mixed = grain.MapDataset.mix(datasets, pairs.weights).map(sample)
    dataset = mixed.to_iter_dataset().batch(request.batch_size, drop_remainder=True)
    if request.num_workers:
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=request.num_workers)
        dataset = dataset.mp_prefetch(options)
    batches = forever(lambda: dataset, [0])
    try:
        yield batches
    finally:
        batches.close()  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(serve(open_batches, make_copy))
