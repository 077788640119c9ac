"""Episodes as plain values by name, their features, and their check against the features of the dataset."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from convert.errors import CorruptFrame, DamagedEpisode, MalformedEpisode
from convert.source.episode import Column, Episode, Frames, absent_column
from convert.source.features import STEPS, Feature
from convert.source.protocol import ReadRequest
from stream.format.names import MAX_PIXELS

_UNREADABLE = (OSError, RuntimeError, ValueError, MemoryError)
"""Errors of arrays on the disk for damage."""
_BLOCK = 8 << 20
"""Bytes of pictures that are read at once from an array on the disk."""
_MOST_BYTES = 4 << 30
"""Most bytes of a feature in one episode; pictures have a separate limit."""
MAX_STEPS = 10_000_000
"""Most steps of an episode: a file may claim any number."""


@dataclass(frozen=True)
class Pictures:
    """Pictures of an episode that are read when they are requested, one after the other.

    Attributes:
        shape: Count of pictures and shape of each, None where unknown before decoding.
        read: Returns their iterator: encoded pictures, pixels, or reasons why there is none.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype
    read: Callable[[], Frames]

    def __len__(self) -> int:
        return self.shape[0] or 0


class PlainEpisode(NamedTuple):
    """One episode.

    Attributes:
        steps: By name, a value for each step: an array [n, ...] or what has its shape, dtype and slices (a dataset of
            h5py, an array of zarr), a list of encoded pictures (JPEG, PNG, WebP), texts or numbers, or ``Pictures``.
            Mappings may be nested; the names are then joined with a slash.
        episode: Values of the whole episode by name: numbers, arrays, texts.
    """

    steps: Mapping[str, Any]
    episode: Mapping[str, Any]


def infer_features(episode: PlainEpisode) -> dict[str, Feature]:
    """Return the features of an episode by path; none of an episode without steps.

    Arrays of uint8 [n, H, W, 3] are pictures (also with 1 or 4 channels), as are lists of encoded pictures. A value of
    no such type, of no steps, of a shape that varies, or with pictures of over 64 megapixels raises MalformedEpisode.
    """
    counts = [_count(values, name) for name, values in episode.steps.items()]
    if not any(counts):
        return {}
    features = [_step_feature(f"{STEPS}/{_text(name)}", values) for name, values in episode.steps.items()]
    for name, value in episode.episode.items():
        value_array = _numbers(value, _text(name))
        shape, dtype = value_array.shape, _dtype(value_array, name)
        features.append(Feature(path=name, kind="tensor", level="episode", shape=shape, dtype=dtype))
    return {feature.path: feature for feature in features}


def _step_feature(path: str, values: Any) -> Feature:
    if not is_array(values) and len(values) and isinstance(values[0], bytes):
        return Feature(path=path, kind="image", level="step", shape=(None, None, 3), dtype="uint8")
    if is_array(values):
        shape = tuple(values.shape[1:])
        colours = values.dtype == np.uint8 and len(shape) == 3 and shape[2] in (1, 3, 4)
        if colours or isinstance(values, Pictures):
            _check_pixels(values, path)
            return Feature(path=path, kind="image", level="step", shape=shape, dtype=values.dtype.name)
        if values.dtype.kind in "biuf":
            return Feature(path=path, kind="tensor", level="step", shape=shape, dtype=_dtype(values, path))
        values = values[:1]
    array = _numbers(values, path)
    return Feature(path=path, kind="tensor", level="step", shape=array.shape[1:], dtype=_dtype(array, path))


