"""Parser of RLDS records: the bytes of one ``tf.train.Example`` become an episode, with its images left encoded.

Source of the layout: tensorflow_datasets/core/example_serializer.py. Its own numpy parser mis-shapes fixed-length
sequences inside steps and decodes nothing lazily, so only its compiled proto is used.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tensorflow_datasets.proto import tf_example_pb2

from convert.errors import MalformedEpisode
from convert.source.episode import Column, Episode, absent_column
from convert.source.features import Feature, storage_dtype

_MAX_ROWS = 1 << 31


class EpisodeParser:
    """A parser of the records of one dataset, for the frames of cameras and for other features.

    A camera is an image feature, or a raw uint8 tensor [H, W, C].
    """

    def __init__(self, cameras: Iterable[Feature], features: Iterable[Feature]) -> None:
        self._cameras = tuple(cameras)
        self._features = tuple(features)

    def parse(self, record: bytes) -> Episode:
        """Return the episode in ``record``.

        The number of steps is the number of frames of the first camera that the record has; flags such as ``is_last``
        are unset in several datasets.

        Raises:
            MalformedEpisode: Not a ``tf.train.Example``, no camera, or a feature whose count does not fit the number of
                frames.
        """
        try:
            protos = tf_example_pb2.Example.FromString(record).features.feature
        except DecodeError as error:
            raise MalformedEpisode(f"not a tf.train.Example ({error})") from None
        cameras = {camera.path: _read_frames(camera, protos) for camera in self._cameras if camera.path in protos}
        if not cameras:
            names = " or ".join(camera.path for camera in self._cameras)
            raise MalformedEpisode(f"the record has no {names}; has it another schema than features.json?")
        first, *others = cameras
        steps = len(cameras[first])
        for name in others:
            if len(cameras[name]) != steps:
                raise MalformedEpisode(f"{name}: {len(cameras[name])} frames, {first} has {steps}")
        columns: dict[str, dict[str, Column]] = {"step": {}, "episode": {}}
        for feature in self._features:
            rows = steps if feature.level == "step" else 1
            columns[feature.level][feature.name] = _read_column(feature, protos, rows=rows)
        return Episode(
            num_steps=steps,
            steps=columns["step"],
            episode=columns["episode"],
            cameras=[cameras.get(camera.path) for camera in self._cameras],
        )


def _read_frames(camera: Feature, protos: Any) -> Sequence[bytes | np.ndarray]:
    proto = protos[camera.path]
    if camera.kind == "image" or proto.HasField("bytes_list"):
        if proto.HasField("int64_list") or proto.HasField("float_list"):
            raise MalformedEpisode(f"{camera.path}: expected encoded images, found numbers")
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
        return absent_column(feature, rows)
    proto = protos[key]
    stored = len(proto.bytes_list.value)
    if feature.encoding != "none" and not depth and stored != rows:
        # Checked before they inflate to a thousand times their size.
        raise MalformedEpisode(f"{feature.path}: {stored} stored tensors for {rows} steps")
    values, count = _values(feature, proto)
    lengths: list[np.ndarray] = []
    if not plain:
        for level in range(depth if feature.level == "step" else depth - 1):
            name = f"{feature.path}/ragged_row_lengths_{level}"
            lengths.append(np.fromiter(protos[name].int64_list.value if name in protos else (), np.int64))
    if depth and feature.level == "episode":
        lengths.insert(0, np.array([count if plain else len(lengths[0])], np.int64))
    expected = rows
    for level, row_lengths in enumerate(lengths):
        sound = np.all((row_lengths >= 0) & (row_lengths < _MAX_ROWS))
        if len(row_lengths) != expected or not sound:
            raise MalformedEpisode(
                f"{feature.path}: level {level} has {len(row_lengths)} row lengths, expected {expected} of 0 or more"
            )
        expected = int(row_lengths.sum())
    if count != expected:
        what = "steps" if feature.level == "step" else "values"
        raise MalformedEpisode(f"{feature.path}: {count} values of shape {feature.shape} for {expected} {what}")
    return Column(feature=feature, values=values, lengths=tuple(lengths), rows=rows)


def _values(feature: Feature, proto: Any) -> tuple[np.ndarray | list[str], int]:
    """Return all values flat, and the count of values of the feature's shape, -1 if the last one is not complete."""
    size = feature.size
    if size is None:
        raise MalformedEpisode(f"{feature.path}: shape {feature.shape} is not fixed; list it under leave_out")
    values: np.ndarray | list[str]
    if feature.dtype == "string":
        values = decode_texts(proto.bytes_list.value)
    elif feature.encoding != "none":
        values = _decode_tensors(feature, size, proto.bytes_list.value)
    else:
        values = _numbers(feature, proto)
    return values, len(values) // size if size and len(values) % size == 0 else -1


def _numbers(feature: Feature, proto: Any) -> np.ndarray:
    """Return the numbers of a feature in its dtype (float64 as float32, which is what TFDS stores)."""
    dtype = storage_dtype(feature)
    if proto.HasField("float_list"):
        floats = _packed_floats(proto.float_list)
        if len(floats) and dtype.kind != "f":
            raise MalformedEpisode(f"{feature.path}: expected {feature.dtype}, found floats")
        return floats.astype(dtype, copy=False)
    if len(proto.bytes_list.value):
        raise MalformedEpisode(f"{feature.path}: expected {feature.dtype}, found bytes; is it encoded (zlib)?")
    found = np.fromiter(proto.int64_list.value, np.int64, count=len(proto.int64_list.value))
    values = found.astype(dtype)
    if dtype.kind in "iu" and (values.astype(np.int64) != found).any():
        raise MalformedEpisode(f"{feature.path}: values {found.min()} to {found.max()} do not fit {feature.dtype}")
    return values


def _packed_floats(floats: Any) -> np.ndarray:
    """Return a FloatList as float32, from its wire form of one packed field: much faster than item by item."""
    count = len(floats.value)
    if not count:
        return np.zeros(0, np.float32)
    packed = floats.SerializeToString()
    start = 1
    while packed[start] & 0x80:
        start += 1
    return np.frombuffer(packed, "<f4", count=count, offset=start + 1)


def _decode_tensors(feature: Feature, size: int, stored: Sequence[bytes]) -> np.ndarray:
    dtype = np.dtype(feature.dtype)
    expected = size * dtype.itemsize
    parts = []
    for data in stored:
        try:
            part = zlib.decompressobj().decompress(data, expected + 1) if feature.encoding == "zlib" else data
        except zlib.error as error:
            raise MalformedEpisode(f"{feature.path}: a stored tensor does not inflate ({error})") from None
        if len(part) != expected:
            found = f"{len(part)} bytes" if len(part) <= expected else f"more than {expected} bytes"
            raise MalformedEpisode(
                f"{feature.path}: a stored tensor has {found}, {feature.shape} of {dtype} takes {expected}"
            )
        parts.append(part)
    return np.frombuffer(b"".join(parts), dtype).astype(storage_dtype(feature), copy=False)


def decode_texts(stored: Iterable[bytes]) -> list[str]:
    """Decode UTF-8 texts without their trailing NUL bytes, which several datasets pad with.

    >>> decode_texts([b"pick up the cup", b"open\\x00\\x00"])
    ['pick up the cup', 'open']
    """
    items = list(stored)
    texts = {data: data.rstrip(b"\0").decode("utf-8", errors="replace") for data in set(items)}
    return [texts[data] for data in items]
