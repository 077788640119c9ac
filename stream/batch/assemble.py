"""Assembly of one batch: looks up its rows, reads the records and decodes their frames into the arrays."""

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
from stream.batch.spec import BatchSpec, Decode
from stream.cache.records import open_records
from stream.format.frame import RawRecord, decode_depth, decode_frame
from stream.format.names import frame_views
from stream.format.record_file import RecordFile
from stream.format.video import ChunkFrame, video_codec
from stream.order.rows import Rows
from stream.storage.remote import RemoteError, Traffic

if TYPE_CHECKING:
    from stream.storage.object_reads import Read

_RUN = 64
"""Records that are read before their frames are decoded."""
_LARGE = 256 << 20
"""Bytes of a batch from which on available memory is checked first."""


@dataclass
class Timings:
    """Work of making batches, added over threads.

    Attributes:
        read_s: Seconds of reading records.
        decode_s: Seconds of decoding frames.
        metadata_s: Seconds of looking up the index.
        bytes: Bytes of records.
        requests: Requests that were sent to an object store, if the root is read in place; those of failed, late and
            damaged records too.
        remote_bytes: Bytes of their answers.
    """

    read_s: float = 0.0
    decode_s: float = 0.0
    metadata_s: float = 0.0
    bytes: int = 0
    requests: int = 0
    remote_bytes: int = 0

    def add(self, other: Timings) -> None:
        """Add other work."""
        for name, amount in vars(other).items():
            setattr(self, name, getattr(self, name) + amount)


@dataclass
class Assembled:
    """Result of assembling a batch, in addition to the arrays that were filled.

    Attributes:
        texts: Texts, by key.
        arrays: Arrays of variable size, by key.
        failed: Rows that cannot be read, and their errors.
        work: Work done.
    """

    texts: dict[str, list[str]] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    failed: list[tuple[int, RecordError]] = field(default_factory=list)
    work: Timings = field(default_factory=Timings)


