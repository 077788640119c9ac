"""RLDS records: the bytes of one ``tf.train.Example`` become an episode, with its images left encoded.

Source of the layout: tensorflow_datasets/core/example_serializer.py. Its own numpy parser mis-shapes fixed-length
sequences inside steps and decodes nothing lazily, so only its compiled proto is used.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tensorflow_datasets.proto import tf_example_pb2

from convert.errors import MalformedEpisode
from convert.source.features import Feature

_MAX_ROWS = 1 << 31
_MAX_INFLATED = 4 << 30
"""Bytes of one feature of one episode; depth images of 1,000 steps are 1.2 GB."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """The values of one feature in one episode.

    values: all numbers, flat and row-major, in the feature's dtype, or a list of str; None where the episode has no
    such feature. lengths: for each sequence level around the value, outermost first, how many items each row has.
    rows: steps, or 1 for an episode feature.
    """

    feature: Feature
    values: np.ndarray | list[str] | None
    lengths: tuple[np.ndarray, ...]
    rows: int


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One episode, images still encoded.

    frames: one entry a step; bytes as stored, or a uint8 array [H, W, C] for raw tensors. steps, episode: columns by
    name (``Feature.name``).
    """

    num_steps: int
    frames: Sequence[bytes | np.ndarray]
    steps: Mapping[str, Column]
    episode: Mapping[str, Column]


class EpisodeParser:
    """Parses the records of one dataset: the frames of one camera and the chosen other features."""

    def __init__(self, camera: Feature, features: Iterable[Feature]) -> None:
        """``camera``: the image feature (or raw uint8 tensor [H, W, C]) to keep. ``features``: what else to keep."""
        self._camera = camera
        self._features = tuple(features)

    def parse(self, record: bytes) -> Episode:
        """Return the episode in ``record``.

        The number of steps is the number of frames; flags such as ``is_last`` are not trusted, because they are unset
        in several datasets.

        Raises:
            MalformedEpisode: not a ``tf.train.Example``, or a feature whose count does not fit the number of frames.
        """
        try:
            protos = tf_example_pb2.Example.FromString(record).features.feature
        except DecodeError as error:
            raise MalformedEpisode(f"not a tf.train.Example ({error})") from None
        frames = _read_frames(self._camera, protos)
        steps: dict[str, Column] = {}
        episode: dict[str, Column] = {}
        for feature in self._features:
            if feature.level == "step":
                steps[feature.name] = _read_column(feature, protos, rows=len(frames))
            else:
                episode[feature.name] = _read_column(feature, protos, rows=1)
        return Episode(num_steps=len(frames), frames=frames, steps=steps, episode=episode)


def _read_frames(camera: Feature, protos: Any) -> Sequence[bytes | np.ndarray]:
    if camera.path not in protos:
        raise MalformedEpisode(f"the record has no {camera.path}; has it another schema than features.json?")
    proto = protos[camera.path]
    if camera.kind == "image" or proto.HasField("bytes_list"):
        if proto.HasField("int64_list") or proto.HasField("float_list"):
            raise MalformedEpisode(f"{camera.path}: expected encoded images, found numbers")
        # Each frame is looked at once, so a list of copies would only cost memory.
        frames: Sequence[bytes] = proto.bytes_list.value
        return frames
    values = _numbers(camera, proto)
    size = camera.size or 0
    if not size or len(values) % size:
        raise MalformedEpisode(f"{camera.path}: {len(values)} values are not whole frames of {camera.shape}")
    return list(values.reshape(-1, *(dim or 0 for dim in camera.shape)))


def _read_column(feature: Feature, protos: Any, *, rows: int) -> Column:
    depth = len(feature.sequences)
    plain = depth == 0 or (feature.level == "episode" and depth == 1)
    key = feature.path if plain else f"{feature.path}/ragged_flat_values"
    if key not in protos:
        none = tuple(np.zeros(rows if level == 0 else 0, np.int64) for level in range(depth))
        return Column(feature=feature, values=None, lengths=none, rows=rows)
    lengths: list[np.ndarray] = []
    proto = protos[key]
    if feature.encoding != "none" and not depth and len(proto.bytes_list.value) != rows:
        # Before they inflate: each may be a thousand times as long then.
        raise MalformedEpisode(f"{feature.path}: {len(proto.bytes_list.value)} stored tensors for {rows} steps")
    values, count = _values(feature, proto)
    if depth and plain:
        lengths = [np.array([count], np.int64)]
    elif depth:
        stored = depth if feature.level == "step" else depth - 1
        for level in range(stored):
            name = f"{feature.path}/ragged_row_lengths_{level}"
            stored_lengths = protos[name].int64_list.value if name in protos else ()
            lengths.append(np.fromiter(stored_lengths, np.int64))
        if feature.level == "episode":
            lengths.insert(0, np.array([len(lengths[0])], np.int64))
    expected = rows
    for level, row_lengths in enumerate(lengths):
        if len(row_lengths) != expected or (
            len(row_lengths) and not 0 <= row_lengths.min() <= row_lengths.max() < _MAX_ROWS
        ):
            raise MalformedEpisode(
                f"{feature.path}: level {level} has {len(row_lengths)} row lengths, expected {expected} of 0 or more"
            )
        expected = int(row_lengths.sum())
    if count != expected:
        what = "steps" if feature.level == "step" else "values"
        raise MalformedEpisode(f"{feature.path}: {count} values of shape {feature.shape} for {expected} {what}")
    return Column(feature=feature, values=values, lengths=tuple(lengths), rows=rows)


