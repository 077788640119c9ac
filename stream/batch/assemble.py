"""Assembly of a batch: rows are looked up, their records read, and the frames decoded into the arrays."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

import numpy as np

from stream.base.errors import FormatError, RingError
from stream.base.machine import available_memory, limit_of
from stream.batch.encoded import EncodedRow, pack_frames
from stream.batch.frames import Frames
from stream.batch.layout import empty_array
from stream.batch.lookup import Lookup
from stream.batch.pictures.augmentation import Amounts
from stream.batch.pictures.host import HostAugmenter
from stream.batch.record_reader import RecordReader
from stream.batch.result import BatchResult, PendingBatch, add_failure
from stream.batch.spec import BatchSpec
from stream.format.frame import decode_depth, decode_frame
from stream.order.rows import Rows
from stream.sample.frames import Decode

_RUN = 64
"""Records that are read before their frames are decoded."""
_LARGE = 256 << 20
"""Size in bytes from which on a batch is compared with the available memory first."""


class Assembler:
    """Assembler of batches of a spec; one for each process, safe to use from several threads.

    Args:
        spec: Content of a batch.
        decode: ``host`` decodes frames here; ``device`` leaves them encoded (``stream.batch.encoded``).
        threads: Threads that share the rows of a batch.
        max_open: Most ArrayRecord files that stay open.
        augments: Whether decoded frames are augmented, if the spec has an augmentation.

    Attributes:
        fields: dtype and shape of one row, by name of the array.
    """

    def __init__(
        self,
        spec: BatchSpec,
        *,
        decode: Decode = "host",
        threads: int = 1,
        max_open: int | None = None,
        augments: bool = True,
    ) -> None:
        self.spec = spec
        self.fields = spec.fields()
        if decode == "device":
            for camera in spec.cameras:
                del self.fields[camera.frames]
        self._is_encoded = decode == "device"
        augmentation = spec.augmentation if augments and not self._is_encoded else None
        self._augmenter = None if augmentation is None else HostAugmenter(augmentation)
        self._records = RecordReader(spec, max_open=max_open)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stream-decode") if threads > 1 else None

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
        frames, texts_by_key = self._lookup.look_up(rows, arrays, partial(add_failure, result, spec=self.spec))
        result.work.metadata_s += time.perf_counter() - start_time
        pending = PendingBatch(result, frames, texts_by_key)
        if self.spec.is_remote and self.spec.cameras:
            self._records.start(pending)
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
        self._records.wait(pending)
        failed_rows = {row for row, _ in result.failed}
        readable = [row for row in range(len(rows)) if row not in failed_rows]
        packed_arrays: dict[str, np.ndarray] = {}
        if self._is_encoded:
            encoded = self._records.read(readable, frames, result)
            suffixes = [camera.suffix for camera in self.spec.cameras]
            max_frames = self.spec.window_table.frames
            packed_arrays = pack_frames(
                encoded, frames.copies, num_rows=len(rows), max_frames=max_frames, suffixes=suffixes
            )
        elif self.spec.cameras:
            self._fill_images(readable, frames, [arrays[camera.frames] for camera in self.spec.cameras], result)
        result.batch = {**packed_arrays, **arrays, **pending.texts}
        result.failed.sort(key=lambda failure: failure[0])
        self._records.report_traffic(result.work)
        return result

    def _fill_images(
        self, readable: Sequence[int], frames: Frames, images: Sequence[np.ndarray], result: BatchResult
    ) -> None:
        """Read and decode the frames of some rows, in all threads."""
        run = map if self._pool is None else self._pool.map
        amounts = None if self._augmenter is None else self._augmenter.draw(result.rows.sample)
        thread_shares = [readable[thread :: self._threads] for thread in range(self._threads)]
        for thread_result in run(partial(self._read_and_decode, result.rows, frames, images, amounts), thread_shares):
            result.failed += thread_result.failed
            result.work.add(thread_result.work)
        for row, camera, frame, source_frame in frames.copies:
            images[camera][row, frame] = images[camera][row, source_frame]
        for row, camera, frame in frames.black:
            images[camera][row, frame] = 0

    def encoded_rows(self, rows: Rows) -> list[EncodedRow]:
        """Return the frames of rows as stored, each picture of a row once; raise RecordError if one is unreadable."""
        encoded, result = self.read(rows, self.empty(len(rows)))
        for _, error in result.failed[:1]:
            raise error
        return encoded

    def read(self, rows: Rows, arrays: Mapping[str, np.ndarray]) -> tuple[list[EncodedRow], BatchResult]:
        """Return the frames of rows as stored, and the rows that failed; fill all arrays but those of frames."""
        result = BatchResult(rows)
        pending = PendingBatch(
            result, *self._lookup.look_up(rows, arrays, partial(add_failure, result, spec=self.spec))
        )
        if self.spec.is_remote and self.spec.cameras:
            self._records.start(pending)
            self._records.wait(pending)
        return self._records.read(range(len(rows)), pending.frames, result), result

    def _read_and_decode(
        self,
        rows: Rows,
        frames: Frames,
        images: Sequence[np.ndarray],
        amounts: Sequence[Amounts] | None,
        row_numbers: Sequence[int],
    ) -> BatchResult:
        result = BatchResult(rows)
        for first in range(0, len(row_numbers), _RUN):
            run_rows = row_numbers[first : first + _RUN]
            self._decode(self._records.read(run_rows, frames, result, images), images, result)
            if amounts is not None:
                self._augment(run_rows, frames, images, amounts, result)
        return result

    def _augment(
        self,
        row_numbers: Sequence[int],
        frames: Frames,
        images: Sequence[np.ndarray],
        amounts: Sequence[Amounts],
        result: BatchResult,
    ) -> None:
        """Augment the frames of some rows in place; copies and black frames are filled later."""
        assert self._augmenter is not None
        start_time = time.perf_counter()
        failed_rows = {row for row, _ in result.failed}
        for row in row_numbers:
            record_uses = frames.uses[frames.row_starts[row] : frames.row_starts[row + 1]]
            for camera, frame, _ in itertools.chain.from_iterable(() if row in failed_rows else record_uses):
                self._augmenter.apply(images[camera][row, frame], amounts[camera], row)
        result.work.decode_s += time.perf_counter() - start_time

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
                reason = FormatError(f"a frame cannot be decoded ({error})")
                add_failure(result, row, reason, spec=self.spec)
        result.work.decode_s += time.perf_counter() - start_time
