"""Episodes as plain values by name, their features, and their check against the features of the first one."""

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

PICTURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF")
"""First bytes of JPEG, PNG and WebP."""
_UNREADABLE = (OSError, RuntimeError, ValueError, MemoryError)
"""Errors of arrays on the disk for damage."""
_BLOCK = 8 << 20
"""Bytes of pictures that are read at once from an array on the disk."""
_MOST_BYTES = 4 << 30
"""Most bytes of a feature in one episode; pictures have a limit of their own."""
MAX_STEPS = 10_000_000
"""Most steps of an episode: a file may claim any number."""


@dataclass(frozen=True)
class Pictures:
    """Pictures of an episode that are read while they are taken, one after the other.

    Attributes:
        shape: Count of pictures and shape of each, None where only decoding tells.
        dtype: Of their pixels; other than uint8 for depth.
        read: Returns their iterator: encoded ones, pixels, or the reason why there is none.
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

    Arrays of uint8 [n, H, W, 3] are pictures (also with 1 or 4 channels), as are lists of encoded ones.

    Raises:
        MalformedEpisode: A value has no steps, is neither numbers, texts nor pictures, has a shape that varies, or
            pictures of more than 64 megapixels.
    """
    counts = [_count(values, name) for name, values in episode.steps.items()]
    if not any(counts):
        return {}
    found = [_step_feature(f"{STEPS}/{_text(name)}", values) for name, values in episode.steps.items()]
    for name, value in episode.episode.items():
        array = _numbers(value, _text(name))
        found.append(Feature(path=name, kind="tensor", level="episode", shape=array.shape, dtype=_dtype(array, name)))
    return {feature.path: feature for feature in found}


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


def read_plain(episode: PlainEpisode, wanted: ReadRequest, *, known: Set[str] = frozenset()) -> Episode:
    """Return the wanted parts of an episode; ``known`` are the paths of all features of the dataset.

    Raises:
        MalformedEpisode: The values of the steps differ in number, or a value has another type or shape than the
            feature.
    """
    steps = {name: _count(values, name) for name, values in episode.steps.items()}
    wanted_steps = {each.name for each in (*wanted.cameras, *wanted.features) if each.level == "step"}
    counts = {name: count for name, count in steps.items() if name in wanted_steps} or steps
    if len(set(counts.values())) > 1:
        least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        raise MalformedEpisode(f"{least} has {counts[least]} values and {most} has {counts[most]}, expected one a step")
    number = next(iter(counts.values()), 0)
    if number > MAX_STEPS:
        raise MalformedEpisode(f"has {number:,} steps, more than {MAX_STEPS:,}")
    paths = [*(f"{STEPS}/{name}" for name in episode.steps), *episode.episode]
    dropped = [f"{path}: no other episode that was looked at has it" for path in paths if known and path not in known]
    columns: dict[str, dict[str, Column]] = {"step": {}, "episode": {}}
    for feature in wanted.features:
        given, rows = (episode.steps, number) if feature.level == "step" else (episode.episode, 1)
        if (values := given.get(feature.name)) is None:
            columns[feature.level][feature.name] = absent_column(feature, rows)
        else:
            stored = _column(values, feature)
            columns[feature.level][feature.name] = Column(feature=feature, values=stored, lengths=(), rows=rows)
    taken = [(each, episode.steps.get(each.name)) for each in wanted.cameras]
    cameras = [None if values is None else _frames(values, camera) for camera, values in taken]
    return Episode(
        num_steps=number,
        steps=columns["step"],
        episode=columns["episode"],
        cameras=cameras,
        dropped=tuple(dropped),
    )


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
    if array.dtype.kind == "S" or (mixed and all(isinstance(each, str | bytes) for each in array.flat)):
        texts = [each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in array.flat]
        array = np.array(list(map(_text, texts)), dtype=np.dtypes.StringDType()).reshape(array.shape)
    return array


def _text(text: str) -> str:
    """Return a text; raises MalformedEpisode if it has half of a pair of surrogates, which no file of UTF-8 holds."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MalformedEpisode(f"{text!r:.80} has a lone surrogate, which is not Unicode text") from None
    return text


def _check_pixels(values: Any, path: str) -> None:
    """Raise MalformedEpisode for an array [n, H, W, ...] of pictures that are too large to be read."""
    size = [side or 0 for side in values.shape[1:3]]
    if size[0] * size[-1] > MAX_PIXELS:
        raise MalformedEpisode(f"{path} has pictures of {size[0]}x{size[-1]}, more than {MAX_PIXELS:,} pixels")


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
        raise DamagedEpisode(
            f"{feature.path}: cannot be read ({' '.join(str(error).split())[:200]})", reason="unreadable"
        ) from None
    shape = array.shape[1:] if feature.level == "step" else array.shape
    found = _dtype(array, feature.path) if array.size else feature.dtype
    if (array.size and shape != feature.shape) or (found == "string") != (feature.dtype == "string"):
        raise MalformedEpisode(
            f"{feature.path} is {found} {shape}, in other episodes it is {feature.dtype} {feature.shape}"
        )
    if feature.dtype == "string":
        return [_text(str(text)) for text in array.flat]
    with np.errstate(invalid="ignore"):
        stored = array.astype(feature.dtype)
    if stored.dtype != array.dtype and not np.array_equal(stored, array, equal_nan=stored.dtype.kind == "f"):
        fault = f"{feature.path} is {found}, which does not fit the {feature.dtype} of other episodes"
        raise MalformedEpisode(fault)
    return stored.reshape(-1)


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
    """Yield the pictures of an array, which is read a few at a time, whole chunks of a file."""
    chunks, size = getattr(values, "chunks", None), max(1, int(np.prod(values.shape[1:])))
    chunk = chunks[0] if chunks else 1
    rows = -(-max(1, _BLOCK // size) // chunk) * chunk
    # The first step of a part of an array may lie within a chunk.
    start, stop = 0, rows - getattr(values, "first", 0) % chunk
    while start < len(values):
        stop = min(stop, len(values))
        try:
            yield from values[start:stop]
        except _UNREADABLE as error:
            # Finds the frames that are damaged, unless each would read a large chunk.
            if isinstance(error, ValueError) or (chunks and chunk * size <= _BLOCK):
                yield from (_frame(values, step, camera) for step in range(start, stop))
            else:
                yield from [_corrupt(camera, error)] * (stop - start)
        start, stop = stop, stop + rows


def _frame(values: Any, step: int, camera: Feature) -> np.ndarray | CorruptFrame:
    try:
        frame: np.ndarray = values[step : step + 1][0]
    except _UNREADABLE as error:
        return _corrupt(camera, error)
    return frame


def _corrupt(camera: Feature, error: Exception) -> CorruptFrame:
    return CorruptFrame(f"{camera.path}: cannot be read ({' '.join(str(error).split())[:200]})")


def describe(value: Any) -> str:
    """Return the type of a value and its shape or beginning, for messages."""
    return f"{value.dtype} {tuple(value.shape)}" if is_array(value) else f"{type(value).__name__} {value!r:.40}"