def _values(feature: Feature, proto: Any) -> tuple[np.ndarray | list[str], int]:
    """Return all values flat, and how many whole values (of the feature's shape) they are."""
    if feature.dtype == "string":
        texts = decode_texts(proto.bytes_list.value)
        size = feature.size or 1
        return texts, len(texts) // size if len(texts) % size == 0 else -1
    if feature.encoding != "none":
        return _decode_tensors(feature, proto.bytes_list.value)
    numbers = _numbers(feature, proto)
    size = _fixed_size(feature)
    return numbers, len(numbers) // size if size and len(numbers) % size == 0 else -1


def _fixed_size(feature: Feature) -> int:
    if feature.size is None:
        raise MalformedEpisode(f"{feature.path}: shape {feature.shape} is not fixed; list it under leave_out")
    return feature.size


def _numbers(feature: Feature, proto: Any) -> np.ndarray:
    """Return the numbers of a feature in its dtype (float64 as float32, which is what TFDS stores)."""
    if proto.HasField("float_list"):
        found: np.ndarray = _packed_floats(proto.float_list)
    elif proto.HasField("int64_list"):
        found = np.fromiter(proto.int64_list.value, np.int64, count=len(proto.int64_list.value))
    elif proto.HasField("bytes_list") and len(proto.bytes_list.value):
        raise MalformedEpisode(f"{feature.path}: expected {feature.dtype}, found bytes; is it encoded (zlib)?")
    else:
        found = np.zeros(0, np.float32)
    dtype = storage_dtype(feature)
    if found.dtype.kind == "f" and dtype.kind != "f":
        if len(found):
            raise MalformedEpisode(f"{feature.path}: expected {feature.dtype}, found floats")
    elif dtype == np.uint64:
        return found.view(np.uint64) if found.dtype == np.int64 else found.astype(np.uint64)
    elif dtype.kind in "iu" and len(found):
        info = np.iinfo(dtype)
        if found.min() < info.min or found.max() > info.max:
            raise MalformedEpisode(f"{feature.path}: values {found.min()} to {found.max()} do not fit {feature.dtype}")
    return found.astype(dtype, copy=False)


def _packed_floats(floats: Any) -> np.ndarray:
    """Return a FloatList as float32. Its wire form is one packed field, 50 times faster to copy than item by item."""
    count = len(floats.value)
    if not count:
        return np.zeros(0, np.float32)
    packed = floats.SerializeToString()
    start = 1
    while packed[start] & 0x80:
        start += 1
    return np.frombuffer(packed, "<f4", count=count, offset=start + 1)


def _decode_tensors(feature: Feature, stored: Sequence[bytes]) -> tuple[np.ndarray, int]:
    dtype = np.dtype(feature.dtype)
    expected = _fixed_size(feature) * dtype.itemsize
    if feature.encoding == "zlib" and expected * len(stored) > _MAX_INFLATED:
        raise MalformedEpisode(
            f"{feature.path}: {len(stored)} tensors of {feature.shape} of {dtype} inflate to "
            f"{expected * len(stored):,} bytes, more than {_MAX_INFLATED:,}; list it under leave_out"
        )
    parts = []
    for data in stored:
        if feature.encoding == "zlib":
            data = _inflate(feature, data, limit=expected + 1)
        if len(data) != expected:
            found = f"{len(data)} bytes" if len(data) <= expected else f"more than {expected} bytes"
            raise MalformedEpisode(
                f"{feature.path}: a stored tensor has {found}, {feature.shape} of {dtype} takes {expected}"
            )
        parts.append(np.frombuffer(data, dtype))
    joined = np.concatenate(parts) if parts else np.zeros(0, dtype)
    return joined.astype(storage_dtype(feature), copy=False), len(parts)


def _inflate(feature: Feature, data: bytes, *, limit: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, limit)
    except zlib.error as error:
        raise MalformedEpisode(f"{feature.path}: a stored tensor does not inflate ({error})") from None


def storage_dtype(feature: Feature) -> np.dtype:
    """Return the dtype of a feature's column.

    float64 becomes float32 unless it is stored as encoded bytes, because a record holds floats in 32 bits anyway.
    """
    dtype = np.dtype(feature.dtype)
    return np.dtype(np.float32) if dtype == np.float64 and feature.encoding == "none" else dtype


def decode_texts(stored: Iterable[bytes]) -> list[str]:
    """Decode UTF-8 texts; trailing NUL bytes, padding in several datasets, are dropped.

    >>> decode_texts([b"pick up the cup", b"open\\x00\\x00"])
    ['pick up the cup', 'open']
    """
    known: dict[bytes, str] = {}
    texts = []
    for data in stored:
        if data not in known:
            known[data] = data.rstrip(b"\0").decode("utf-8", errors="replace")
        texts.append(known[data])
    return texts


def decode_codes(values: np.ndarray) -> str:
    """Decode a text that is stored as one UTF-8 byte a number, zero padded.

    >>> decode_codes(np.array([99, 97, 102, 195, 169, 0, 0], np.int32))
    'café'
    """
    return values.astype(np.uint8).tobytes().split(b"\0", 1)[0].decode("utf-8", errors="replace")