def read_plain(episode: PlainEpisode, request: ReadRequest, *, known_paths: Set[str] = frozenset()) -> Episode:
    """Return the requested parts of an episode; ``known_paths`` are the paths of all features of the dataset.

    Values that differ in number, or in type or shape from their feature, raise MalformedEpisode.
    """
    step_counts = {step_name: _count(values, step_name) for step_name, values in episode.steps.items()}
    requested = {feature.name for feature in (*request.cameras, *request.features) if feature.level == "step"}
    counts = {name: count for name, count in step_counts.items() if name in requested} or step_counts
    if len(set(counts.values())) > 1:
        least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        raise MalformedEpisode(f"{least} has {counts[least]} values and {most} has {counts[most]}, expected one a step")
    num_steps = next(iter(counts.values()), 0)
    if num_steps > MAX_STEPS:
        raise MalformedEpisode(f"has {num_steps:,} steps, more than {MAX_STEPS:,}")
    stored_paths = [*(f"{STEPS}/{step_name}" for step_name in episode.steps), *episode.episode]
    unknown_paths = [path for path in stored_paths if known_paths and path not in known_paths]
    dropped = tuple(f"{path}: no other episode that was sampled has it" for path in unknown_paths)
    columns: dict[str, dict[str, Column]] = {"step": {}, "episode": {}}
    for feature in request.features:
        stored_values, num_rows = (episode.steps, num_steps) if feature.level == "step" else (episode.episode, 1)
        column = absent_column(feature, num_rows)
        if (values := stored_values.get(feature.name)) is not None:
            column = Column(feature=feature, values=_column(values, feature), lengths=(), rows=num_rows)
        columns[feature.level][feature.name] = column
    cameras: list[Frames | None] = []
    for camera in request.cameras:
        values = episode.steps.get(camera.name)
        cameras.append(None if values is None else _frames(values, camera))
    steps, values = columns["step"], columns["episode"]
    return Episode(num_steps=num_steps, steps=steps, episode=values, cameras=cameras, dropped=dropped)


def is_array(values: Any) -> bool:
    """Return whether a value has the shape and dtype of an array of numpy."""
    return hasattr(values, "shape") and isinstance(getattr(values, "dtype", None), np.dtype)


def _count(values: Any, name: str) -> int:
    shape = values.shape if is_array(values) else None
    if shape == () or not hasattr(values, "__len__") or isinstance(values, str | bytes | Set):
        raise MalformedEpisode(f"{name} is {describe(values)}, expected an array or a list with a value for each step")
    return len(values)


def _numbers(values: Any, name: str) -> np.ndarray:
    """Return numbers or texts as an array; raises MalformedEpisode if they are neither or of differing shapes."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise MalformedEpisode(f"{name} has values of differing shapes; expected one shape") from None
    mixed = array.dtype.kind == "O"
    if array.dtype.kind == "S" or (mixed and all(isinstance(item, str | bytes) for item in array.flat)):
        texts = [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in array.flat]
        array = np.array(list(map(_text, texts)), dtype=np.dtypes.StringDType()).reshape(array.shape)
    return array


def _text(text: str) -> str:
    """Return a text; raises MalformedEpisode if it has a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MalformedEpisode(f"{text!r:.80} has a lone surrogate, which is not Unicode text") from None
    return text


def _check_pixels(values: Any, path: str) -> None:
    """Raise MalformedEpisode for an array [n, H, W, ...] of pictures that are too large to be read."""
    sides = [side or 0 for side in values.shape[1:3]]
    if sides[0] * sides[-1] > MAX_PIXELS:
        raise MalformedEpisode(f"{path} has pictures of {sides[0]}x{sides[-1]}, more than {MAX_PIXELS:,} pixels")


def _dtype(array: np.ndarray, name: str) -> str:
    if array.dtype.kind in "UT":
        return "string"
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise MalformedEpisode(f"{name} is {array.dtype}, expected numbers, texts or encoded pictures")
    return array.dtype.newbyteorder("=").name


