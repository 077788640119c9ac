"""tf.data over the RLDS source, as it is used for training today: decoding, resizing and pairing while training.

Each dataset is opened by ``tfds.builder_from_directory`` with its images left encoded. The frames t and t + offset of
an episode make a pair; pairs go through a shuffle buffer and are then decoded and resized.
``tf.data.Dataset.sample_from_datasets`` mixes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peers.protocol import Request

_BUFFER = 128


class _Source:
    """The pairs of a dataset as a ``tf.data.Dataset`` without end."""

    def __init__(self, request: Request, number: int) -> None:
        import tensorflow as tf

        self._tf = tf
        self._number, self._about, self._full = number, request.pairs.datasets[number], request.full
        self._shape = request.pairs.shape
        self._window, self._action, self._state = request.pairs.about["vector"]
        self._seed = request.seed + number
        self._folder = Path(str(request.source)) / self._about["source"]
        self._features: Any = None

    def open(self) -> Any:
        """Return the dataset."""
        import tensorflow_datasets as tfds

        builder = tfds.builder_from_directory(str(self._folder))
        self._features = builder.info.features["steps"].feature
        # One thread a dataset: with 29 datasets, more threads would only add memory.
        reading = tfds.ReadConfig(interleave_cycle_length=1, shuffle_seed=self._seed, try_autocache=False)
        episodes = builder.as_dataset(
            split=self._about["split"],
            shuffle_files=False,
            decoders={"steps": tfds.decode.SkipDecoding()},
            read_config=reading,
        )
        episodes = episodes.enumerate().repeat()
        pairs = episodes.flat_map(self._pairs)
        return pairs.shuffle(_BUFFER, seed=self._seed)

    def sample(self, pair: dict[str, Any]) -> dict[str, Any]:
        """Decode and resize a pair."""
        frames = self._tf.stack([self._pixels(pair.pop("first")), self._pixels(pair.pop("second"))])
        return {"frames": frames, **pair}

    def _pixels(self, frame: Any) -> Any:
        tf = self._tf
        if frame.dtype == tf.string:
            # One operation decodes PNG and JPEG; without animations the result has three dimensions.
            frame = tf.io.decode_image(frame, channels=3, expand_animations=False)
            frame.set_shape((None, None, 3))
        if self._about["channels"] == "bgr":
            frame = frame[..., ::-1]
        frame = tf.image.resize(frame, self._shape, antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(frame), 0, 255), tf.uint8)

    def _pairs(self, episode: Any, content: dict[str, Any]) -> Any:
        tf, offset = self._tf, int(self._about["offset"])
        steps = content["steps"]
        frames = _find(steps, self._about["camera"])
        count = tf.shape(frames)[0]
        pairs = tf.maximum(count - offset, 0)
        columns = {
            "first": frames[:pairs],
            "second": frames[count - pairs :],
            "dataset": tf.fill([pairs], self._number),
        }
        if self._full:
            actions = self._vector(steps, "action", self._action, count)
            # [T, W, A]: the actions of each step up to the end of its pair, zeros after it.
            action_steps = tf.range(pairs)[:, None] + tf.range(self._window)[None, :]
            windows = tf.gather(actions, tf.minimum(action_steps, count - 1))
            real = tf.cast(tf.range(self._window) < offset, tf.float32)
            columns |= {
                "action": windows * real[None, :, None],
                "state": self._vector(steps, "state", self._state, count)[:pairs],
                "language": tf.repeat(self._language(content), pairs),
                "episode": tf.fill([pairs], episode),
                "step": tf.range(pairs, dtype=tf.int32),
            }
        return tf.data.Dataset.from_tensor_slices(columns)

    def _vector(self, steps: dict[str, Any], vector_name: str, width: int, count: Any) -> Any:
        tf = self._tf
        parts, end = [], 0
        for column, chosen, start, stop in self._about[vector_name]:
            values = tf.reshape(tf.cast(self._numbers(steps, column), tf.float32), [count, -1])
            if chosen is not None:
                values = tf.gather(values, chosen, axis=1)
            parts.append(tf.ensure_shape(values, (None, stop - start)))
            end = stop
        parts.append(tf.zeros([count, width - end], tf.float32))
        return tf.concat(parts, axis=1)

    def _numbers(self, steps: dict[str, Any], column: str) -> Any:
        """Return the values of a column, decoded if they are stored compressed."""
        values = _find(steps, column)
        return values if values.dtype != self._tf.string else _find(self._features, column).decode_batch_example(values)

    def _language(self, content: dict[str, Any]) -> Any:
        """Return the instruction of the first step, an empty text for other types."""
        tf = self._tf
        path = self._about["language"][0] if self._about["language"] else None
        values = None if path is None else _find(content if path.startswith("/") else content["steps"], path)
        if values is None or not hasattr(values, "dtype"):
            return tf.constant([""])
        if values.dtype == tf.int32 and len(values.shape) == 2:
            # UTF-8 bytes as numbers, zeros after them.
            characters = tf.constant([bytes([byte_value]) for byte_value in range(256)])
            return tf.strings.reduce_join(tf.gather(characters, tf.boolean_mask(values[0], values[0] > 0)))[None]
        return tf.reshape(values, [-1])[:1] if values.dtype == tf.string else tf.constant([""])


def _find(content: Any, path: str) -> Any:
    """Return the values at a path; names of features may contain slashes."""
    path = path.strip("/")
    if path in content:
        return content[path]
    for feature_name in sorted(content, key=len, reverse=True):
        if path.startswith(f"{feature_name}/"):
            return _find(content[feature_name], path[len(feature_name) + 1 :])
    raise KeyError(f"no feature {path}; available: {', '.join(content)}")


class Tfdata:
    """tf.data with as many threads as other peers have workers."""

    @staticmethod
    @contextmanager
    def open_batches(request: Request) -> Iterator[Iterator[Any]]:
        """Give batches of mixed pairs."""
        import tensorflow as tf

        tf.random.set_seed(request.seed)
        sources = [_Source(request, number) for number in range(len(request.pairs.datasets))]
        # Decoded before mixing, because datasets store frames differently (JPEG, PNG, raw, order of colours).
        datasets = [source.open().map(source.sample, num_parallel_calls=1) for source in sources]
        mixed = tf.data.Dataset.sample_from_datasets(
            datasets, request.pairs.weights, seed=request.seed, stop_on_empty_dataset=True
        )
        options = tf.data.Options()
        options.threading.private_threadpool_size = max(1, request.num_workers)
        batches = mixed.batch(request.batch_size, drop_remainder=True).prefetch(2).with_options(options)
        yield iter(batches.as_numpy_iterator())