@dataclass
class PendingBatch:
    """A batch whose rows were looked up, and whose records are on their way if the root is read in place.

    Attributes:
        done: Result so far.
        frames: Records of the batch.
        rows: First row of each read.
        reads: Errors of the reads.
    """

    done: Assembled
    frames: Frames
    rows: Sequence[int] = ()
    reads: Future[list[Exception | None]] | None = None


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
        # Counted by the thread of the reads, for the batches that are made meanwhile.
        self._traffic, self._reported = Traffic(), Traffic()
        self._lock = threading.Lock()
        self._max_open = max_open or default_max_open()
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stream-decode") if threads > 1 else None
        self._expected = tuple(len(offsets) or 1 for offsets in spec.record_offsets)
        # [M][C]
        self._sizes = [[camera.sizes(member) for camera in spec.cameras] for member in range(len(spec.layouts))]
        self._is_raw = [[camera.is_read_raw(member) for camera in spec.cameras] for member in range(len(spec.layouts))]

    @cached_property
    def _lookup(self) -> Lookup:
        # Not before the first batch: a trainer whose workers make the batches maps no index.
        try:
            return Lookup(self.spec)
        except OSError as error:
            raise limit_of(error) or error from None

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def empty(self, rows: int) -> dict[str, np.ndarray]:
        """Return the arrays of a batch, not initialised.

        Raises:
            RingError: Too little memory is available.
        """
        needed = sum(rows * math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in self.fields.values())
        try:
            # numpy's memory is taken page by page later, when it is too late to refuse.
            if needed > _LARGE and needed > (available_memory() or needed):
                raise MemoryError
            return {name: empty_array(rows, dtype, shape) for name, (dtype, shape) in self.fields.items()}
        except (MemoryError, ValueError):
            raise RingError(f"a batch of {rows} rows needs {needed:,} bytes, which are not available") from None

    def begin(self, rows: Rows, out: Mapping[str, np.ndarray]) -> PendingBatch:
        """Fill all arrays of a batch but the images, and ask for its records if the root is read in place.

        Args and errors are those of ``assemble``.
        """
        done = Assembled()
        began = time.perf_counter()
        out["sample"][:] = rows.sample
        if "sample_mask" in out:
            out["sample_mask"][:] = rows.sample < self.spec.num_samples
        if "dataset" in out:
            out["dataset"][:] = rows.member
        if (mask := self.spec.cameras[0].mask) in out and not self.spec.chooses_frames:
            out[mask][:] = self.spec.window_table.used[rows.member]
        frames, done.texts = self._lookup.look_up(rows, out, partial(self._fail, rows, done))
        done.work.metadata_s += time.perf_counter() - began
        begun = PendingBatch(done, frames)
        if self.spec.is_remote:
            self._ask(rows, begun)
        return begun

    def assemble(self, rows: Rows, out: Mapping[str, np.ndarray], begun: PendingBatch | None = None) -> Assembled:
        """Fill the arrays of a batch.

        Args:
            rows: Records of the samples, b of them.
            out: Array [b, ...] for each of ``fields``. All values are overwritten.
            begun: Result of ``begin`` for the same rows and arrays, None to begin here.

        Returns:
            Texts, and the rows that cannot be read; the content of their arrays is undefined.

        Raises:
            LimitError: A limit of this process is too low to open a file.
            RemoteError: An object store does not answer.
        """
        begun = begun or self.begin(rows, out)
        done, frames = begun.done, begun.frames
        self._wait(rows, begun)
        failed = {row for row, _ in done.failed}
        readable = [row for row in range(len(rows)) if row not in failed]
        if self._is_encoded:
            encoded = self._read(readable, rows, frames, done)
            suffixes = [camera.suffix for camera in self.spec.cameras]
            most = self.spec.window_table.frames
            done.arrays = pack_frames(encoded, frames.copies, rows=len(rows), frames=most, suffixes=suffixes)
        else:
            images = [out[camera.frames] for camera in self.spec.cameras]
            run = map if self._pool is None else self._pool.map
            shares = [readable[first :: self._threads] for first in range(self._threads)]
            for part in run(partial(self._read_and_decode, rows, frames, images), shares):
                done.failed += part.failed
                done.work.add(part.work)
            for row, camera, frame, source in frames.copies:
                images[camera][row, frame] = images[camera][row, source]
            for row, camera, frame in frames.blanks:
                images[camera][row, frame] = 0
        done.failed.sort(key=lambda failure: failure[0])
        self._report_traffic(done.work)
        return done

    def _report_traffic(self, work: Timings) -> None:
        """Add the requests that no batch has reported yet."""
        with self._lock:
            traffic, reported = Traffic(self._traffic.requests, self._traffic.num_bytes), self._reported
            work.requests += traffic.requests - reported.requests
            work.remote_bytes += traffic.num_bytes - reported.num_bytes
            self._reported = traffic

    def encoded_rows(self, rows: Rows) -> list[EncodedRow]:
        """Return the frames of rows as stored, each picture of a row once; raise RecordError if one is unreadable."""
        found, done = self.read(rows, self.empty(len(rows)))
        for _, error in done.failed[:1]:
            raise error
        return found

    def read(self, rows: Rows, out: Mapping[str, np.ndarray]) -> tuple[list[EncodedRow], Assembled]:
        """Return the frames of rows as stored, and what cannot be read; fill all arrays but those of frames."""
        done = Assembled()
        frames, _ = self._lookup.look_up(rows, out, partial(self._fail, rows, done))
        if self.spec.is_remote:
            begun = PendingBatch(done, frames)
            self._ask(rows, begun)
            self._wait(rows, begun)
        return self._read(range(len(rows)), rows, frames, done), done

    def _ask(self, rows: Rows, begun: PendingBatch) -> None:
        """Start the reads of the records that the cache lacks."""
        frames, first = begun.frames, dict[tuple[int, int], int]()
        records: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for row, key in enumerate(zip(rows.split.tolist(), frames.shards, strict=True)):
            here = slice(frames.begins[row], frames.begins[row + 1])
            if here.start < here.stop:
                first.setdefault(key, row)
                records.setdefault(key, []).extend(zip(frames.positions[here], frames.num_bytes[here], strict=True))
        reads: list[Read] = []
        begun.rows = []
        for key, found in records.items():
            # What is wrong with a shard is told where its rows are read.
            with contextlib.suppress(FormatError, OSError):
                file = self._files.get(key) or self._open(*key)
                reads += file.ahead(found)
                begun.rows += [first[key]] * (len(reads) - len(begun.rows))
        if reads:
            from stream.storage.object_reads import object_reads

            begun.reads = object_reads().start(reads)

    def _wait(self, rows: Rows, begun: PendingBatch) -> None:
        """Wait for the reads of a batch; raise RemoteError if the store does not answer."""
        if begun.reads is None:
            return
        began, work = time.perf_counter(), begun.done.work
        for row, error in zip(begun.rows, begun.reads.result(), strict=True):
            if isinstance(error, RemoteError):
                self._fail(rows, begun.done, row, error)
        work.read_s += time.perf_counter() - began

    def _read_and_decode(
        self, rows: Rows, frames: Frames, images: Sequence[np.ndarray], share: Sequence[int]
    ) -> Assembled:
        done = Assembled()
        for start in range(0, len(share), _RUN):
            self._decode(self._read(share[start : start + _RUN], rows, frames, done, images), rows, images, done)
        return done

    def _read(
        self,
        share: Sequence[int],
        rows: Rows,
        frames: Frames,
        done: Assembled,
        images: Sequence[np.ndarray] | None = None,
    ) -> list[EncodedRow]:
        """Read the records of some rows and return their encoded frames; raw frames go right into ``images``."""
        began = time.perf_counter()
        found: list[EncodedRow] = []
        keys = list(zip(rows.split.tolist(), frames.shards, strict=True))
        members, begins = rows.member.tolist(), frames.begins
        stored = frames.positions, frames.num_bytes, frames.xxh3_64, frames.uses
        for row in share:
            here = slice(begins[row], begins[row + 1])
            if here.start == here.stop:
                continue
            columns: Sequence[Sequence[Any]] = [each[here] for each in stored]
            encoded: list[tuple[int, int, memoryview | ChunkFrame]] = []
            expected, is_raw = self._expected[members[row]], self._is_raw[members[row]]
            try:
                file = self._files.get(keys[row]) or self._open(*keys[row])
                if images is not None and any(is_raw):
                    columns = _read_raw(file, columns, [image[row] for image in images], is_raw, expected)
                positions, sizes, checksums, every_use = columns
                done.work.bytes += sum(frames.num_bytes[here])
                for data, uses in zip(file.read_all(positions, sizes, checksums), every_use, strict=True):
                    if video_codec(data):
                        own = self._sizes[members[row]]
                        encoded += [(camera, frame, ChunkFrame(data, n, own[camera])) for camera, frame, n in uses]
                        continue
                    views = frame_views(data)
                    if len(views) != expected:
                        raise FormatError(f"holds {len(views)} frames, expected {expected}")
                    encoded += [(camera, frame, views[number]) for camera, frame, number in uses]
            except (FormatError, OSError, RemoteError) as error:
                self._fail(rows, done, row, error)
                # A file that is repaired is opened again.
                with self._lock:
                    self._files.pop(keys[row], None)
                continue
            found.append((row, encoded))
        done.work.read_s += time.perf_counter() - began
        return found

    def _open(self, split: int, shard: int) -> RecordFile:
        """Open a shard, which closes with its last user after it has left ``_files``."""
        index = self.spec.splits[split]
        if not 0 <= shard < len(index.shards):
            raise FormatError(f"cannot be read (the index says shard {shard} of {len(index.shards)})")
        file = open_records(index, shard, neighbours=self.spec.neighbours, traffic=self._traffic)
        with self._lock:
            while len(self._files) >= self._max_open:
                self._files.pop(next(iter(self._files)))
            self._files[split, shard] = file
        return file

    def _decode(self, encoded: Sequence[EncodedRow], rows: Rows, images: Sequence[np.ndarray], done: Assembled) -> None:
        """Decode the frames of some rows into ``images``, uint8 [b, F, H, W, 3] or of depth uint16 [b, F, H, W]."""
        began = time.perf_counter()
        decoders: list[Any] = [decode_depth if camera.is_depth else decode_frame for camera in self.spec.cameras]
        resizes = [camera.resize for camera in self.spec.cameras]
        for row, frames in encoded:
            try:
                for camera, frame, data in frames:
                    image = images[camera][row, frame]
                    if (resize := resizes[camera]) is None:
                        decoders[camera](data, image)
                    else:
                        resize.apply(decoders[camera](data), image)
            except FormatError as error:
                self._fail(rows, done, row, FormatError(f"a frame cannot be decoded ({error})"))
        done.work.decode_s += time.perf_counter() - began

    def _fail(self, rows: Rows, done: Assembled, row: int, error: Exception) -> None:
        if limit := limit_of(error):
            # The record is not damaged, so no other may replace it.
            raise limit
        failed = _record_error(self.spec, rows, row, error)
        if isinstance(error, RemoteError):
            # The record is not damaged either.
            where = f"dataset {failed.dataset}, split {failed.split}, shard {failed.shard}, record {failed.record}"
            raise RemoteError(
                f"{where}: {error}; the same state goes on where the store answers", refused=error.refused
            )
        done.failed.append((row, failed))


