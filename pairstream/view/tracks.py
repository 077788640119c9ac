"""Tracks of one episode of a converted root: frames as they are stored, vectors, and every other column by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import simplejpeg

from stream.base.depth_colours import colour_depth, depth_range
from stream.base.errors import ArgumentError, FormatError
from stream.batch.dataset_vector import dataset_vector
from stream.batch.spaces import SPACES
from stream.cache.records import open_records
from stream.format.catalog import Dataset
from stream.format.frame import StoredCamera, as_jpeg, decode_depth
from stream.format.index import EpisodeRows, SplitIndex, find_episode
from stream.format.names import HOLE, VECTORS
from stream.format.record_file import RecordFile
from stream.format.spaces import derived_column
from stream.format.table import Table
from stream.format.video import ChunkFrame

_KEYS = frozenset({"episode", "step"})
_PLACES = frozenset({"episode", "shard", "first_steps_row", "first_record"})
"""Columns that only say where rows are."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Numbers of an episode by step.

    Attributes:
        name: Column of ``steps``, such as ``action`` or ``observation/state``.
        group: ``action`` and ``state``, as the registry has them and in canonical spaces, or ``column``.
        dims: Name of each dimension.
        values: float64 [steps, dims], NaN where a step has no value.
    """

    name: str
    group: str
    dims: tuple[str, ...]
    values: np.ndarray


@dataclass(frozen=True)
class Band:
    """A run of equal values: steps ``start`` to ``stop`` (without it) have ``text``."""

    start: int
    stop: int
    text: str


@dataclass(frozen=True)
class Lane:
    """A column of texts or booleans, as bands; steps without a value have no band."""

    name: str
    bands: tuple[Band, ...]


@dataclass(frozen=True, eq=False)
class CameraTrack:
    """Frames of one camera as they are stored.

    Attributes:
        camera: Camera.
        records: Row in ``records`` of the frame of each step, int64 [steps], -1 where none is stored.
        places: Number of the frame in its record, int64 [steps].
        index: Index of the split.
        files: Open shards, shared by the cameras of an episode.
    """

    camera: StoredCamera
    records: np.ndarray
    places: np.ndarray
    index: SplitIndex
    files: dict[int, RecordFile] = field(repr=False)

    @property
    def steps(self) -> np.ndarray:
        """Steps with a stored frame, int64, ascending."""
        return np.flatnonzero(self.records >= 0)

    def read(self, step: int) -> memoryview | ChunkFrame:
        """Return the stored frame of a step: JPEG, raw pixels, depth map, or place in a chunk of video.

        Raises:
            ArgumentError: No frame of this step is stored.
            FormatError: Its record is damaged.
        """
        if not 0 <= step < len(self.records) or self.records[step] < 0:
            raise ArgumentError(f"camera {self.camera.name}: no frame of step {step} is stored")
        row = np.array([self.records[step]])
        take = self.index.records.take
        shard, position, size, digest = (int(take(n, row)[0]) for n in ("shard", "position", "num_bytes", "xxh3_64"))
        shards = self.index.shards
        stem = shards.stem(shard) if 0 <= shard < len(shards) else ""
        try:
            if not stem:
                raise FormatError(f"the index says shard {shard} of {len(shards)}")
            if shard not in self.files:
                self.files[shard] = open_records(self.index, shard)
            return self.camera.frame(self.files[shard].read(position, size, digest), int(self.places[step]))
        except FormatError as error:
            raise FormatError(
                f"dataset {self.index.dataset}, split {self.index.split}, shard {stem}, record "
                f"{self.index.record_number(int(row[0]))} (step {step} of camera {self.camera.name}): {error}; check "
                "it with `pairstream verify`"
            ) from None

    def read_depth(self, step: int) -> np.ndarray:
        """Return the depth map of a step, uint16 [H, W], millimetres, 0 where nothing was measured."""
        stored: Any = self.read(step)
        return decode_depth(stored, np.empty(self.camera.sizes[0], np.uint16))

    def read_picture(self, step: int) -> bytes:
        """Return the frame of a step as a JPEG, whatever its codec is, of depth in colours; raise as ``read`` does."""
        if not self.camera.is_depth:
            return bytes(as_jpeg(self.read(step)))
        return simplejpeg.encode_jpeg(colour_depth(self.read_depth(step), self.depth_range), quality=90)

    @cached_property
    def depth_range(self) -> tuple[float, float]:
        """Near and far end of the colours of depth, millimetres, of five steps of the episode."""
        readable = []
        for step in self.steps[np.linspace(0, len(self.steps) - 1, 5).astype(int)] if len(self.steps) else ():
            try:
                readable.append(self.read_depth(int(step)))
            except (FormatError, OSError):
                continue
        return depth_range(np.array(readable))


@dataclass(frozen=True, eq=False)
class Tracks:
    """One episode.

    Attributes:
        dataset: Dataset.
        index: Index of its split.
        episode: Number of the episode in the split.
        steps: Count of steps.
        facts: Columns of the episode, such as ``episode_id``, ``source_file`` and ``success``; None for no value.
        cameras: All stored cameras.
    """

    dataset: Dataset
    index: SplitIndex
    episode: int
    steps: int
    facts: Mapping[str, Any]
    cameras: tuple[CameraTrack, ...]
    _rows: np.ndarray = field(repr=False)

    @property
    def rate(self) -> float | None:
        """Steps per second, None if the dataset declares no rate."""
        return self.dataset.fields.control_frequency

    @property
    def title(self) -> str:
        """Dataset, split and number."""
        return f"{self.dataset.name} {self.index.split} {self.episode}"

    def camera(self, number: int) -> CameraTrack:
        """Return a camera by its number; raise ArgumentError if there is none."""
        if not 0 <= number < len(self.cameras):
            raise ArgumentError(f"dataset {self.dataset.name}: camera {number} of {len(self.cameras)}, counted from 0")
        return self.cameras[number]

    def curves(self) -> Iterator[Curve]:
        """Yield action and state as the registry has them, then in canonical spaces, then every other number."""
        steps = self.index.steps
        taken: set[str] = set(_KEYS)
        for space_number in range(1 + max(map(len, SPACES.values()))):
            for which in VECTORS:
                spaces = (None, *SPACES[which])
                space = spaces[space_number] if space_number < len(spaces) else None
                column = derived_column(which, space)
                if column in taken or column not in steps.columns:
                    continue
                taken.add(column)
                vector = dataset_vector(self.dataset, which, None, steps=steps, space=space)
                yield Curve(column, which, vector.names, self._numbers(column))
        for name, kind in steps.columns.items():
            if name in taken or kind.dtype is None or kind.texts is not None or kind.bits:
                continue
            values = self._numbers(name)
            dims = (name,) if kind.width is None else tuple(f"[{number}]" for number in range(values.shape[1]))
            yield Curve(name, "column", dims, values)

    def lanes(self) -> Iterator[Lane]:
        """Yield the instruction, then every other column of texts or booleans."""
        for column, kind in self.index.steps.columns.items():
            if kind.texts is None and (not kind.bits or kind.width is not None):
                continue
            valid = self._valid(column)
            if kind.texts is not None:
                texts = self.index.steps.take_texts(column, self._rows)
            else:
                texts = [("false", "true")[bit] for bit in self.index.steps.take(column, self._rows).tolist()]
            yield Lane(column, tuple(_bands(texts, valid)))

    def _numbers(self, column: str) -> np.ndarray:
        values = self.index.steps.take(column, self._rows).astype(np.float64)
        values[~self._valid(column)] = np.nan
        return values[:, None] if values.ndim == 1 else values

    def _valid(self, column: str) -> np.ndarray:
        valid = self.index.steps.valid(column, self._rows)
        return np.ones(self.steps, bool) if valid is None else valid


def _bands(texts: list[str], valid: np.ndarray) -> Iterator[Band]:
    start = 0
    for step in range(1, len(texts) + 1):
        if step == len(texts) or texts[step] != texts[start] or valid[step] != valid[start]:
            if valid[start] and texts[start]:
                yield Band(start, step, texts[start])
            start = step


def open_tracks(dataset: Dataset, index: SplitIndex, episode: int) -> Tracks:
    """Open an episode of a split; its frames are read when they are asked for.

    Raises:
        ArgumentError: The episode does not exist, or its shard was not fetched.
        FormatError: The index is damaged.
    """
    rows = find_episode(dataset, index, episode)
    facts = {name: value for name, value in _row(index.episodes, episode).items() if name not in _PLACES}
    cameras = tuple(_cameras(dataset, index, rows))
    return Tracks(dataset, index, episode, len(rows.steps), facts, cameras, np.array(rows.steps, np.int64))


def _cameras(dataset: Dataset, index: SplitIndex, episode: EpisodeRows) -> Iterator[CameraTrack]:
    files: dict[int, RecordFile] = {}
    fields = dataset.fields
    rows, steps = np.array(episode.records, np.int64), len(episode.steps)
    for number, camera in enumerate(fields.stored_cameras):
        found, places = np.full(steps, -1, np.int64), np.zeros(steps, np.int64)
        if fields.layout == "frames":
            own = rows[number * steps : (number + 1) * steps]
            kept = own[index.records.take("num_bytes", own) != len(HOLE)]
            step = index.records.take("step", kept)
            inside = (step >= 0) & (step < steps)
            found[step[inside]] = kept[inside]
            places = np.arange(steps) % camera.gop
        else:
            first = index.records.take("step", rows).astype(np.int64)
            for place, distance in enumerate(fields.frame_offsets):
                step = first + distance
                inside = (step >= 0) & (step < steps)
                found[step[inside]], places[step[inside]] = rows[inside], place
        yield CameraTrack(camera, found, places, index, files)


def _row(table: Table, row: int) -> dict[str, Any]:
    """Return the numbers and texts of one row of a table, None where it has no value."""
    found: dict[str, Any] = {}
    rows = np.array([row])
    for name, column in table.columns.items():
        valid = table.valid(name, rows)
        if valid is not None and not valid[0]:
            found[name] = None
        elif column.texts is not None:
            found[name] = table.take_texts(name, rows)[0]
        elif column.dtype is not None:
            value = table.take(name, rows)[0].tolist()
            found[name] = bool(value) if column.bits and column.width is None else value
    return found
