"""Peers of this repository's environment: the converted root itself, and the formats of the study ``formats``."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import stream
from bench.peers.loaders.torch import MapStyle
from bench.peers.protocol import Request
from bench.synthetic import convert_shards, encode_episode, finish, write_source
from convert.sample.record import encode_example
from convert.source.rlds.record_files import encode_tfrecord
from stream.loader.iterator import LoaderIterator


def _batches_of(request: Request, root: Path, mixture: Any, **options: Any) -> closing[LoaderIterator]:
    size: dict[str, Any] = {"batch_size": request.batch_size, "num_workers": request.num_workers, "seed": request.seed}
    shuffle = "global" if request.order == "shuffled" else "none"
    return closing(iter(stream.make_loader(root, mixture, shuffle=shuffle, **size, **options)))


_FRAMES_ONLY: dict[str, Any] = {"action": None, "state": None, "language": None}
"""Arguments of ``make_loader`` for batches without metadata."""


class Ours:
    """The converted root itself; without metadata batches have the dataset's number.

    ``loader`` in ``about.json`` has further arguments of ``make_loader``.
    """

    @staticmethod
    def open_batches(request: Request) -> closing[LoaderIterator]:
        """Return the loader's batches."""
        about = request.pairs.about
        options = about.get("loader", {}) | ({} if request.full else _FRAMES_ONLY)
        return _batches_of(request, about["root"], about["mixture"], split=about["split"], **options)


_FOLDER_FILES = 1000
_SHARD_PAIRS = 1000
_BUFFER = 1000
_DATASET = "study"


class Jpeg(MapStyle):
    """Loose JPEG files: two files a pair and a CSV file of their names, read by PyTorch's DataLoader."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        with (request.copy / "index.csv").open(newline="") as file:
            self._rows = list(csv.DictReader(file))

    def __getitem__(self, pair_number: int) -> dict[str, Any]:
        pair = {frame: (self.copy / name).read_bytes() for frame, name in self._rows[pair_number].items()}
        return self.decode({**pair, "dataset": 0})

    @staticmethod
    def make_copy(request: Request) -> None:
        """Write the files, at most 1,000 a folder, and ``index.csv``."""
        with (request.copy / "index.csv").open("w", newline="") as file:
            index = csv.writer(file)
            index.writerow(("first", "second"))
            for number in range(len(request.pairs)):
                pair = request.pairs.pair(number)
                folder = f"{2 * number // _FOLDER_FILES:05d}"
                (request.copy / folder).mkdir(exist_ok=True)
                names = [f"{folder}/{number:08d}-{frame}.jpg" for frame in (0, 1)]
                for frame_file, frame in zip(names, ("first", "second"), strict=True):
                    (request.copy / frame_file).write_bytes(pair[frame])
                index.writerow(names)


class Tfrecord:
    """TFRecord files read by tf.data, which decodes with ``tf.io.decode_jpeg`` to the same pixels as simplejpeg."""

    @staticmethod
    def make_copy(request: Request) -> None:
        """Write files of at most 1,000 neighbouring pairs, at least one for each worker."""
        for shard, pair_numbers in enumerate(request.divide(_SHARD_PAIRS)):
            with (request.copy / f"{shard:05d}.tfrecord").open("wb") as file:
                for pair in map(request.pairs.pair, pair_numbers):
                    file.write(encode_tfrecord(encode_example({"frames": [pair["first"], pair["second"]]})))

    @staticmethod
    @contextmanager
    def open_batches(request: Request) -> Iterator[Iterator[Any]]:
        """Give batches of pairs; workers are threads, and one thread without parallel calls if there are none."""
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
        calls = request.num_workers or None
        paths = sorted(str(path) for path in request.copy.glob("*.tfrecord"))
        if request.order == "shuffled":
            records = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed=request.seed)
            records = records.interleave(tf.data.TFRecordDataset, num_parallel_calls=calls, deterministic=False)
            records = records.shuffle(_BUFFER, seed=request.seed)
        else:
            records = tf.data.TFRecordDataset(paths)

        def decode(record: Any) -> Any:
            feature = tf.io.FixedLenFeature([2], tf.string)
            frames = tf.io.parse_single_example(record, {"frames": feature})["frames"]
            pixels = [tf.io.decode_jpeg(frames[i], channels=3, dct_method="INTEGER_ACCURATE") for i in range(2)]
            return {"frames": tf.ensure_shape(tf.stack(pixels), (2, *request.pairs.shape, 3)), "dataset": 0}

        batches = records.repeat().map(decode, num_parallel_calls=calls).batch(request.batch_size, drop_remainder=True)
        if request.num_workers:
            batches = batches.prefetch(2)
        options = tf.data.Options()
        options.threading.private_threadpool_size = max(1, request.num_workers)
        yield iter(batches.with_options(options).as_numpy_iterator())


class Converted:
    """The format of this repository, read by ``stream.make_loader``; each pair is an episode of two steps."""

    @staticmethod
    def make_copy(request: Request) -> None:
        """Convert the pairs, frames as they are, at most 1,000 a shard and a shard for each worker."""
        with TemporaryDirectory(dir=request.copy) as folder:
            shards = []
            for pair_numbers in request.divide(_SHARD_PAIRS):
                pairs = map(request.pairs.pair, pair_numbers)
                shards.append([encode_episode(0, [pair["first"], pair["second"]], instruction="") for pair in pairs])
            source = write_source(
                Path(folder, "source"), shards, name=_DATASET, shape=request.pairs.shape, encoding="jpeg", offset=1
            )
            finish(convert_shards(source, request.copy))

    @staticmethod
    def open_batches(request: Request) -> closing[LoaderIterator]:
        """Return the loader's batches; without workers it decodes in threads."""
        return _batches_of(request, request.copy, {_DATASET: 1}, split="train", **_FRAMES_ONLY)