def _read_raw(
    file: RecordFile,
    columns: Sequence[Sequence[Any]],
    images: Sequence[np.ndarray],
    is_raw: Sequence[bool],
    expected: int,
) -> Sequence[Sequence[Any]]:
    """Read the raw records of a row into its images, uint8 [F, H, W, 3] of each camera.

    Args:
        columns: Position, size, checksum and uses of each record.
        is_raw: Mask of the cameras. A record is read this way if all cameras that show it are in the mask.
        expected: Frames of a record.

    Returns:
        The columns of the other records.
    """
    others = []
    for record in zip(*columns, strict=True):
        position, num_bytes, xxh3_64, uses = record
        if not uses or not all(is_raw[camera] for camera, _, _ in uses):
            others.append(record)
            continue
        places: list[np.ndarray | None] = [None] * expected
        again = []
        for camera, frame, number in uses:
            image = images[camera][frame]
            if (first := places[number]) is None:
                places[number] = image
            else:
                again.append((image, first))
        # Frames that the window leaves out are read too, since the checksum is of the whole record.
        raw = RawRecord([np.empty_like(image) if place is None else place for place in places])
        file.read_into(position, num_bytes, xxh3_64, raw.parts)
        raw.check()
        for image, first in again:
            image[...] = first
    return list(zip(*others, strict=True)) if others else [()] * len(columns)


def _record_error(spec: BatchSpec, rows: Rows, row: int, error: Exception) -> RecordError:
    split, record = spec.splits[int(rows.split[row])], int(rows.record[row])
    firsts = split.shards.first_records
    episode = number = -1
    try:
        if spec.layouts[split.member] == "pairs":
            episode = int(split.records.array("episode")[record])
        else:
            episode, step = int(split.steps.array("episode")[record]), int(split.steps.array("step")[record])
            record = int(split.episodes.array("first_record")[episode]) + step
        number = split.record_number(record)
    except (OSError, IndexError):
        record = min(record, int(firsts[-1]) - 1)
    # The shard comes from the manifest, as the index may be damaged.
    shard = int(np.clip(np.searchsorted(firsts, record, side="right") - 1, 0, len(firsts) - 2))
    return RecordError(
        str(error),
        dataset=split.dataset,
        split=split.split,
        shard=split.shards.stem(shard),
        record=record - int(firsts[shard]) if number < 0 else number,
        episode=episode,
        sample=int(rows.sample[row]),
    )
