"""A reader of some consecutive episodes of a LeRobot dataset: rows of parquet files and frames of video files."""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from convert.errors import CorruptFrame, DamagedEpisode, MalformedEpisode
from convert.source.episode import Column, Episode, Frames, absent_column
from convert.source.features import Feature
from convert.source.lerobot.episodes import EpisodeFiles
from convert.source.lerobot.files import LocalFiles, list_files
from convert.source.lerobot.info import TASK, Info
from convert.source.lerobot.matching import match_rows
from convert.source.lerobot.parquet import MOST, check_claim
from convert.source.protocol import ReadRequest, SourceEpisode

if TYPE_CHECKING:
    from convert.source.lerobot.video import VideoFile

_ROWS, _PICTURES = 1024, 8
"""Rows of a batch of numbers, and of a batch of pictures."""
_BUFFER = 1 << 20


@dataclass(kw_only=True)
class LeRobotReader:
    """A reader of episodes, see ``convert.source.protocol.EpisodeReader``.

    ``tasks`` are by number, and ``bytes_per_step`` is the size of the files for each step, for estimates. Where
    files have several episodes, rows that are not in the file of their episode are looked for in all files of ``data``,
    because LeRobot's own reader takes them from there.
    """

    episodes: Sequence[EpisodeFiles]
    wanted: ReadRequest
    files: LocalFiles
    tasks: Mapping[int, str]
    info: Info
    bytes_per_step: float
    _data: DataFile | None = None
    _videos: dict[str, tuple[str, VideoFile | DamagedEpisode]] = field(default_factory=dict)

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 in hex of each file of the episodes."""
        placed = [replace(files, data=self._data_name(files)) for files in self.episodes]
        return self.files.digests(file_names(placed, self.wanted))

    def __iter__(self) -> Iterator[SourceEpisode]:
        for files in self.episodes:
            content: Episode | DamagedEpisode
            try:
                content = self._read(files)
            except DamagedEpisode as error:
                content = error
            yield SourceEpisode(files.data, files.number, round(files.length * self.bytes_per_step), content)

    def _read(self, files: EpisodeFiles) -> Episode:
        if files.fault:
            raise MalformedEpisode(files.fault)
        data, steps = self._open_data(self._data_name(files)), files.length
        span = data.find(files)
        table = data.numbers(*span)
        times = np.arange(steps) / self.info.fps
        if "timestamp" in table.schema.names:
            where = f"{data.name}: episode {files.number}: timestamp"
            times = _numbers(table.column("timestamp"), np.dtype(np.float64), where, ())
            if not np.isfinite(times).all():
                step = np.flatnonzero(~np.isfinite(times))[0]
                raise MalformedEpisode(f"{where} of step {step} is {times[step]}, expected seconds")
        columns: dict[str, dict[str, Column]] = {"step": {}, "episode": {}}
        for feature in self.wanted.features:
            columns[feature.level][feature.name] = self._column(feature, table, files)
        cameras: list[Frames | DamagedEpisode] = []
        spare: list[str] = []
        for name in (camera.name for camera in self.wanted.cameras):
            try:
                stored = name not in files.videos
                cameras.append(data.pictures(name, *span) if stored else self._frames(name, files, times, spare))
            except DamagedEpisode as error:
                cameras.append(error)
        faults = [camera for camera in cameras if isinstance(camera, DamagedEpisode)]
        if faults and len(faults) == len(cameras):
            raise faults[0]
        return Episode(
            num_steps=steps, steps=columns["step"], episode=columns["episode"], cameras=cameras, spare=tuple(spare)
        )

    def _open_data(self, name: str) -> DataFile:
        if self._data is None or self._data.name != name:
            self._data = None
            self._data = DataFile(self.files, name, self.wanted)
        return self._data

    def _data_name(self, files: EpisodeFiles) -> str:
        """Return the name of the parquet file with the rows of an episode, or of the one that should have them."""
        with contextlib.suppress(DamagedEpisode):
            if files.number in self._open_data(files.data).spans:
                return files.data
        return self._elsewhere.get(files.number, files.data)

    @cached_property
    def _elsewhere(self) -> dict[int, str]:
        """The first parquet file with rows of each episode."""
        found: dict[int, str] = {}
        top = self.info.data_path.partition("/")[0]
        for name in sorted(list_files(self.files.folder, top)) if self.info.codebase_version == "v3.0" else ():
            with contextlib.suppress(DamagedEpisode):
                found = {**dict.fromkeys(DataFile(self.files, name, self.wanted).spans, name), **found}
        return found

    def _column(self, feature: Feature, table: pa.Table, files: EpisodeFiles) -> Column:
        steps = files.length
        if feature.level == "episode":
            return Column(feature=feature, values=np.array([files.number]), lengths=(), rows=1)
        texts = self.info.texts
        name = texts.get(feature.name, feature.name)
        if name not in table.schema.names:
            return absent_column(feature, steps)
        stored, where = table.column(name), f"{files.data}: episode {files.number}: {name}"
        values: np.ndarray | list[str]
        if feature.name in texts:
            numbers = _numbers(stored, np.dtype(np.int64), where, ()).tolist()
            # An annotation that a step lacks is a negative number.
            known = self.tasks if feature.name == TASK else {**self.tasks, **{each: "" for each in numbers if each < 0}}
            if unknown := sorted(set(numbers) - set(known)):
                fault = f"has {'task' if feature.name == TASK else name} {unknown[0]}, which meta/tasks lacks"
                raise MalformedEpisode(f"{files.data}: episode {files.number} {fault}")
            values = [known[number] for number in numbers]
        elif feature.dtype == "string":
            values = _texts(stored, where, feature.shape)
        else:
            values = _numbers(stored, np.dtype(feature.dtype), where, feature.shape)
        return Column(feature=feature, values=values, lengths=(), rows=steps)

    def _frames(self, camera: str, files: EpisodeFiles, times: np.ndarray, spare: list[str]) -> Frames:
        """Return the frames of a camera; adds to ``spare`` what the video has beyond them."""
        if not files.length:
            return ()  # LeRobot writes no video of an empty episode.
        if (part := files.video(camera)) is None:
            raise MalformedEpisode(str(files.videos[camera]))
        video = self._video(camera, part.name)
        numbers, others = match_rows(video.times, part, times, fps=self.info.fps, listed=video.listed)
        if others:
            spare.append(f"{part.name}: {others} frames more than the {files.length} rows, which have theirs by time")
        if self.info.is_depth(camera):
            return video.depth(numbers, self.info.depth_codes(camera))
        return video.frames(numbers)

    def _video(self, camera: str, name: str) -> VideoFile:
        from convert.source.lerobot.video import VideoFile

        open_name, video = self._videos.get(camera, ("", None))
        if video is None or open_name != name:
            if isinstance(video, VideoFile):
                video.close()
            try:
                video = VideoFile(self.files.path(name), name=name)
            except DamagedEpisode as error:
                video = error
            self._videos[camera] = (name, video)
        if isinstance(video, DamagedEpisode):
            raise video
        return video

    def close(self) -> None:
        """Close the videos."""
        for _, video in self._videos.values():
            if not isinstance(video, DamagedEpisode):
                video.close()


def file_names(episodes: Iterable[EpisodeFiles], wanted: ReadRequest) -> list[str]:
    """Return the names of the files that the wanted parts of some episodes are in, each once."""
    found: list[str] = []
    for episode in episodes:
        videos = [episode.video(camera.name) for camera in wanted.cameras]
        found += [episode.data, *(part.name for part in videos if part)]
    return [name for name in dict.fromkeys(found) if name]


class DataFile:
    """An open parquet file with the rows of one or more episodes.

    Attributes:
        name: Its name in messages.
        spans: Rows [start, stop) of each episode, by number.

    Raises:
        DamagedEpisode: The file is cut short, is not parquet or claims more memory than it can need, or
            ``episode_index`` has other than integers.
    """

    def __init__(self, files: LocalFiles, name: str, wanted: ReadRequest) -> None:
        self.name = name
        self._files = files
        path = files.path(name)
        try:
            # A buffer, so that the pictures of a whole row group are not read at once.
            self._file = pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
            present = set(self._file.schema_arrow.names)
            size, groups = path.stat().st_size, range(self._file.metadata.num_row_groups)
            check_claim(self._file, ["episode_index"], groups=groups, size=size, most=MOST)
            stored = self._file.read(columns=["episode_index"]).column("episode_index")
        except (pa.ArrowException, OSError, KeyError) as error:
            raise self._unreadable(error) from None
        numbers = _numbers(stored, np.dtype(np.int64), f"{name}: episode_index", ())
        edges = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1))
        self.spans = {int(numbers[a]): (a, b) for a, b in pairwise(edges.tolist())}
        names = {"timestamp", *("task_index" if each.name == TASK else each.name for each in wanted.features)}
        self._numbers = _Cursor(self._file, sorted(names & present), rows=_ROWS, size=size)
        pictures = [camera.name for camera in wanted.cameras if camera.name in present]
        self._pictures = {camera: _Cursor(self._file, [camera], rows=_PICTURES, size=size) for camera in pictures}

    def find(self, files: EpisodeFiles) -> tuple[int, int]:
        """Return the rows [start, stop) of an episode.

        Raises:
            DamagedEpisode: The file has another number of rows than the metadata say.
        """
        start, stop = self.spans.get(files.number, (0, 0))
        if stop - start != files.length:
            raise MalformedEpisode(
                f"{self.name}: {stop - start} rows of episode {files.number}, meta/episodes says {files.length}"
            )
        return start, stop

    def numbers(self, start: int, stop: int) -> pa.Table:
        """Return the rows of all columns but pictures."""
        try:
            self._numbers.check(start, stop)
            return pa.Table.from_batches(self._numbers.rows(start, stop), self._numbers.schema)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from None

    def pictures(self, camera: str, start: int, stop: int) -> Frames:
        """Return the encoded pictures of a camera, which are read while they are taken."""
        if camera not in self._pictures:
            raise DamagedEpisode(f"{self.name}: no column {camera}, which is a camera", reason="unreadable")
        cursor = self._pictures[camera]
        kind = stored = cursor.schema.field(camera).type
        if pa.types.is_struct(stored) and stored.get_field_index("bytes") >= 0:
            kind = stored.field("bytes").type
        is_text = pa.types.is_string(stored) or pa.types.is_large_string(stored)
        if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or is_text):
            raise MalformedEpisode(
                f"{self.name}: {camera} is stored as {stored}, expected encoded pictures (binary) or names of files"
            )
        return self._read_pictures(cursor, start, stop)

    def _read_pictures(self, cursor: _Cursor, start: int, stop: int) -> Frames:
        done = start
        try:
            for batch in cursor.rows(start, stop):
                for value in batch.column(0):
                    yield self._picture(value.as_py(), row=done)
                    done += 1
        except (pa.ArrowException, OSError, KeyError) as error:
            for row in range(done, stop):
                yield CorruptFrame(f"{self.name}: row {row} cannot be read ({' '.join(str(error).split())[:200]})")

    def _picture(self, value: dict[str, Any] | bytes | str | None, *, row: int) -> bytes | CorruptFrame:
        """Return an encoded picture: a value that has its bytes, or else the name of its file."""
        data = value.get("bytes") or value.get("path") if isinstance(value, dict) else value
        if isinstance(data, str) and data:
            try:
                return self._files.path(data).read_bytes()
            except (DamagedEpisode, OSError, ValueError) as error:
                return CorruptFrame(f"{self.name}: row {row}: {' '.join(str(error).split())[:200]}")
        return data or CorruptFrame(f"{self.name}: row {row} has no picture")

    def _unreadable(self, error: Exception) -> DamagedEpisode:
        text = " ".join(str(error).split())[:200]
        return DamagedEpisode(f"{self.name}: cannot be read as parquet ({text})", reason="unreadable")


class _Cursor:
    """The rows of some columns of a parquet file, read forward; a step backward starts at the row group again.

    Memory holds one batch and one page of each column. A page can be a whole row group, so it is given back with its
    last row, before another camera's is read. A row group that would take too much is refused, for a batch may be
    most of it.
    """

    def __init__(self, file: pq.ParquetFile, columns: Sequence[str], *, rows: int, size: int) -> None:
        self._file = file
        self._columns = list(columns)
        self._rows = rows
        self._size = size
        groups = range(file.metadata.num_row_groups)
        self._firsts = np.cumsum([0, *(file.metadata.row_group(group).num_rows for group in groups)]).tolist()
        self.schema = pa.schema([file.schema_arrow.field(name) for name in self._columns])
        self._group, self._start, self._stop = -1, 0, 0
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch: pa.RecordBatch = None

    def check(self, start: int, stop: int) -> None:
        """Refuse rows that would take too much memory at once, see ``check_claim``."""
        groups = range(bisect_right(self._firsts, start) - 1, bisect_left(self._firsts, stop))
        check_claim(self._file, self._columns, groups=groups, size=self._size, most=MOST)

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows [start, stop) in batches."""
        while start < stop:
            if not self._start <= start < self._stop:
                self._go_to(start)
            last = min(stop, self._stop)
            yield self._batch.slice(start - self._start, last - start)
            start = last
            if start == self._firsts[self._group + 1]:
                self._leave()

    def _go_to(self, row: int) -> None:
        group = bisect_right(self._firsts, row) - 1
        if group != self._group or row < self._start:
            self._leave()
            self.check(row, row + 1)
            self._group, self._start, self._stop = group, self._firsts[group], self._firsts[group]
            self._batches = self._file.iter_batches(
                self._rows, row_groups=[group], columns=self._columns, use_threads=False
            )
        while self._stop <= row:
            if (batch := next(self._batches, None)) is None:
                raise pa.ArrowInvalid(f"row group {group} ends at row {self._stop}")
            self._batch = batch.select(self._columns)
            self._start, self._stop = self._stop, self._stop + batch.num_rows

    def _leave(self) -> None:
        self._group, self._start, self._stop = -1, 0, 0
        self._batches, self._batch = iter(()), None


