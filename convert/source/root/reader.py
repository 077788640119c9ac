"""Episodes of a converted dataset, read back from its index and its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from convert.errors import CorruptFrame, DamagedEpisode
from convert.source.episode import Column, Episode, SourceFrame, absent_column
from convert.source.features import Feature
from convert.source.protocol import ReadRequest, SourceEpisode, Span, covers
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


class RootReader:
    """A reader of some episodes of a shard, see ``convert.source.protocol.EpisodeReader``.

    Attributes:
        digests: Hash of the shard's file.
    """

    def __init__(
        self,
        folder: str,
        split: str,
        shard: int,
        request: ReadRequest,
        spans: Sequence[Span],
        *,
        prefix: str,
        digests: Mapping[str, str],
    ) -> None:
        self.digests = digests
        self._prefix = prefix
        manifest = read_manifest(folder)
        entry = manifest.splits[split]
        fields = read_fields(manifest, context=f"{folder}/{MANIFEST_NAME}")
        tables = open_split(folder, split, entry)
        shard_entry = entry.shards[shard]
        first_episode = sum(preceding.episodes for preceding in entry.shards[:shard])
        first_record = sum(preceding.records for preceding in entry.shards[:shard])
        shard_episodes = tables.episodes.slice(first_episode, shard_entry.episodes)
        self._episodes = shard_episodes.to_pylist()
        self._columns = shard_episodes
        self._tables = tables
        self._spans = spans
        self._request = request
        self._fields = fields
        self._cameras = _numbers(fields, request.cameras)
        path = Path(folder, split, shard_file(shard_entry.name))
        self._file = RecordFile(str(path), shard_entry.file.bytes)
        self._record_rows = slice(first_record, first_record + shard_entry.records)
        self._record_columns = {name: tables.records.column(name).to_numpy() for name in (*_LOCATION, "step")}

    def __iter__(self) -> Iterator[SourceEpisode]:
        """Yield the episodes."""
        for number, row in enumerate(self._episodes):
            if not covers(self._spans, number):
                continue
            content: Episode | DamagedEpisode
            if not row["num_steps"] and (status := row["status"]) not in ("ok", "empty"):
                content = DamagedEpisode(f"was left out as {status} when it was converted", reason=status)
            else:
                content = self._episode(number, row)
            yield SourceEpisode(self._prefix + row["source_file"], row["source_position"], self._bytes(row), content)

    def _bytes(self, episode_row: Mapping[str, int]) -> int:
        first_record = episode_row["first_record"]
        return int(self._record_columns["num_bytes"][first_record : first_record + episode_row["num_records"]].sum())

    def _episode(self, episode_number: int, episode_row: Mapping[str, int]) -> Episode:
        step_rows = self._tables.steps.slice(episode_row["first_steps_row"], episode_row["num_steps"])
        columns: dict[str, dict[str, Column]] = {"step": {}, "episode": {}}
        for feature in self._request.features:
            table_kind: TableKind = "steps" if feature.level == "step" else "episodes"
            table = step_rows if table_kind == "steps" else self._columns.slice(episode_number, 1)
            column_names = (feature_column(table_kind, feature.name), feature.name)
            stored_column = next((name for name in column_names if name in table.schema.names), None)
            column = absent_column(feature, len(table))
            if stored_column is not None:
                column = _column(feature, table.column(stored_column), len(table))
            columns[feature.level][feature.name] = column
        return Episode(
            num_steps=episode_row["num_steps"],
            steps=columns["step"],
            episode=columns["episode"],
            cameras=[self._frames(camera, episode_row) for camera in self._cameras],
        )

    def _frames(self, camera_number: int, episode_row: Mapping[str, int]) -> Iterator[SourceFrame | CorruptFrame]:
        """Yield a frame of each step, or the reason why there is none."""
        num_steps, first_record = episode_row["num_steps"], episode_row["first_record"]
        camera = self._fields.stored_cameras[camera_number]
        if self._fields.layout == "frames":
            has_records = episode_row["num_records"] > 0
            # Records follow one another by camera and step; the remainder is the frame in a chunk of video.
            start = first_record + camera_number * num_steps
            steps = range(num_steps if has_records else 0)
            locations = {step: (start + step, step % camera.gop) for step in steps}
        else:
            locations = {}
            for record in range(first_record, first_record + episode_row["num_records"]):
                for frame_number, distance in enumerate(self._fields.frame_offsets):
                    locations.setdefault(int(self._record_columns["step"][record]) + distance, (record, frame_number))
        for step in range(num_steps):
            if step not in locations:
                yield CorruptFrame("no record has this frame")
                continue
            record, frame_number = locations[step]
            try:
                content = self._file.read(*(int(self._record_columns[name][record]) for name in _LOCATION))
                yield (CorruptFrame("is a hole") if content == HOLE else _plain(camera.frame(content, frame_number)))
            except (FormatError, OSError) as error:
                positions = self._record_columns["position"][self._record_rows]
                shard_record = record_number(positions, record - self._record_rows.start)
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
    value_type = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    array = array.cast(value_type) if value_type != array.type else array
    empty: object = (
        "" if pa.types.is_large_string(value_type) or pa.types.is_string(value_type) else pa.scalar(0).cast(value_type)
    )
    return array.fill_null(empty)
