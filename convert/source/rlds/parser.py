"""Parser of RLDS records: one ``tf.train.Example`` becomes an episode, with its images left encoded.

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
            MalformedEpisode: Not a ``tf.train.Example``, no camera, or a count that does not fit that of the frames.
        """
        protos = parse_example(record)
        cameras = [camera for camera in self._cameras if camera.path in protos]
        frames_by_camera = {camera.path: _read_frames(camera, protos[camera.path]) for camera in cameras}
        if not frames_by_camera:
            camera_paths = " or ".join(camera.path for camera in self._cameras)
            raise MalformedEpisode(f"the record has no {camera_paths}; has it another schema than features.json?")
        first_camera = cameras[0].path
        num_steps = frames_by_camera[first_camera][0]
        for camera_path, (num_frames, _) in frames_by_camera.items():
            if num_frames != num_steps:
                raise MalformedEpisode(f"{camera_path}: {num_frames} frames, {first_camera} has {num_steps}")
        columns: dict[str, dict[str, Column]] = {"step": {}, "episode": {}}
        for feature in self._features:
            num_rows = num_steps if feature.level == "step" else 1
            columns[feature.level][feature.name] = _read_column(feature, protos, num_rows=num_rows)
        frames = [frames_by_camera.get(camera.path, (0, None))[1] for camera in self._cameras]
        return Episode(num_steps=num_steps, steps=columns["step"], episode=columns["episode"], cameras=frames)


def _read_frames(camera: Feature, proto: Any) -> tuple[int, Frames]:
    """Return the count of a camera's frames, and the frames; raw frames are decoded when they are requested."""
    if camera.kind == "image" or proto.HasField("bytes_list"):
        if proto.HasField("int64_list") or proto.HasField("float_list"):
            raise MalformedEpisode(f"{camera.path}: expected encoded images, found numbers")
        frames: Sequence[bytes] = proto.bytes_list.value
        return len(frames), frames if camera.encoding == "none" else _encoded_tensors(camera, frames)
    if proto.HasField("float_list") and np.dtype(camera.dtype).kind != "f":
        raise MalformedEpisode(f"{camera.path}: expected {camera.dtype}, found floats")
    floats = read_floats(proto.float_list, name=camera.path) if proto.HasField("float_list") else None
    num_values = count_integers(proto.int64_list, name=camera.path) if floats is None else len(floats)
    if not camera.size or num_values % camera.size:
        raise MalformedEpisode(f"{camera.path}: {num_values} values are not whole frames of {camera.shape}")
    frames_of_values = _raw_frames(camera, proto.int64_list) if floats is None else _shaped(camera, floats)
    return num_values // camera.size, frames_of_values


def _shaped(camera: Feature, values: np.ndarray) -> np.ndarray:
    """Return values as frames [n, H, W] or [n, H, W, C]."""
    return values.reshape(-1, *(dim or 0 for dim in camera.shape))


def _encoded_tensors(camera: Feature, stored_frames: Iterable[bytes]) -> Iterator[np.ndarray | CorruptFrame]:
    for stored_frame in stored_frames:
        try:
            yield _shaped(camera, _decode_tensors(camera, camera.size or 0, [stored_frame]))[0]
        except MalformedEpisode as error:
            yield CorruptFrame(str(error))


def _raw_frames(camera: Feature, number_list: Any) -> Iterator[np.ndarray | CorruptFrame]:
    frame_size = camera.size or 0
    frame, num_filled, fault = np.empty(frame_size, camera.dtype), 0, None
    for block in read_integers(number_list, name=camera.path):
        while len(block):
            values, block = block[: frame_size - num_filled], block[frame_size - num_filled :]
            frame[num_filled : num_filled + len(values)] = values
            if (frame[num_filled : num_filled + len(values)] != values).any():
                fault = CorruptFrame(f"{camera.path}: {_beyond(values, camera.dtype)}")
            num_filled += len(values)
            if num_filled == frame_size:
                yield fault or _shaped(camera, frame)[0]
                frame, num_filled, fault = np.empty(frame_size, camera.dtype), 0, None


