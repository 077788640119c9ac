"""Peers that mix a stream of each dataset by weight: WebDataset, Grain, MosaicML Streaming and LitData."""

from __future__ import annotations

import glob
import io
import random
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from bench.peers.loaders.torch import import_torchvision, torch_batches
from bench.peers.protocol import Decoder, Request, forever

_SHARD_PAIRS = 1000
_LEAST_SHARDS = 2
_BUFFER = 256
_CHUNK_BYTES = 1 << 26
_MDS_COLUMNS = {
    **dict.fromkeys(("first", "second", "action", "state"), "bytes"),
    **dict.fromkeys(("dataset", "episode", "step"), "int"),
    "language": "str",
}


class Webdataset:
    """WebDataset: tar files of each dataset, read in order with a shuffle buffer, and mixed by ``RandomMix``."""

    @staticmethod
    def make_copy(request: Request) -> None:
        """Write tar files of at most 1,000 pairs in random order, at least two of a dataset and one for each worker."""
        for store_path, pair_numbers in request.stores():
            random.Random(request.seed).shuffle(pair_numbers)
            shards = max(_LEAST_SHARDS, request.num_workers, -(-len(pair_numbers) // _SHARD_PAIRS))
            for shard in range(shards):
                with tarfile.open(f"{store_path}-{shard:05d}.tar", "w") as tar:
                    for pair_number in pair_numbers[shard::shards]:
                        record = request.pairs.record(pair_number)
                        entry = tarfile.TarInfo(f"{pair_number:09d}.pair")
                        entry.size = len(record)
                        tar.addfile(entry, io.BytesIO(record))

    @staticmethod
    @contextmanager
    def open_batches(request: Request) -> Iterator[Iterator[Any]]:
        """Give batches of mixed pairs; tar files are drawn with replacement, as its authors advise for training."""
        import torch

        wds = import_module("webdataset")
        sample = partial(_tar_sample, decode=Decoder(request))
        datasets = []
        for number, (store_path, _) in enumerate(request.stores()):
            files = sorted(glob.glob(f"{store_path}-*.tar"))
            if request.order == "shuffled":
                dataset = wds.WebDataset(files, resampled=True, seed=request.seed + number, shardshuffle=False)
                dataset = dataset.shuffle(_BUFFER)
            else:
                dataset = wds.WebDataset(files, shardshuffle=False).repeat()
            datasets.append(dataset.map(sample))
        mix = wds.RandomMix(datasets, request.pairs.weights)
        loader = torch.utils.data.DataLoader(mix, batch_size=request.batch_size, num_workers=request.num_workers)
        with torch_batches(loader) as batches:
            yield batches


def _tar_sample(entry: dict[str, Any], *, decode: Decoder) -> dict[str, Any]:
    return decode(entry["pair"])


@contextmanager
def grain_batches(samples: Any, request: Request) -> Iterator[Iterator[Any]]:
    """Give batches of a ``MapDataset`` without end, made in worker processes that end with the block."""
    import grain

    # Grain's workers receive the flags of absl, which only absl's own main function parses.
    import_module("absl.flags").FLAGS.mark_as_parsed()
    dataset = samples.to_iter_dataset().batch(request.batch_size, drop_remainder=True)
    if request.num_workers:
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=request.num_workers)
        dataset = dataset.mp_prefetch(options)
    batches = forever(dataset)
    try:
        yield batches
    finally:
        batches.close()  # type: ignore[attr-defined]


def write_array_record(path: str, records: Iterable[bytes]) -> None:
    """Write records, one a group, not compressed."""
    writer_of = import_module("array_record.python.array_record_module").ArrayRecordWriter
    writer = writer_of(path, "group_size:1,uncompressed")
    for record in records:
        writer.write(record)
    writer.close()


class Grain:
    """Plain Grain: an ArrayRecord file of each dataset, ``MapDataset.mix``, and worker processes."""

    @staticmethod
    def make_copy(request: Request) -> None:
        """Write a file for each dataset."""
        for store_path, pair_numbers in request.stores(".arrayrecord"):
            write_array_record(store_path, map(request.pairs.record, pair_numbers))

    @staticmethod
    @contextmanager
    def open_batches(request: Request) -> Iterator[Iterator[Any]]:
        """Give batches of mixed pairs, each dataset shuffled again in every epoch."""
        import grain

        datasets = []
        for number, (store_path, _) in enumerate(request.stores(".arrayrecord")):
            source = grain.sources.ArrayRecordDataSource(store_path)
            records = grain.MapDataset.source(source).seed(request.seed + number)
            datasets.append((records.shuffle() if request.order == "shuffled" else records).repeat())
        mixed = grain.MapDataset.mix(datasets, request.pairs.weights).map(Decoder(request))
        with grain_batches(mixed, request) as batches:
            yield batches


class Mosaicml:
    """MosaicML Streaming: an MDS folder and a ``Stream`` with its proportion for each dataset, ``StreamingDataset``."""

    @staticmethod
    def make_copy(request: Request) -> None:
        """Write a folder for each dataset, not compressed."""
        import_torchvision()
        writer_of = import_module("streaming").MDSWriter
        for store_path, pair_numbers in request.stores():
            with writer_of(out=store_path, columns=_MDS_COLUMNS) as writer:
                for pair_number in pair_numbers:
                    writer.write(request.pairs.pair(pair_number))

    @staticmethod
    @contextmanager
    def open_batches(request: Request) -> Iterator[Iterator[Any]]:
        """Give batches of mixed pairs, shuffled, in one epoch that is long enough."""
        import_torchvision()
        streaming = import_module("streaming")
        decode = Decoder(request)

        class Pairs(streaming.StreamingDataset):  # type: ignore[name-defined]
            def __getitem__(self, pair_number: int) -> Any:
                return decode(super().__getitem__(pair_number))

        # Shared memory that a killed process left would be an error.
        streaming.base.util.clean_stale_shared_memory()
        dataset = Pairs(
            streams=[
                streaming.Stream(local=store_path, proportion=weight)
                for (store_path, _), weight in zip(request.stores(), request.pairs.weights, strict=True)
            ],
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


class Litdata:
    """LitData: a folder of chunks of each dataset, mixed by ``CombinedStreamingDataset``."""

    @staticmethod
    def make_copy(request: Request) -> None:
        """Write a folder for each dataset with LitData's own writer, not compressed."""
        cache_of = import_module("litdata.streaming").Cache
        for store_path, pair_numbers in request.stores():
            cache = cache_of(store_path, chunk_bytes=_CHUNK_BYTES)
            for count, pair_number in enumerate(pair_numbers):
                cache[count] = request.pairs.pair(pair_number)
            cache.done()
            cache.merge()

    @staticmethod
    @contextmanager
    def open_batches(request: Request) -> Iterator[Iterator[Any]]:
        """Give batches of mixed pairs in one epoch that is long enough: each ends with a batch that is not full."""
        litdata = import_module("litdata")
        options = {"shuffle": True, "drop_last": False, "seed": request.seed, "transform": Decoder(request)}
        # Each dataset as often as the samples need it twice, because an epoch ends with the first dataset that does.
        mixed = litdata.CombinedStreamingDataset(
            [
                litdata.StreamingDataset(
                    store_path, subsample=1.0 + 2 * request.samples * weight // len(pair_numbers), **options
                )
                for (store_path, pair_numbers), weight in zip(request.stores(), request.pairs.weights, strict=True)
            ],
            seed=request.seed,
            weights=request.pairs.weights,
            iterate_over_all=False,
        )
        size = {"batch_size": request.batch_size, "num_workers": request.num_workers}
        persistent = request.num_workers > 0
        loader = litdata.StreamingDataLoader(mixed, drop_last=True, persistent_workers=persistent, **size)
        with torch_batches(loader) as batches:
            yield batches
