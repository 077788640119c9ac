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

_PLACE = ("position", "num_bytes", "xxh3_64")


class SplitTables(NamedTuple):
    """The tables of a split, over the mapped files."""

    episodes: pa.Table
    steps: pa.Table
    records: pa.Table


def open_split(folder: str, split: str, entry: SplitEntry) -> SplitTables:
    """Open the tables of a split, labels as columns of steps. Raises FormatError or OSError if one is damaged."""

    def opened(kind: TableKind) -> Table:
        path = Path(folder, split, table_file(kind))
        return open_table(path, kind, entry=entry.index[kind], rows=getattr(entry, kind))

    steps = opened("steps").with_columns(open_labels(Path(folder, split), entry))
    return SplitTables(opened("episodes").arrow(), steps.arrow(), opened("records").arrow())


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
        wanted: ReadRequest,
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
        first = sum(each.episodes for each in entry.shards[:shard])
        rows = tables.episodes.slice(first, entry.shards[shard].episodes)
        self._episodes = rows.to_pylist()
        self._columns = rows
        self._tables = tables
        self._spans = spans
        self._wanted = wanted
        self._fields = fields
        self._cameras = _numbers(fields, wanted.cameras)
        self._file = RecordFile(
            str(Path(folder, split, shard_file(entry.shards[shard].name))), entry.shards[shard].file.bytes
        )
        start = sum(each.records for each in entry.shards[:shard])
        self._rows = slice(start, start + entry.shards[shard].records)
        self._places = {name: tables.records.column(name).to_numpy() for name in (*_PLACE, "step")}

    def __iter__(self) -> Iterator[SourceEpisode]:
        """Yield the episodes."""
        for number, row in enumerate(self._episodes):
            if covers(self._spans, number):
                name, position, size = self._prefix + row["source_file"], row["source_position"], self._bytes(row)
                steps, status = row["num_steps"], row["status"]
                if not steps and status not in ("ok", "empty"):
                    fault = DamagedEpisode(f"was left out as {status} when it was converted", reason=status)
                    yield SourceEpisode(name, position, size, fault)
                else:
                    yield SourceEpisode(name, position, size, self._episode(number, row))

    def _bytes(self, row: Mapping[str, int]) -> int:
        start = row["first_record"]
        return int(self._places["num_bytes"][start : start + row["num_records"]].sum())

    def _episode(self, number: int, row: Mapping[str, int]) -> Episode:
        steps = self._tables.steps.slice(row["first_steps_row"], row["num_steps"])
        levels: dict[str, dict[str, Column]] = {"step": {}, "episode": {}}
        for feature in self._wanted.features:
            kind: TableKind = "steps" if feature.level == "step" else "episodes"
            table = steps if kind == "steps" else self._columns.slice(number, 1)
            names = (feature_column(kind, feature.name), feature.name)
            stored = next((name for name in names if name in table.schema.names), None)
            levels[feature.level][feature.name] = (
                absent_column(feature, len(table))
                if stored is None
                else _column(feature, table.column(stored), len(table))
            )
        return Episode(
            num_steps=row["num_steps"],
            steps=levels["step"],
            episode=levels["episode"],
            cameras=[self._frames(camera, row) for camera in self._cameras],
        )

    def _frames(self, camera: int, row: Mapping[str, int]) -> Iterator[SourceFrame | CorruptFrame]:
        """Yield a frame of each step, or why there is none."""
        count, first = row["num_steps"], row["first_record"]
        stored = self._fields.stored_cameras[camera]
        if self._fields.layout == "frames":
            has = row["num_records"] > 0
            places = {step: (first + camera * count + step, step % stored.gop) for step in range(count if has else 0)}
        else:
            places = {}
            for record in range(first, first + row["num_records"]):
                for item, distance in enumerate(self._fields.frame_offsets):
                    places.setdefault(int(self._places["step"][record]) + distance, (record, item))
        for step in range(count):
            if step not in places:
                yield CorruptFrame("no record has this frame")
                continue
            record, item = places[step]
            try:
                content = self._file.read(*(int(self._places[name][record]) for name in _PLACE))
                yield CorruptFrame("is a hole") if content == HOLE else _plain(stored.frame(content, item))
            except (FormatError, OSError) as error:
                number = record_number(self._places["position"][self._rows], record - self._rows.start)
                yield CorruptFrame(f"record {number} {error}")


def _numbers(fields: Fields, cameras: Sequence[Feature]) -> list[int]:
    """Return the number of each wanted camera among the stored ones."""
    if fields.layout == "pairs":
        return [0] * len(cameras)
    paths = [fields.spec_cameras[name].path for name in fields.cameras]
    return [paths.index(camera.name) for camera in cameras]


def _plain(frame: memoryview | ChunkFrame) -> SourceFrame:
    """Return a stored frame as a source has it: a JPEG or a place in a chunk as it is, all else as numbers."""
    if isinstance(frame, ChunkFrame):
        return frame
    if frame[: len(RAW_MAGIC)] == RAW_MAGIC:
        return decode_frame(frame)
    if frame[: len(DEPTH_MAGIC)] == DEPTH_MAGIC:
        return decode_depth(frame)
    return bytes(frame)


def _column(feature: Feature, chunks: pa.ChunkedArray, rows: int) -> Column:
    """Return the column of an episode: the inverse of ``convert.shard.columns.arrow_array``."""
    array = chunks.combine_chunks()
    if rows and array.null_count == rows:
        return absent_column(feature, rows)
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
    return Column(feature=feature, values=values, lengths=tuple(lengths), rows=rows, valid=valid)


def _filled(array: pa.Array) -> pa.Array:
    """Return an array with a 0, False or empty text for each value that is missing; lists keep their sizes."""
    if pa.types.is_fixed_size_list(array.type):
        whole = array.values.slice(array.offset * array.type.list_size, len(array) * array.type.list_size)
        return pa.FixedSizeListArray.from_arrays(whole, array.type.list_size)
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    array = array.cast(kind) if kind != array.type else array
    empty: object = "" if pa.types.is_large_string(kind) or pa.types.is_string(kind) else pa.scalar(0).cast(kind)
    return array.fill_null(empty)
