"""Parser of RLDS records: the bytes of one ``tf.train.Example`` become an episode, with its images left encoded.

Source of the layout: tensorflow_datasets/core/example_serializer.py. Its own numpy parser mis-shapes fixed-length
sequences inside steps and decodes nothing lazily.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from convert.errors import CorruptFrame, MalformedEpisode
from convert.source.episode import Column, Episode, Frames, absent_column
from convert.source.features import Feature
from convert.source.rlds.example import count_integers, parse_example, read_floats, read_integers

_MAX_ROWS = 1 << 31
_NONE = np.zeros(0, np.int64)


class EpisodeParser:
    """A parser of the records of one dataset, for the frames of cameras and for other features.

    A camera is an image feature, or a raw tensor: of colours uint8 [H, W, C], of depth any numbers [H, W] or [H, W, 1].
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
        protos = parse_example(record)
        cameras = {camera.path: _read_frames(camera, protos) for camera in self._cameras if camera.path in protos}
        if not cameras:
            names = " or ".join(camera.path for camera in self._cameras)
            raise MalformedEpisode(f"the record has no {names}; has it another schema than features.json?")
        first, *others = cameras
        steps = cameras[first][0]
        for name in others:
            if cameras[name][0] != steps:
                raise MalformedEpisode(f"{name}: {cameras[name][0]} frames, {first} has {steps}")
        columns: dict[str, dict[str, Column]] = {"step": {}, "episode": {}}
        for feature in self._features:
            rows = steps if feature.level == "step" else 1
            columns[feature.level][feature.name] = _read_column(feature, protos, rows=rows)
        return Episode(
            num_steps=steps,
            steps=columns["step"],
            episode=columns["episode"],
            cameras=[cameras[each.path][1] if each.path in cameras else None for each in self._cameras],
        )


def _read_frames(camera: Feature, protos: Mapping[str, Any]) -> tuple[int, Frames]:
    """Return the count of the frames of a camera, and the frames, of which raw ones are decoded when they are taken."""
    proto = protos[camera.path]
    if camera.kind == "image" or proto.HasField("bytes_list"):
        if proto.HasField("int64_list") or proto.HasField("float_list"):
            raise MalformedEpisode(f"{camera.path}: expected encoded images, found numbers")
        frames: Sequence[bytes] = proto.bytes_list.value
        return len(frames), frames if camera.encoding == "none" else _encoded_tensors(camera, frames)
    size, floats = camera.size or 0, np.zeros(0, np.float32)
    if is_float := proto.HasField("float_list"):
        if np.dtype(camera.dtype).kind != "f":
            raise MalformedEpisode(f"{camera.path}: expected {camera.dtype}, found floats")
        floats = read_floats(proto.float_list, name=camera.path)
    count = len(floats) if is_float else count_integers(proto.int64_list, name=camera.path)
    if not size or count % size:
        raise MalformedEpisode(f"{camera.path}: {count} values are not whole frames of {camera.shape}")
    shape = [dim or 0 for dim in camera.shape]
    return count // size, floats.reshape(-1, *shape) if is_float else _raw_frames(camera, size, proto.int64_list)


def _encoded_tensors(camera: Feature, stored: Iterable[bytes]) -> Iterator[np.ndarray | CorruptFrame]:
    for data in stored:
        try:
            yield _decode_tensors(camera, camera.size or 0, [data]).reshape([dim or 0 for dim in camera.shape])
        except MalformedEpisode as error:
            yield CorruptFrame(str(error))


def _raw_frames(camera: Feature, size: int, numbers: Any) -> Iterator[np.ndarray | CorruptFrame]:
    frame, filled, fault = np.empty(size, camera.dtype), 0, None
    for block in read_integers(numbers, name=camera.path):
        while len(block):
            part, block = block[: size - filled], block[size - filled :]
            frame[filled : filled + len(part)] = part
            if (frame[filled : filled + len(part)] != part).any():
                fault = CorruptFrame(f"{camera.path}: {_beyond(part, camera.dtype)}")
            filled += len(part)
            if filled == size:
                yield fault or frame.reshape([dim or 0 for dim in camera.shape])
                frame, filled, fault = np.empty(size, camera.dtype), 0, None


def _read_column(feature: Feature, protos: Mapping[str, Any], *, rows: int) -> Column:
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
            lengths.append(_integers(protos[name].int64_list, np.dtype(np.int64), name) if name in protos else _NONE)
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
    """Return the numbers of a feature in its dtype."""
    dtype = np.dtype(feature.dtype)
    if proto.HasField("float_list"):
        floats = read_floats(proto.float_list, name=feature.path)
        if len(floats) and dtype.kind != "f":
            raise MalformedEpisode(f"{feature.path}: expected {feature.dtype}, found floats")
        return floats.astype(dtype, copy=False)
    if len(proto.bytes_list.value):
        raise MalformedEpisode(f"{feature.path}: expected {feature.dtype}, found bytes; is it encoded (zlib)?")
    return _integers(proto.int64_list, dtype, feature.path)


def _integers(numbers: Any, dtype: np.dtype, name: str) -> np.ndarray:
    parts = [np.zeros(0, dtype)]
    for found in read_integers(numbers, name=name):
        parts.append(found.astype(dtype))
        if dtype.kind in "iu" and (parts[-1].astype(np.int64) != found).any():
            raise MalformedEpisode(f"{name}: {_beyond(found, dtype)}")
    return np.concatenate(parts)


def _beyond(values: np.ndarray, dtype: np.dtype | str) -> str:
    return f"values {values.min()} to {values.max()} do not fit {dtype}"


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
    return np.frombuffer(b"".join(parts), dtype)


def decode_texts(stored: Iterable[bytes]) -> list[str]:
    """Decode UTF-8 texts without their trailing NUL bytes, which several datasets pad with.

    >>> decode_texts([b"pick up the cup", b"open\\x00\\x00"])
    ['pick up the cup', 'open']
    """
    items = list(stored)
    texts = {data: data.rstrip(b"\0").decode("utf-8", errors="replace") for data in set(items)}
    return [texts[data] for data in items]
