"""Batches of each format, made as its library's documentation says to: uint8 [b, 2, H, W, 3].

The libraries are imported only by the reader that needs them. All decode with simplejpeg, except tf.data, which has a
decoder of its own. Without a number of passes the batches have no end and all have ``batch_size`` rows.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench.formats.frames import PairFile, decode_pair
from bench.formats.stores import DATASET, FORMATS, SPLIT, Store, shard_paths
from stream.format.names import frame_views

ORDERS = ("sequential", "shuffled")
SHUFFLE_BUFFER = 1000
"""Samples that WebDataset and tf.data shuffle among."""

_TORCH = "torch DataLoader, batch_sampler without end; 0 workers: in the trainer's thread"

NOTES = {
    "jpeg": f"two files a pair, {_TORCH}; shuffled over all pairs",
    "webdataset": "tar shards, WebLoader; 0 workers: in the trainer's thread; shuffled: the order of shards, and a "
    f"buffer of {SHUFFLE_BUFFER} pairs in each worker, not all pairs",
    "tfrecord": "tf.data decodes with tf.io.decode_jpeg (INTEGER_ACCURATE, the same pixels), not simplejpeg; workers "
    "are threads of this process, 0: one, without parallel calls; shuffled: the order of files, and a buffer of "
    f"{SHUFFLE_BUFFER} pairs, not all pairs",
    "lmdb": f"one environment, opened in each worker, {_TORCH}; shuffled over all pairs",
    "arrayrecord": "group_size:1, grain.MapDataset with mp_prefetch and default ReadOptions (16 threads in each "
    "process, also with 0 workers); shuffled over all pairs",
    "ours": "stream.make_loader with metadata='none'; 0 workers: as many threads as processors, 2 at least; shuffled "
    "over all pairs",
}
"""What to know of each row beside its numbers."""

SHUFFLES_ALL = ("jpeg", "lmdb", "arrayrecord", "ours")
"""Formats whose reader shuffles over all pairs, not within a buffer."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a store is read. passes: how often all pairs are given before the end, None for without end."""

    batch_size: int
    workers: int
    order: str
    passes: int | None = None
    seed: int = 0

    @property
    def shuffled(self) -> bool:
        """Whether the order is shuffled."""
        return self.order == "shuffled"


def batches_under_way(workers: int) -> int:
    """How many batches may be ready or half done while the trainer takes one: two a worker is torch's default."""
    return 2 * workers + 2


def import_libraries(name: str) -> None:
    """Import what a reader needs; also settles what those libraries want to be settled once in a process.

    Raises:
        ImportError: a library is missing.
    """
    for module in _IMPORTS[name]:
        import_module(module)
    if name in ("arrayrecord", "ours"):
        # Grain's worker processes read flags, which belong to programs started by absl.app.run.
        flags = import_module("absl.flags").FLAGS
        if not flags.is_parsed():
            flags.mark_as_parsed()
    if name == "tfrecord":
        # Pixels are decoded by the CPU; no memory of a GPU is taken.
        import_module("tensorflow").config.set_visible_devices([], "GPU")


@contextlib.contextmanager
def open_batches(store: Store, reading: Reading) -> Iterator[Iterator[Any]]:
    """Iterate over the batches of a store: arrays or tensors, uint8 [b, 2, H, W, 3].

    At the end of the block the workers are ended, as far as the library lets them be.
    """
    batches = _READERS[store.format](store, reading)
    try:
        yield batches
    finally:
        batches.close()


def read_pair_file(pairs: PairFile) -> Iterator[np.ndarray]:
    """The pixels of each pair of the source, uint8 [2, H, W, 3]."""
    for pair in pairs:
        yield decode_pair(pair, pairs.height, pairs.width)


class _Indices:
    """Lists of ``batch_size`` indices, epoch after epoch; a batch may reach over the end of an epoch."""

    def __init__(self, pairs: int, reading: Reading) -> None:
        self._pairs = pairs
        self._reading = reading

    def __iter__(self) -> Iterator[list[int]]:
        every = self._every()
        while batch := list(itertools.islice(every, self._reading.batch_size)):
            yield batch

    def _every(self) -> Iterator[int]:
        random = np.random.default_rng(self._reading.seed)
        passes = itertools.count() if self._reading.passes is None else range(self._reading.passes)
        for _ in passes:
            yield from (random.permutation(self._pairs) if self._reading.shuffled else np.arange(self._pairs)).tolist()


class _JpegFiles:
    """Map-style dataset of loose files."""

    def __init__(self, store: Store) -> None:
        self._store = store
        with Path(store.folder, "index.csv").open(newline="") as file:
            self._rows = [(row["first"], row["last"]) for row in csv.DictReader(file)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> np.ndarray:
        frames = (Path(self._store.folder, name).read_bytes() for name in self._rows[index])
        return decode_pair(frames, self._store.height, self._store.width)


class _Lmdb:
    """Map-style dataset of an LMDB environment, opened in the process that reads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._transaction: Any = None

    def __len__(self) -> int:
        return self._store.pairs

    def __getitem__(self, index: int) -> np.ndarray:
        if self._transaction is None:
            lmdb = import_module("lmdb")
            environment = lmdb.open(self._store.folder, readonly=True, lock=False, readahead=False, meminit=False)
            self._transaction = environment.begin(buffers=True)
        record = self._transaction.get(f"{index:08d}".encode())
        return decode_pair(frame_views(record), self._store.height, self._store.width)


def _read_torch(dataset: Any, store: Store, reading: Reading) -> Generator[Any]:
    loader_class = import_module("torch.utils.data").DataLoader
    yield from loader_class(dataset, batch_sampler=_Indices(store.pairs, reading), num_workers=reading.workers)


def _read_jpeg(store: Store, reading: Reading) -> Generator[Any]:
    return _read_torch(_JpegFiles(store), store, reading)


def _read_lmdb(store: Store, reading: Reading) -> Generator[Any]:
    return _read_torch(_Lmdb(store), store, reading)


class _DecodeSample:
    """A sample of a tar file becomes pixels; a class, so that worker processes can be given it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, sample: dict[str, Any]) -> tuple[np.ndarray]:
        return (decode_pair((sample["0.jpg"], sample["1.jpg"]), self._store.height, self._store.width),)