def _flatten(stored: pa.ChunkedArray, name: str, shape: tuple[int | None, ...]) -> pa.Array:
    """Return all values of a column, flat and row-major; each row is nested as ``shape`` says, or is one flat list."""
    array = stored.combine_chunks() if stored.num_chunks != 1 else stored.chunk(0)
    kind, depth = array.type, 0
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    dims = [dim or 0 for dim in shape]
    levels = dims if depth == len(dims) else [math.prod(dims)]
    if depth != len(levels):
        raise MalformedEpisode(f"{name} is stored as {array.type}, expected values of shape {dims}")
    for level, length in enumerate(levels):
        lengths = pc.fill_null(pc.list_value_length(array), -1).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(lengths != length)
        if len(wrong):
            step, found = wrong[0] // math.prod(levels[:level]), lengths[wrong[0]]
            what = "null" if found < 0 else f"a list of {found}"
            raise MalformedEpisode(f"{name} of step {step} has {what}, expected a list of {length} (shape {dims})")
        array = array.flatten()
    return array


def _texts(stored: pa.ChunkedArray, name: str, shape: tuple[int | None, ...]) -> list[str]:
    """Return all texts of a column, flat and row-major; null is an empty one."""
    array = _flatten(stored, name, shape)
    try:
        return [text or "" for text in array.cast(pa.large_string()).to_pylist()]
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise MalformedEpisode(f"{name} is stored as {array.type}, expected text ({str(error)[:200]})") from None


def _numbers(stored: pa.ChunkedArray, dtype: np.dtype, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """Return all numbers of a column, flat and row-major."""
    array = _flatten(stored, name, shape)
    kind = array.type
    if array.null_count:
        raise MalformedEpisode(f"{name}: {array.null_count} of {len(array)} values are null, expected numbers")
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise MalformedEpisode(f"{name}: is stored as {kind}, expected numbers of {dtype}")
    found = array.to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):
        values = found.astype(dtype)
    if dtype.kind in "iub" and (values != found).any():
        raise MalformedEpisode(f"{name}: values {found.min()} to {found.max()} do not fit {dtype}")
    return values