def _column(values: Any, feature: Feature) -> np.ndarray | list[str]:
    if is_array(values) and math.prod(values.shape) * values.dtype.itemsize > _MOST_BYTES:
        raise MalformedEpisode(f"{feature.path} is {describe(values)}, more than {_MOST_BYTES >> 30} GiB")
    try:
        array = _numbers(values[:] if is_array(values) and values.shape else values, feature.path)
    except _UNREADABLE as error:
        fault = f"cannot be read ({' '.join(str(error).split())[:200]})"
        raise DamagedEpisode(f"{feature.path}: {fault}", reason="unreadable") from None
    value_shape = array.shape[1:] if feature.level == "step" else array.shape
    stored_dtype = _dtype(array, feature.path) if array.size else feature.dtype
    if (array.size and value_shape != feature.shape) or (stored_dtype == "string") != (feature.dtype == "string"):
        other = f"in other episodes it is {feature.dtype} {feature.shape}"
        raise MalformedEpisode(f"{feature.path} is {stored_dtype} {value_shape}, {other}")
    if feature.dtype == "string":
        return [_text(str(text)) for text in array.flat]
    with np.errstate(invalid="ignore"):
        converted = array.astype(feature.dtype)
    if converted.dtype != array.dtype and not np.array_equal(converted, array, equal_nan=converted.dtype.kind == "f"):
        fault = f"is {stored_dtype}, which does not fit the {feature.dtype} of other episodes"
        raise MalformedEpisode(f"{feature.path} {fault}")
    return converted.reshape(-1)


def _frames(values: Any, camera: Feature) -> Frames:
    if isinstance(values, Pictures):
        return values.read()
    if not is_array(values):
        return _encoded(values, camera)
    if values.dtype.name != camera.dtype or len(values.shape) not in (3, 4):
        raise MalformedEpisode(f"{camera.path} is {describe(values)}, expected pixels of {camera.dtype} [n, H, W, C]")
    _check_pixels(values, camera.path)
    return _blocks(values, camera)


def _encoded(values: Iterable[Any], camera: Feature) -> Iterator[bytes | np.ndarray | CorruptFrame]:
    for value in values:
        if isinstance(value, bytes | np.ndarray | CorruptFrame):
            yield value
        else:
            yield CorruptFrame(f"{camera.path}: {describe(value)}, expected an encoded picture (bytes)")


def _blocks(values: Any, camera: Feature) -> Iterator[np.ndarray | CorruptFrame]:
    """Yield the pictures of an array, which is read in blocks of complete chunks."""
    chunks, frame_size = getattr(values, "chunks", None), max(1, int(np.prod(values.shape[1:])))
    chunk_frames = chunks[0] if chunks else 1
    block_frames = -(-max(1, _BLOCK // frame_size) // chunk_frames) * chunk_frames
    # A part of an array may start within a chunk: the first block ends with that chunk's block.
    block_start, block_stop = 0, block_frames - getattr(values, "first", 0) % chunk_frames
    while block_start < len(values):
        block_stop = min(block_stop, len(values))
        try:
            yield from values[block_start:block_stop]
        except _UNREADABLE as error:
            # Read frame by frame to find the damaged ones, unless each frame would read a large chunk.
            if isinstance(error, ValueError) or (chunks and chunk_frames * frame_size <= _BLOCK):
                yield from (_frame(values, step, camera) for step in range(block_start, block_stop))
            else:
                yield from [_corrupt(camera, error)] * (block_stop - block_start)
        block_start, block_stop = block_stop, block_stop + block_frames


def _frame(values: Any, step: int, camera: Feature) -> np.ndarray | CorruptFrame:
    try:
        return np.asarray(values[step : step + 1][0])
    except _UNREADABLE as error:
        return _corrupt(camera, error)


def _corrupt(camera: Feature, error: Exception) -> CorruptFrame:
    return CorruptFrame(f"{camera.path}: cannot be read ({' '.join(str(error).split())[:200]})")


def describe(value: Any) -> str:
    """Return the type of a value and its shape or beginning, for messages."""
    return f"{value.dtype} {tuple(value.shape)}" if is_array(value) else f"{type(value).__name__} {value!r:.40}"
