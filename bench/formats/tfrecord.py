"""TFRecord files read by tf.data, which decodes with ``tf.io.decode_jpeg`` to the same pixels as simplejpeg."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.peers.protocol import Request, serve
from convert.sample.record import SampleColumn, encode_example
from convert.source.rlds.tfrecord import encode_tfrecord

_SHARD_PAIRS = 1000
_BUFFER = 1000


def make_copy(request: Request) -> None:
    """Write files of at most 1,000 neighbouring pairs, at least one for each worker."""
    count = len(request.pairs)
    shards = min(count, max(1, request.num_workers, -(-count // _SHARD_PAIRS)))
    for shard in range(shards):
        with (request.copy / f"{shard:05d}.tfrecord").open("wb") as file:
            for place in range(shard * count // shards, (shard + 1) * count // shards):
                pair = request.pairs.pair(place)
                frames = SampleColumn(values=[pair["first"], pair["second"]])
                file.write(encode_tfrecord(encode_example({"frames": frames})))


@contextmanager
def open_batches(request: Request) -> Iterator[Iterator[Any]]:
    """Give batches of pairs; workers are threads, and one thread without parallel calls if there are none."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    calls = request.num_workers or None
    paths = sorted(str(path) for path in request.copy.glob("*.tfrecord"))
    if request.shuffled:
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


if __name__ == "__main__":
    sys.exit(serve(open_batches, make_copy))