def _read_column(feature: Feature, protos: Mapping[str, Any], *, num_rows: int) -> Column:
    num_sequences = len(feature.sequences)
    is_plain = num_sequences == 0 or (feature.level == "episode" and num_sequences == 1)
    value_key = feature.path if is_plain else f"{feature.path}/ragged_flat_values"
    if value_key not in protos:
        return absent_column(feature, num_rows)
    proto = protos[value_key]
    num_stored = len(proto.bytes_list.value)
    if feature.encoding != "none" and not num_sequences and num_stored != num_rows:
        # Checked before they inflate to a thousand times their size.
        raise MalformedEpisode(f"{feature.path}: {num_stored} stored tensors for {num_rows} steps")
    values, num_values = _values(feature, proto)
    lengths: list[np.ndarray] = []
    if not is_plain:
        for level in range(num_sequences if feature.level == "step" else num_sequences - 1):
            lengths_key = f"{feature.path}/ragged_row_lengths_{level}"
            lengths.append(np.zeros(0, np.int64))
            if lengths_key in protos:
                lengths[-1] = _integers(protos[lengths_key].int64_list, np.dtype(np.int64), lengths_key)
    if num_sequences and feature.level == "episode":
        lengths.insert(0, np.array([num_values if is_plain else len(lengths[0])], np.int64))
    expected = num_rows
    for level, row_lengths in enumerate(lengths):
        if len(row_lengths) != expected or not np.all((row_lengths >= 0) & (row_lengths < _MAX_ROWS)):
            fault = f"level {level} has {len(row_lengths)} row lengths, expected {expected} of 0 or more"
            raise MalformedEpisode(f"{feature.path}: {fault}")
        expected = int(row_lengths.sum())
    if num_values != expected:
        noun = "steps" if feature.level == "step" else "values"
        raise MalformedEpisode(f"{feature.path}: {num_values} values of shape {feature.shape} for {expected} {noun}")
    return Column(feature=feature, values=values, lengths=tuple(lengths), rows=num_rows)


def _values(feature: Feature, proto: Any) -> tuple[np.ndarray | list[str], int]:
    """Return all values, flat, and the count of values of the feature's shape, -1 if the last is incomplete."""
    size, stored_values, dtype = feature.size, proto.bytes_list.value, feature.dtype
    if size is None:
        raise MalformedEpisode(f"{feature.path}: shape {feature.shape} is not fixed; list it under leave_out")
    values: np.ndarray | list[str]
    if dtype == "string":
        values = decode_texts(stored_values)
    elif feature.encoding != "none":
        values = _decode_tensors(feature, size, stored_values)
    elif proto.HasField("float_list"):
        values = read_floats(proto.float_list, name=feature.path)
        if len(values) and np.dtype(dtype).kind != "f":
            raise MalformedEpisode(f"{feature.path}: expected {dtype}, found floats")
        values = values.astype(dtype, copy=False)
    elif len(stored_values):
        raise MalformedEpisode(f"{feature.path}: expected {dtype}, found bytes; is it encoded (zlib)?")
    else:
        values = _integers(proto.int64_list, np.dtype(dtype), feature.path)
    return values, len(values) // size if size and len(values) % size == 0 else -1


def _integers(number_list: Any, dtype: np.dtype, feature_path: str) -> np.ndarray:
    converted = [np.zeros(0, dtype)]
    for integers in read_integers(number_list, name=feature_path):
        converted.append(integers.astype(dtype))
        if dtype.kind in "iu" and (converted[-1].astype(np.int64) != integers).any():
            raise MalformedEpisode(f"{feature_path}: {_beyond(integers, dtype)}")
    return np.concatenate(converted)


def _beyond(values: np.ndarray, dtype: np.dtype | str) -> str:
    return f"values {values.min()} to {values.max()} do not fit {dtype}"


def _decode_tensors(feature: Feature, num_values: int, stored_values: Sequence[bytes]) -> np.ndarray:
    dtype = np.dtype(feature.dtype)
    num_bytes = num_values * dtype.itemsize
    tensors = []
    for content in stored_values:
        try:
            tensor = zlib.decompressobj().decompress(content, num_bytes + 1) if feature.encoding == "zlib" else content
        except zlib.error as error:
            raise MalformedEpisode(f"{feature.path}: a stored tensor does not inflate ({error})") from None
        if len(tensor) != num_bytes:
            size_text = f"{len(tensor)} bytes" if len(tensor) <= num_bytes else f"more than {num_bytes} bytes"
            fault = f"a stored tensor has {size_text}, {feature.shape} of {dtype} takes {num_bytes}"
            raise MalformedEpisode(f"{feature.path}: {fault}")
        tensors.append(tensor)
    return np.frombuffer(b"".join(tensors), dtype)


def decode_texts(values: Iterable[bytes]) -> list[str]:
    """Decode UTF-8 texts without their trailing NUL bytes, which several datasets pad with.

    >>> decode_texts([b"pick up the cup", b"open\\x00\\x00"])
    ['pick up the cup', 'open']
    """
    stored_texts = list(values)
    decoded = {text: text.rstrip(b"\0").decode("utf-8", errors="replace") for text in set(stored_texts)}
    return [decoded[stored_text] for stored_text in stored_texts]
