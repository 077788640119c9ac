"""A converted dataset as a source: its shards, and its episodes, read back from its index and its records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from convert.errors import CorruptFrame, DamagedEpisode
from convert.source.episode import Column, Episode, SourceFrame, absent_column, episode_id
from convert.source.features import Feature
from convert.source.protocol import ReadRequest, Source, SourceEpisode, SourceShard, Span, covers
from stream.base.errors import FormatError
from stream.format.fields import Fields, read_fields
from stream.format.frame import DEPTH_MAGIC, RAW_MAGIC, decode_depth, decode_frame
from stream.format.index import open_labels, record_number
from stream.format.manifest import SplitEntry, read_manifest
from stream.format.names import HOLE, MANIFEST_NAME, TableKind, shard_file, table_file
from stream.format.record_file import RecordFile
from stream.format.schema import feature_column
from stream.format.table import Table, open_table
from stream.format.video import ChunkFrame

_LOCATION = ("position", "num_bytes", "xxh3_64")


class SplitTables(NamedTuple):
    """The tables of a split, over the mapped files."""

    episodes: pa.Table
    steps: pa.Table
    records: pa.Table


def open_split(folder: str, split: str, entry: SplitEntry) -> SplitTables:
    """Open the tables of a split, labels as columns of steps. Raises FormatError or OSError if one is damaged."""

    def open_kind(kind: TableKind) -> Table:
        table_path = Path(folder, split, table_file(kind))
        return open_table(table_path, kind, entry=entry.index[kind], rows=getattr(entry, kind))

    steps = open_kind("steps").with_columns(open_labels(Path(folder, split), entry))
    return SplitTables(open_kind("episodes").arrow(), steps.arrow(), open_kind("records").arrow())


@dataclass(frozen=True, kw_only=True)
class RootShard(SourceShard):
    """A shard of a converted dataset.

    Attributes:
        number: Number of the shard in its split of the dataset ``folder``.
        sha256: Hash of its file, as the manifest has it.
        episodes: Count of steps, bytes of records, source file and number in that file, of each episode.
        prefix: Text in front of the source files.
    """

    folder: str
    number: int
    sha256: str
    episodes: tuple[tuple[int, int, str, int], ...] = field(repr=False)
    prefix: str = ""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Count of the steps of each episode."""
        return tuple(steps for steps, *_ in self.episodes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the records of each episode."""
        return tuple(num_bytes for _, num_bytes, *_ in self.episodes)

    @property
    def ids(self) -> tuple[str, ...]:
        """Id of each episode."""
        return tuple(episode_id(self.prefix + source_file, position) for *_, source_file, position in self.episodes)

    @contextlib.contextmanager
    def open(self, request: ReadRequest, spans: Sequence[Span]) -> Iterator[RootReader]:
        """Open the shard."""
        yield RootReader(self, request, spans)


@dataclass(frozen=True, kw_only=True)
class RootSource(Source):
    """A converted dataset.

    Attributes:
        layout: Its layout; for pairs with the distances of their frames.
        labels: Features that are labels.
        tables: Tables of each split.
    """

    shards_of: Mapping[str, tuple[RootShard, ...]] = field(repr=False)
    layout: str
    labels: frozenset[str]
    tables: Mapping[str, SplitTables] = field(repr=False)

    def shards(self, split: str) -> tuple[RootShard, ...]:
        """Return the shards of a split."""
        return self.shards_of[split]


class RootReader:
    """A reader of some episodes of a shard, see ``convert.source.protocol.EpisodeReader``."""

    def __init__(self, shard: RootShard, request: ReadRequest, spans: Sequence[Span]) -> None:
        self._shard = shard
        self._request = request
        self._spans = spans
        self.digests = {shard.path: shard.sha256}
        manifest = read_manifest(shard.folder)
        entry = manifest.splits[shard.split]
        self._fields = read_fields(manifest, context=f"{shard.folder}/{MANIFEST_NAME}")
        self._cameras = _numbers(self._fields, request.cameras)
        episodes, self._steps, records = open_split(shard.folder, shard.split, entry)
        first_episode = sum(preceding.episodes for preceding in entry.shards[: shard.number])
        self._episodes = episodes.slice(first_episode, len(shard.episodes))
        self._records = {name: records.column(name).to_numpy() for name in (*_LOCATION, "step")}
        self._first_record = sum(preceding.records for preceding in entry.shards[: shard.number])
        self._num_records = entry.shards[shard.number].records
        path = Path(shard.folder, shard.split, shard_file(entry.shards[shard.number].name))
        self._file = RecordFile(str(path), shard.bytes)

    def __iter__(self) -> Iterator[SourceEpisode]:
        """Yield the episodes."""
        for number, (row, stored) in enumerate(zip(self._episodes.to_pylist(), self._shard.episodes, strict=True)):
            if not covers(self._spans, number):
                continue
            content: Episode | DamagedEpisode
            if not row["num_steps"] and (status := row["status"]) not in ("ok", "empty"):
                content = DamagedEpisode(f"was left out as {status} when it was converted", reason=status)
            else:
                content = self._episode(number, row)
            _, num_bytes, source_file, position = stored
            yield SourceEpisode(self._shard.prefix + source_file, position, num_bytes, content)

    def _episode(self, episode_number: int, episode_row: Mapping[str, int]) -> Episode:
        step_rows = self._steps.slice(episode_row["first_steps_row"], episode_row["num_steps"])
        columns: dict[str, dict[str, Column]] = {"step": {}, "episode": {}}
        for feature in self._request.features:
            table_kind: TableKind = "steps" if feature.level == "step" else "episodes"
            table = step_rows if table_kind == "steps" else self._episodes.slice(episode_number, 1)
            names = [feature_column(table_kind, feature.name), feature.name]
            stored = next((table.column(name) for name in names if name in table.schema.names), None)
            column = absent_column(feature, len(table)) if stored is None else _column(feature, stored, len(table))
            columns[feature.level][feature.name] = column
        cameras = [self._frames(camera, episode_row) for camera in self._cameras]
        return Episode(num_steps=len(step_rows), steps=columns["step"], episode=columns["episode"], cameras=cameras)

    def _frames(self, camera_number: int, episode_row: Mapping[str, int]) -> Iterator[SourceFrame | CorruptFrame]:
        """Yield a frame of each step, or the reason why there is none."""
        num_steps, first_record = episode_row["num_steps"], episode_row["first_record"]
        camera = self._fields.stored_cameras[camera_number]
        if self._fields.layout == "frames":
            # Records follow one another by camera and step; the remainder is the frame in a chunk of video.
            start = first_record + camera_number * num_steps
            steps = range(num_steps if episode_row["num_records"] else 0)
            locations = {step: (start + step, step % camera.gop) for step in steps}
        else:
            locations = {}
            for record in range(first_record, first_record + episode_row["num_records"]):
                for frame_number, distance in enumerate(self._fields.frame_offsets):
                    locations.setdefault(int(self._records["step"][record]) + distance, (record, frame_number))
        for step in range(num_steps):
            if step not in locations:
                yield CorruptFrame("no record has this frame")
                continue
            record, frame_number = locations[step]
            try:
                content = self._file.read(*(int(self._records[name][record]) for name in _LOCATION))
                yield (CorruptFrame("is a hole") if content == HOLE else _plain(camera.frame(content, frame_number)))
            except (FormatError, OSError) as error:
                positions = self._records["position"][self._first_record :][: self._num_records]
                shard_record = record_number(positions, record - self._first_record)
                yield CorruptFrame(f"record {shard_record} {error}")


def _numbers(fields: Fields, cameras: Sequence[Feature]) -> list[int]:
    """Return the number of each requested camera among the stored cameras."""
    if fields.layout == "pairs":
        return [0] * len(cameras)
    camera_paths = [fields.spec_cameras[name].path for name in fields.cameras]
    return [camera_paths.index(camera.name) for camera in cameras]


def _plain(frame: memoryview | ChunkFrame) -> SourceFrame:
    """Return a stored frame as a source has it: a JPEG or a location in a chunk unchanged, other frames as numbers."""
    if isinstance(frame, ChunkFrame):
        return frame
    if frame[: len(RAW_MAGIC)] == RAW_MAGIC:
        return decode_frame(frame)
    if frame[: len(DEPTH_MAGIC)] == DEPTH_MAGIC:
        return decode_depth(frame)
    return bytes(frame)


def _column(feature: Feature, chunks: pa.ChunkedArray, num_rows: int) -> Column:
    """Return the column of an episode: the inverse of ``convert.shard.part_rows.arrow_array``."""
    array = chunks.combine_chunks()
    if num_rows and array.null_count == num_rows:
        return absent_column(feature, num_rows)
    valid = None
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        array = _filled(array)
    lengths = []
    for _ in feature.sequences:
        lengths.append(np.diff(array.offsets.to_numpy()).astype(np.int64))
        array = array.flatten()
    if feature.shape:
        array = array.flatten()
    values = array.to_pylist() if feature.dtype == "string" else array.to_numpy(zero_copy_only=False)
    return Column(feature=feature, values=values, lengths=tuple(lengths), rows=num_rows, valid=valid)


def _filled(array: pa.Array) -> pa.Array:
    """Return an array with 0, False or an empty text for each missing value; lists keep their sizes."""
    if pa.types.is_fixed_size_list(array.type):
        flat_values = array.values.slice(array.offset * array.type.list_size, len(array) * array.type.list_size)
        return pa.FixedSizeListArray.from_arrays(flat_values, array.type.list_size)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    is_text = pa.types.is_large_string(array.type) or pa.types.is_string(array.type)
    return array.fill_null("" if is_text else pa.scalar(0).cast(array.type))
