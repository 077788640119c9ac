"""Records of the rows of a batch, read from their shards, with the frames still encoded."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stream.base.errors import FormatError
from stream.base.machine import default_max_open
from stream.batch.encoded import EncodedRow
from stream.batch.frames import Frames
from stream.batch.result import BatchResult, PendingBatch, Timings, add_failure
from stream.batch.spec import BatchSpec
from stream.cache.records import open_records
from stream.format.frame import RawRecord
from stream.format.names import frame_views
from stream.format.record_file import RecordFile
from stream.format.video import ChunkFrame, video_codec
from stream.storage.remote import RemoteError, Traffic

if TYPE_CHECKING:
    from stream.storage.object_reads import Read


class RecordReader:
    """Reader of the records of rows; one for each process, safe to use from several threads.

    Args:
        spec: Content of a batch.
        max_open: Most ArrayRecord files that stay open.
    """

    def __init__(self, spec: BatchSpec, *, max_open: int | None) -> None:
        self._spec = spec
        self._files: dict[tuple[int, int], RecordFile] = {}
        # The thread of the reads counts them, and batches report the difference.
        self._traffic, self._reported = Traffic(), Traffic()
        self._lock = threading.Lock()
        self._max_open = max_open or default_max_open()
        self._record_frames = tuple(len(offsets) or 1 for offsets in spec.record_offsets)
        members = range(len(spec.layouts))
        # By member and camera.
        self._frame_sizes = [[camera.sizes(member) for camera in spec.cameras] for member in members]
        self._is_raw = [[camera.is_read_raw(member) for camera in spec.cameras] for member in members]

    def start(self, pending: PendingBatch) -> None:
        """Start the reads of the records that the cache lacks."""
        frames, splits = pending.frames, pending.result.rows.split.tolist()
        first_rows: dict[tuple[int, int], int] = {}
        records: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for row, shard_key in enumerate(zip(splits, frames.shards, strict=True)):
            record_span = slice(frames.row_starts[row], frames.row_starts[row + 1])
            if record_span.start < record_span.stop:
                first_rows.setdefault(shard_key, row)
                locations = zip(frames.positions[record_span], frames.num_bytes[record_span], strict=True)
                records.setdefault(shard_key, []).extend(locations)
        reads: list[Read] = []
        for shard_key, locations_of_shard in records.items():
            # A damaged shard is reported where its rows are read.
            with contextlib.suppress(FormatError, OSError):
                shard_file = self._files.get(shard_key) or self._open(*shard_key)
                reads += shard_file.ahead(locations_of_shard)
                pending.read_rows += [first_rows[shard_key]] * (len(reads) - len(pending.read_rows))
        if reads:
            from stream.storage.object_reads import object_reads

            pending.errors = object_reads().start(reads)

    def wait(self, pending: PendingBatch) -> None:
        """Wait for the reads of a batch; raise RemoteError if the store does not answer."""
        if pending.errors is None:
            return
        start_time = time.perf_counter()
        for row, error in zip(pending.read_rows, pending.errors.result(), strict=True):
            if isinstance(error, RemoteError):
                add_failure(pending.result, row, error, spec=self._spec)
        pending.result.work.read_s += time.perf_counter() - start_time

    def read(
        self,
        row_numbers: Sequence[int],
        frames: Frames,
        result: BatchResult,
        images: Sequence[np.ndarray] | None = None,
    ) -> list[EncodedRow]:
        """Read the records of some rows and return their encoded frames; raw frames go right into ``images``."""
        start_time = time.perf_counter()
        encoded_rows: list[EncodedRow] = []
        shard_keys = list(zip(result.rows.split.tolist(), frames.shards, strict=True))
        members, row_starts = result.rows.member.tolist(), frames.row_starts
        all_columns = frames.positions, frames.num_bytes, frames.xxh3_64, frames.uses
        for row in row_numbers:
            record_span = slice(row_starts[row], row_starts[row + 1])
            if record_span.start == record_span.stop:
                continue
            columns: Sequence[Sequence[Any]] = [column[record_span] for column in all_columns]
            member, shard_key = members[row], shard_keys[row]
            try:
                shard_file = self._files.get(shard_key) or self._open(*shard_key)
                if images is not None and any(is_raw := self._is_raw[member]):
                    row_images = [image[row] for image in images]
                    columns = _read_raw(shard_file, columns, row_images, is_raw, self._record_frames[member])
                result.work.bytes += sum(frames.num_bytes[record_span])
                encoded_rows.append((row, self._encoded_frames(shard_file, columns, member)))
            except (FormatError, OSError, RemoteError) as error:
                add_failure(result, row, error, spec=self._spec)
                # A file that is repaired is opened again.
                with self._lock:
                    self._files.pop(shard_key, None)
        result.work.read_s += time.perf_counter() - start_time
        return encoded_rows

    def _encoded_frames(
        self, shard_file: RecordFile, columns: Sequence[Sequence[Any]], member: int
    ) -> list[tuple[int, int, memoryview | ChunkFrame]]:
        """Read records and return camera, frame and data of each image that they fill."""
        positions, num_bytes, checksums, uses_by_record = columns
        encoded: list[tuple[int, int, memoryview | ChunkFrame]] = []
        for record, uses in zip(shard_file.read_all(positions, num_bytes, checksums), uses_by_record, strict=True):
            if video_codec(record):
                frame_sizes = self._frame_sizes[member]
                encoded += [
                    (camera, frame, ChunkFrame(record, number, frame_sizes[camera])) for camera, frame, number in uses
                ]
                continue
            views = frame_views(record)
            if len(views) != self._record_frames[member]:
                raise FormatError(f"holds {len(views)} frames, expected {self._record_frames[member]}")
            encoded += [(camera, frame, views[number]) for camera, frame, number in uses]
        return encoded

    def _open(self, split_number: int, shard_number: int) -> RecordFile:
        """Open a shard, which closes with its last user after it has left ``_files``."""
        split_index = self._spec.splits[split_number]
        if not 0 <= shard_number < len(split_index.shards):
            raise FormatError(f"cannot be read (the index says shard {shard_number} of {len(split_index.shards)})")
        shard_file = open_records(split_index, shard_number, neighbours=self._spec.neighbours, traffic=self._traffic)
        with self._lock:
            while len(self._files) >= self._max_open:
                self._files.pop(next(iter(self._files)))
            self._files[split_number, shard_number] = shard_file
        return shard_file

    def report_traffic(self, work: Timings) -> None:
        """Add the requests that no batch has reported yet."""
        with self._lock:
            traffic, reported = Traffic(self._traffic.requests, self._traffic.num_bytes), self._reported
            work.requests += traffic.requests - reported.requests
            work.remote_bytes += traffic.num_bytes - reported.num_bytes
            self._reported = traffic


def _read_raw(
    shard_file: RecordFile,
    columns: Sequence[Sequence[Any]],
    images: Sequence[np.ndarray],
    is_raw: Sequence[bool],
    num_frames: int,
) -> Sequence[Sequence[Any]]:
    """Read the raw records of a row into its images, uint8 [F, H, W, 3] of each camera.

    Args:
        shard_file: Shard of the records.
        columns: Position, size, checksum and uses of each record.
        images: Images of each camera.
        is_raw: Mask of the cameras. A record is read this way if all cameras that show it are in the mask.
        num_frames: Frames of a record.

    Returns:
        The columns of the other records.
    """
    encoded_records = []
    for record in zip(*columns, strict=True):
        position, num_bytes, xxh3_64, uses = record
        if not uses or not all(is_raw[camera] for camera, _, _ in uses):
            encoded_records.append(record)
            continue
        targets: list[np.ndarray | None] = [None] * num_frames
        copies = []
        for camera, frame, number in uses:
            image = images[camera][frame]
            if (source := targets[number]) is None:
                targets[number] = image
            else:
                copies.append((image, source))
        # Frames that the window leaves out are read too, since the checksum is of the whole record.
        raw_record = RawRecord([np.empty_like(image) if target is None else target for target in targets])
        shard_file.read_into(position, num_bytes, xxh3_64, raw_record.parts)
        raw_record.check()
        for image, source in copies:
            image[...] = source
    return list(zip(*encoded_records, strict=True)) if encoded_records else [()] * len(columns)
