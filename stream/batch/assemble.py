"""Assembly of a batch: rows are looked up, their records read, and the frames decoded into the arrays."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from stream.base.errors import FormatError, RecordError, RingError
from stream.base.machine import available_memory, default_max_open, limit_of
from stream.batch.encoded import EncodedRow, pack_frames
from stream.batch.frames import Frames
from stream.batch.layout import empty_array
from stream.batch.lookup import Lookup
from stream.batch.spec import Batch, BatchSpec
from stream.cache.records import open_records
from stream.format.frame import RawRecord, decode_depth, decode_frame
from stream.format.names import frame_views
from stream.format.record_file import RecordFile
from stream.format.video import ChunkFrame, video_codec
from stream.order.rows import Rows
from stream.sample.frames import Decode
from stream.storage.remote import RemoteError, Traffic

if TYPE_CHECKING:
    from stream.storage.object_reads import Read

_RUN = 64
"""Records that are read before their frames are decoded."""
_LARGE = 256 << 20
"""Size in bytes from which on a batch is compared with the available memory first."""


@dataclass
class Timings:
    """Work of making batches, added over threads.

    Attributes:
        read_s: Seconds of reading records.
        decode_s: Seconds of decoding frames.
        metadata_s: Seconds of looking up the index.
        bytes: Bytes of records.
        requests: Requests that were sent to an object store, if the root is read in place; requests for failed, late
            and damaged records included.
        remote_bytes: Bytes of the answers.
    """

    read_s: float = 0.0
    decode_s: float = 0.0
    metadata_s: float = 0.0
    bytes: int = 0
    requests: int = 0
    remote_bytes: int = 0

    def add(self, timings: Timings) -> None:
        """Add the work of another thread or attempt."""
        for name, amount in vars(timings).items():
            setattr(self, name, getattr(self, name) + amount)


@dataclass
class BatchResult:
    """A batch, the work of making it, and the rows that failed.

    Attributes:
        rows: Rows of the batch, after replacements.
        batch: Arrays and texts by key, empty until they are complete.
        failed: Rows that cannot be read, and their errors.
        work: Work of all attempts.
        replaced: Errors of the rows that were replaced.
        attempts: Number of times that rows were replaced.
    """

    rows: Rows
    batch: Batch = field(default_factory=dict)
    failed: list[tuple[int, RecordError]] = field(default_factory=list)
    work: Timings = field(default_factory=Timings)
    replaced: list[RecordError] = field(default_factory=list)
    attempts: int = 0


@dataclass
class PendingBatch:
    """A batch whose rows were looked up, and whose records are being read if the root is read in place.

    Attributes:
        result: Result so far.
        frames: Records of the batch.
        texts: Texts by key.
        read_rows: First row of each read.
        errors: Errors of the reads, None if there are no reads.
    """

    result: BatchResult
    frames: Frames
    texts: dict[str, list[str]]
    read_rows: list[int] = field(default_factory=list)
    errors: Future[list[Exception | None]] | None = None


class Assembler:
    """Assembler of batches of a spec; one for each process, safe to use from several threads.

    Args:
        spec: Content of a batch.
        decode: ``host`` decodes frames here; ``device`` leaves them encoded (``stream.batch.encoded``).
        threads: Threads that share the rows of a batch.
        max_open: Most ArrayRecord files that stay open.

    Attributes:
        fields: dtype and shape of one row, by name of the array.
    """

    def __init__(
        self, spec: BatchSpec, *, decode: Decode = "host", threads: int = 1, max_open: int | None = None
    ) -> None:
        self.spec = spec
        self.fields = spec.fields()
        if decode == "device":
            for camera in spec.cameras:
                del self.fields[camera.frames]
        self._is_encoded = decode == "device"
        self._files: dict[tuple[int, int], RecordFile] = {}
        # The thread of the reads counts them, and batches report the difference.
        self._traffic, self._reported = Traffic(), Traffic()
        self._lock = threading.Lock()
        self._max_open = max_open or default_max_open()
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stream-decode") if threads > 1 else None
        self._record_frames = tuple(len(offsets) or 1 for offsets in spec.record_offsets)
        members = range(len(spec.layouts))
        # By member and camera.
        self._frame_sizes = [[camera.sizes(member) for camera in spec.cameras] for member in members]
        self._is_raw = [[camera.is_read_raw(member) for camera in spec.cameras] for member in members]

    @cached_property
    def _lookup(self) -> Lookup:
        # Made at the first batch, as a trainer whose workers make the batches needs no mapped index.
        try:
            return Lookup(self.spec)
        except OSError as error:
            raise limit_of(error) or error from None

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def empty(self, num_rows: int) -> dict[str, np.ndarray]:
        """Return the arrays of a batch, not initialised.

        Raises:
            RingError: Too little memory is available.
        """
        num_bytes = sum(num_rows * math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in self.fields.values())
        try:
            # numpy's memory is taken page by page later, when it is too late to refuse.
            if num_bytes > _LARGE and num_bytes > (available_memory() or num_bytes):
                raise MemoryError
            return {name: empty_array(num_rows, dtype, shape) for name, (dtype, shape) in self.fields.items()}
        except (MemoryError, ValueError):
            raise RingError(f"a batch of {num_rows} rows needs {num_bytes:,} bytes, which are not available") from None

    def begin(self, rows: Rows, arrays: Mapping[str, np.ndarray]) -> PendingBatch:
        """Fill all arrays of a batch but the images, and ask for its records if the root is read in place.

        Args and errors are those of ``assemble``.
        """
        result = BatchResult(rows)
        start_time = time.perf_counter()
        arrays["sample"][:] = rows.sample
        if "sample_mask" in arrays:
            arrays["sample_mask"][:] = rows.sample < self.spec.num_samples
        if "dataset" in arrays:
            arrays["dataset"][:] = rows.member
        if not self.spec.chooses_frames and self.spec.cameras and (mask_key := self.spec.cameras[0].mask) in arrays:
            arrays[mask_key][:] = self.spec.window_table.used[rows.member]
        frames, texts_by_key = self._lookup.look_up(rows, arrays, partial(self._fail, result))
        result.work.metadata_s += time.perf_counter() - start_time
        pending = PendingBatch(result, frames, texts_by_key)
        if self.spec.is_remote and self.spec.cameras:
            self._start_reads(pending)
        return pending

    def assemble(
        self, rows: Rows, arrays: Mapping[str, np.ndarray], pending: PendingBatch | None = None
    ) -> BatchResult:
        """Fill the arrays of a batch.

        Args:
            rows: Records of the samples, b of them.
            arrays: Array [b, ...] for each of ``fields``. All values are overwritten.
            pending: Result of ``begin`` for the same rows and arrays, None to begin here.

        Returns:
            The batch of ``arrays``, texts and encoded frames, and the rows that cannot be read. The content of their
            arrays is undefined.

        Raises:
            LimitError: A limit of this process is too low to open a file.
            RemoteError: An object store does not answer.
        """
        pending = pending or self.begin(rows, arrays)
        result, frames = pending.result, pending.frames
        self._wait(pending)
        failed_rows = {row for row, _ in result.failed}
        readable = [row for row in range(len(rows)) if row not in failed_rows]
        packed_arrays: dict[str, np.ndarray] = {}
        if self._is_encoded:
            encoded = self._read(readable, frames, result)
            suffixes = [camera.suffix for camera in self.spec.cameras]
            max_frames = self.spec.window_table.frames
            packed_arrays = pack_frames(
                encoded, frames.copies, num_rows=len(rows), max_frames=max_frames, suffixes=suffixes
            )
        elif self.spec.cameras:
            self._fill_images(readable, frames, [arrays[camera.frames] for camera in self.spec.cameras], result)
        result.batch = {**packed_arrays, **arrays, **pending.texts}
        result.failed.sort(key=lambda failure: failure[0])
        self._report_traffic(result.work)
        return result

    def _fill_images(
        self, readable: Sequence[int], frames: Frames, images: Sequence[np.ndarray], result: BatchResult
    ) -> None:
        """Read and decode the frames of some rows, in all threads."""
        run = map if self._pool is None else self._pool.map
        thread_shares = [readable[thread :: self._threads] for thread in range(self._threads)]
        for thread_result in run(partial(self._read_and_decode, result.rows, frames, images), thread_shares):
            result.failed += thread_result.failed
            result.work.add(thread_result.work)
        for row, camera, frame, source_frame in frames.copies:
            images[camera][row, frame] = images[camera][row, source_frame]
        for row, camera, frame in frames.black:
            images[camera][row, frame] = 0

    def _report_traffic(self, work: Timings) -> None:
        """Add the requests that no batch has reported yet."""
        with self._lock:
            traffic, reported = Traffic(self._traffic.requests, self._traffic.num_bytes), self._reported
            work.requests += traffic.requests - reported.requests
            work.remote_bytes += traffic.num_bytes - reported.num_bytes
            self._reported = traffic

    def encoded_rows(self, rows: Rows) -> list[EncodedRow]:
        """Return the frames of rows as stored, each picture of a row once; raise RecordError if one is unreadable."""
        encoded, result = self.read(rows, self.empty(len(rows)))
        for _, error in result.failed[:1]:
            raise error
        return encoded

    def read(self, rows: Rows, arrays: Mapping[str, np.ndarray]) -> tuple[list[EncodedRow], BatchResult]:
        """Return the frames of rows as stored, and the rows that failed; fill all arrays but those of frames."""
        result = BatchResult(rows)
        pending = PendingBatch(result, *self._lookup.look_up(rows, arrays, partial(self._fail, result)))
        if self.spec.is_remote and self.spec.cameras:
            self._start_reads(pending)
            self._wait(pending)
        return self._read(range(len(rows)), pending.frames, result), result

    def _start_reads(self, pending: PendingBatch) -> None:
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

    def _wait(self, pending: PendingBatch) -> None:
        """Wait for the reads of a batch; raise RemoteError if the store does not answer."""
        if pending.errors is None:
            return
        start_time = time.perf_counter()
        for row, error in zip(pending.read_rows, pending.errors.result(), strict=True):
            if isinstance(error, RemoteError):
                self._fail(pending.result, row, error)
        pending.result.work.read_s += time.perf_counter() - start_time

    def _read_and_decode(
        self, rows: Rows, frames: Frames, images: Sequence[np.ndarray], row_numbers: Sequence[int]
    ) -> BatchResult:
        result = BatchResult(rows)
        for first in range(0, len(row_numbers), _RUN):
            self._decode(self._read(row_numbers[first : first + _RUN], frames, result, images), images, result)
        return result

    def _read(
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
                self._fail(result, row, error)
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
        split_index = self.spec.splits[split_number]
        if not 0 <= shard_number < len(split_index.shards):
            raise FormatError(f"cannot be read (the index says shard {shard_number} of {len(split_index.shards)})")
        shard_file = open_records(split_index, shard_number, neighbours=self.spec.neighbours, traffic=self._traffic)
        with self._lock:
            while len(self._files) >= self._max_open:
                self._files.pop(next(iter(self._files)))
            self._files[split_number, shard_number] = shard_file
        return shard_file

    def _decode(self, encoded_rows: Sequence[EncodedRow], images: Sequence[np.ndarray], result: BatchResult) -> None:
        """Decode the frames of some rows into ``images``, uint8 [b, F, H, W, 3] or of depth uint16 [b, F, H, W]."""
        start_time = time.perf_counter()
        decoders: list[Any] = [decode_depth if camera.is_depth else decode_frame for camera in self.spec.cameras]
        resizes = [camera.resize for camera in self.spec.cameras]
        for row, frames in encoded_rows:
            try:
                for camera, frame, encoded_frame in frames:
                    image = images[camera][row, frame]
                    if (resize := resizes[camera]) is None:
                        decoders[camera](encoded_frame, image)
                    else:
                        resize.apply(decoders[camera](encoded_frame), image)
            except FormatError as error:
                self._fail(result, row, FormatError(f"a frame cannot be decoded ({error})"))
        result.work.decode_s += time.perf_counter() - start_time

    def _fail(self, result: BatchResult, row: int, error: Exception) -> None:
        """Add a row that cannot be read; raise the error if the record is not damaged, so that none replaces it."""
        if limit := limit_of(error):
            raise limit
        failure = _record_error(self.spec, result.rows, row, error)
        if isinstance(error, RemoteError):
            shard = f"dataset {failure.dataset}, split {failure.split}, shard {failure.shard}"
            reason = f"{shard}, record {failure.record}: {error}; continue from the same state when the store answers"
            raise RemoteError(reason, refused=error.refused)
        result.failed.append((row, failure))


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


def _record_error(spec: BatchSpec, rows: Rows, row: int, error: Exception) -> RecordError:
    split_index, stored_record = spec.splits[int(rows.split[row])], int(rows.record[row])
    first_records = split_index.shards.first_records
    episode = record_number = -1
    try:
        if spec.layouts[split_index.member] == "pairs":
            episode = int(split_index.records.array("episode")[stored_record])
        else:
            episode, step = (
                int(split_index.steps.array("episode")[stored_record]),
                int(split_index.steps.array("step")[stored_record]),
            )
            stored_record = int(split_index.episodes.array("first_record")[episode]) + step
        record_number = split_index.record_number(stored_record)
    except (OSError, IndexError):
        stored_record = min(stored_record, int(first_records[-1]) - 1)
    # The shard comes from the manifest, as the index may be damaged.
    shard_number = int(
        np.clip(np.searchsorted(first_records, stored_record, side="right") - 1, 0, len(first_records) - 2)
    )
    return RecordError(
        str(error),
        dataset=split_index.dataset,
        split=split_index.split,
        shard=split_index.shards.stem(shard_number),
        record=stored_record - int(first_records[shard_number]) if record_number < 0 else record_number,
        episode=episode,
        sample=int(rows.sample[row]),
    )