def _read_webdataset(store: Store, reading: Reading) -> Generator[Any]:
    wds = import_module("webdataset")
    paths = shard_paths(store, ".tar")
    shards = len(paths) if reading.shuffled else False
    samples = wds.WebDataset(paths, shardshuffle=shards, seed=reading.seed)
    samples = samples.repeat(reading.passes) if reading.passes else samples.repeat()
    # The end of an epoch is no end of a batch: batches are made of the repeated samples.
    stages: list[Any] = [samples]
    if reading.shuffled:
        stages.append(wds.shuffle(SHUFFLE_BUFFER, seed=reading.seed))
    pipeline = wds.DataPipeline(*stages, wds.map(_DecodeSample(store)), wds.batched(reading.batch_size))
    for (batch,) in wds.WebLoader(pipeline, batch_size=None, num_workers=reading.workers):
        yield batch


def _read_tfrecord(store: Store, reading: Reading) -> Generator[Any]:
    tf = import_module("tensorflow")
    calls = reading.workers or None
    paths = shard_paths(store, ".tfrecord")
    if reading.shuffled:
        records = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed=reading.seed)
        records = records.interleave(tf.data.TFRecordDataset, num_parallel_calls=calls, deterministic=False)
        records = records.shuffle(SHUFFLE_BUFFER, seed=reading.seed)
    else:
        records = tf.data.TFRecordDataset(paths)

    def decode(record: Any) -> Any:
        feature = tf.io.FixedLenFeature([2], tf.string)
        frames = tf.io.parse_single_example(record, {"frames": feature})["frames"]
        pixels = [tf.io.decode_jpeg(frames[i], channels=3, dct_method="INTEGER_ACCURATE") for i in range(2)]
        return tf.ensure_shape(tf.stack(pixels), (2, store.height, store.width, 3))

    batches = records.repeat(reading.passes).map(decode, num_parallel_calls=calls).batch(reading.batch_size)
    if reading.workers:
        batches = batches.prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = max(1, reading.workers)
    yield from batches.with_options(options).as_numpy_iterator()


class _DecodeRecord:
    """A record becomes pixels; a class, so that Grain's worker processes can be given it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, record: bytes) -> np.ndarray:
        return decode_pair(frame_views(record), self._store.height, self._store.width)


def _read_arrayrecord(store: Store, reading: Reading) -> Generator[Any]:
    grain = import_module("grain")
    records = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(shard_paths(store, ".arrayrecord")))
    if reading.shuffled:
        records = records.shuffle(seed=reading.seed)
    samples = records.repeat(reading.passes).map(_DecodeRecord(store)).to_iter_dataset()
    batches = samples.batch(reading.batch_size, drop_remainder=False)
    if reading.workers:
        batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=reading.workers))
    iterator = iter(batches)
    try:
        yield from iterator
    finally:
        iterator.close()


def _read_ours(store: Store, reading: Reading) -> Generator[Any]:
    stream = import_module("stream")
    rows = None if reading.passes is None else reading.passes * store.pairs
    loader = stream.make_loader(
        store.folder,
        {DATASET: 1},
        batch_size=reading.batch_size,
        split=SPLIT,
        seed=reading.seed,
        num_workers=reading.workers,
        metadata="none",
        shuffle="global" if reading.shuffled else "none",
        num_steps=None if rows is None else -(-rows // reading.batch_size),
    )
    iterator = iter(loader)
    try:
        for number, batch in enumerate(iterator):
            # Its batches have no end; of the last one of a pass the rest belongs to the next pass.
            yield batch["frames"] if rows is None else batch["frames"][: rows - number * reading.batch_size]
    finally:
        iterator.close()


_IMPORTS = {
    "jpeg": ("torch.utils.data",),
    "webdataset": ("webdataset", "torch.utils.data"),
    "tfrecord": ("tensorflow",),
    "lmdb": ("lmdb", "torch.utils.data"),
    "arrayrecord": ("grain", "absl.flags"),
    "ours": ("stream.loader.loader", "absl.flags"),
}
_READERS: dict[str, Callable[[Store, Reading], Generator[Any]]] = {
    "jpeg": _read_jpeg,
    "webdataset": _read_webdataset,
    "tfrecord": _read_tfrecord,
    "lmdb": _read_lmdb,
    "arrayrecord": _read_arrayrecord,
    "ours": _read_ours,
}
assert set(_READERS) == set(_IMPORTS) == set(NOTES) == set(FORMATS)
