"""Tracks of one episode of a converted root: frames as they are stored, vectors, and every other column by step."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import simplejpeg

from stream.base.depth_colours import colour_depth, depth_range
from stream.base.errors import ArgumentError, FormatError
from stream.batch.dataset_vector import dataset_vector
from stream.cache.records import open_records
from stream.format.catalog import Dataset
from stream.format.frame import StoredCamera, as_jpeg, decode_depth
from stream.format.index import SplitIndex, find_episode
from stream.format.names import HOLE, VECTORS
from stream.format.record_file import RecordFile
from stream.format.spaces import derived_column
from stream.format.table import Table
from stream.format.video import ChunkFrame
from stream.sample.vector import SPACES, Vector

_KEYS = frozenset({"episode", "step"})
_LOCATIONS = frozenset({"episode", "shard", "first_steps_row", "first_record"})
"""Columns that only have the location of rows."""


class Curve(NamedTuple):
    """Numbers of an episode by step.

    Attributes:
        name: Column of ``steps``, such as ``action`` or ``observation/state``.
        group: ``action`` and ``state``, as the registry has them and in canonical spaces, or ``column``.
        dims: Name of each dimension.
        values: float64 [steps, dims], NaN where a step has no value.
        valid: bool [steps], False where a step has no value.
    """

    name: str
    group: str
    dims: tuple[str, ...]
    values: np.ndarray
    valid: np.ndarray

    @property
    def nonfinite(self) -> np.ndarray:
        """Mask of NaN and infinity among the stored values, bool [steps, dims]."""
        return np.asarray(~np.isfinite(self.values) & self.valid[:, None])


class Band(NamedTuple):
    """A run of equal values: steps ``start`` to ``stop`` (without it) have ``text``."""

    start: int
    stop: int
    text: str


class Lane(NamedTuple):
    """A column of texts or booleans, as bands; steps without a value have no band."""

    name: str
    bands: tuple[Band, ...]


@dataclass(frozen=True, eq=False)
class CameraTrack:
    """Frames of one camera as they are stored.

    Attributes:
        camera: Camera.
        records: Row in ``records`` of the frame of each step, int64 [steps], -1 where none is stored.
        frame_numbers: Number of the frame in its record, int64 [steps].
        index: Index of the split.
        files: Open shards, shared by the cameras of an episode.
    """

    camera: StoredCamera
    records: np.ndarray
    frame_numbers: np.ndarray
    index: SplitIndex
    files: dict[int, RecordFile] = field(repr=False)

    @property
    def steps(self) -> np.ndarray:
        """Steps with a stored frame, int64, ascending."""
        return np.flatnonzero(self.records >= 0)

    def read(self, step: int) -> memoryview | ChunkFrame:
        """Return the stored frame of a step: JPEG, raw pixels, depth map, or place in a chunk of video.

        Raises ArgumentError if no frame of this step is stored, FormatError if its record is damaged.
        """
        if not 0 <= step < len(self.records) or self.records[step] < 0:
            raise ArgumentError(f"camera {self.camera.name}: no frame of step {step} is stored")
        row, table, shards = np.array([self.records[step]]), self.index.records, self.index.shards
        location = (int(table.take(name, row)[0]) for name in ("shard", "position", "num_bytes", "xxh3_64"))
        shard, position, num_bytes, digest = location
        shard_stem = shards.stem(shard) if 0 <= shard < len(shards) else ""
        try:
            if not shard_stem:
                raise FormatError(f"the index says shard {shard} of {len(shards)}")
            if shard not in self.files:
                self.files[shard] = open_records(self.index, shard)
            return self.camera.frame(self.files[shard].read(position, num_bytes, digest), int(self.frame_numbers[step]))
        except FormatError as error:
            raise FormatError(
                f"dataset {self.index.dataset}, split {self.index.split}, shard {shard_stem}, record "
                f"{self.index.record_number(int(row[0]))} (step {step} of camera {self.camera.name}): {error}; check "
                "it with `pairstream verify`"
            ) from None

    def read_depth(self, step: int) -> np.ndarray:
        """Return the depth map of a step, uint16 [H, W], millimetres, 0 where nothing was measured."""
        depth_map: Any = self.read(step)
        return decode_depth(depth_map, np.empty(self.camera.sizes[0], np.uint16))

    def read_picture(self, step: int) -> bytes:
        """Return the frame of a step as a JPEG, also of other codecs, with depth in colours; raise as ``read`` does."""
        if not self.camera.is_depth:
            return bytes(as_jpeg(self.read(step)))
        return simplejpeg.encode_jpeg(colour_depth(self.read_depth(step), self.depth_range), quality=90)

    @cached_property
    def depth_range(self) -> tuple[float, float]:
        """Near and far end of the colours of depth, millimetres, of five steps of the episode."""
        depth_maps = []
        for step in self.steps[np.linspace(0, len(self.steps) - 1, 5).astype(int)] if len(self.steps) else ():
            with contextlib.suppress(FormatError, OSError):
                depth_maps.append(self.read_depth(int(step)))
        return depth_range(np.array(depth_maps))


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
        step_table, vector_columns = self.index.steps, set[str]()
        spaces = itertools.zip_longest(*((None, *SPACES[vector_name]) for vector_name in VECTORS))
        for vector_name, space in ((name, space) for row in spaces for name, space in zip(VECTORS, row, strict=True)):
            column_name = derived_column(vector_name, space)
            if column_name not in vector_columns and column_name in step_table.columns:
                vector_columns.add(column_name)
                vector = dataset_vector(self.dataset, vector_name, Vector(space=space), steps=step_table)
                yield self._curve(column_name, vector_name, vector.names)
        for name, column in step_table.columns.items():
            is_number = column.dtype is not None and column.texts is None and not column.bits
            if is_number and name not in _KEYS | vector_columns:
                dims = [name] if column.width is None else [f"[{number}]" for number in range(column.width)]
                yield self._curve(name, "column", tuple(dims))

    def lanes(self) -> Iterator[Lane]:
        """Yield the instruction, then every other column of texts or booleans."""
        step_table = self.index.steps
        for column_name, column in step_table.columns.items():
            if column.texts is not None:
                band_texts = step_table.take_texts(column_name, self._rows)
            elif column.bits and column.width is None:
                flags = step_table.take(column_name, self._rows)
                band_texts = np.where(flags, "true", "false").tolist()
            else:
                continue
            yield Lane(column_name, tuple(_bands(band_texts, self._valid(column_name))))

    def _curve(self, column_name: str, group: str, dims: tuple[str, ...]) -> Curve:
        values = self.index.steps.take(column_name, self._rows).astype(np.float64)
        is_valid = self._valid(column_name)
        values[~is_valid] = np.nan
        return Curve(column_name, group, dims, values[:, None] if values.ndim == 1 else values, is_valid)

    def _valid(self, column_name: str) -> np.ndarray:
        is_valid = self.index.steps.valid(column_name, self._rows)
        return np.ones(self.steps, bool) if is_valid is None else is_valid


def _bands(band_texts: list[str], is_valid: np.ndarray) -> Iterator[Band]:
    start = 0
    for (has_value, text), steps in itertools.groupby(zip(is_valid.tolist(), band_texts, strict=True)):
        stop = start + len(list(steps))
        if has_value and text:
            yield Band(start, stop, text)
        start = stop


def open_tracks(dataset: Dataset, index: SplitIndex, episode: int) -> Tracks:
    """Open an episode of a split, whose frames are read on demand; raise as ``find_episode`` does."""
    episode_rows = find_episode(dataset, index, episode)
    facts = {name: value for name, value in _row(index.episodes, episode).items() if name not in _LOCATIONS}
    step_rows = np.array(episode_rows.steps, np.int64)
    cameras = tuple(_cameras(dataset, index, np.array(episode_rows.records, np.int64), len(step_rows)))
    return Tracks(dataset, index, episode, len(step_rows), facts, cameras, step_rows)


def _cameras(dataset: Dataset, index: SplitIndex, rows: np.ndarray, steps: int) -> Iterator[CameraTrack]:
    files: dict[int, RecordFile] = {}
    fields = dataset.fields
    for position, camera in enumerate(fields.stored_cameras):
        records, numbers = np.full(steps, -1, np.int64), np.zeros(steps, np.int64)
        stored_rows, offsets = rows, fields.frame_offsets
        if fields.layout == "frames":
            camera_rows = rows[position * steps : (position + 1) * steps]
            stored_rows, offsets = camera_rows[index.records.take("num_bytes", camera_rows) != len(HOLE)], (0,)
        first_steps = index.records.take("step", stored_rows).astype(np.int64)
        for number, frame_offset in enumerate(offsets):
            step = first_steps + frame_offset
            inside = (step >= 0) & (step < steps)
            records[step[inside]], numbers[step[inside]] = stored_rows[inside], number
        if fields.layout == "frames":
            numbers = np.arange(steps) % camera.gop
        yield CameraTrack(camera, records, numbers, index, files)


def _row(table: Table, row_number: int) -> dict[str, Any]:
    """Return the numbers and texts of one row of a table, None where it has no value."""
    row_values: dict[str, Any] = {}
    row_numbers = np.array([row_number])
    for column_name, column in table.columns.items():
        is_valid = table.valid(column_name, row_numbers)
        if is_valid is not None and not is_valid[0]:
            row_values[column_name] = None
        elif column.texts is not None:
            row_values[column_name] = table.take_texts(column_name, row_numbers)[0]
        elif column.dtype is not None:
            row_value = table.take(column_name, row_numbers)[0].tolist()
            row_values[column_name] = bool(row_value) if column.bits and column.width is None else row_value
    return row_values
