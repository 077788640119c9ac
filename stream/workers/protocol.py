"""Protocol between trainer and worker: a request names a step and a slot, and the reply describes the batch there."""

from __future__ import annotations

import errno
import mmap
import os
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stream.base.errors import FormatError, RecordError, RingError, StreamError
from stream.base.machine import available_memory, extend
from stream.batch.layout import Layout, aligned
from stream.batch.maker import BatchMaker
from stream.batch.result import PendingBatch, Timings
from stream.batch.spec import Batch, map_values
from stream.order.rows import ROW_TYPE, Rows


class Request(NamedTuple):
    """Request for the batch of a step in a slot of ``size`` bytes, which starts with the batch's ``rows`` rows.

    ``is_new`` is True if the slot's file descriptor follows.
    """

    step: int
    rows: int
    slot: int
    size: int
    is_new: bool


class ArrayLocation(NamedTuple):
    """Location of an array in a slot; ``LAID_OUT`` has no dtype."""

    dtype: np.dtype | None
    shape: tuple[int, ...]
    offset: int


LAID_OUT = ArrayLocation(None, (), -1)
"""Location of an array that the layout has under the same key, since describing each costs more than its content."""


COPIED = 1 << 20
"""Bytes up to which the trainer copies an array, since a small array in use would keep its slot."""


class Reply(NamedTuple):
    """Outcome of a request.

    Attributes:
        batch: The batch; each array is replaced by its ``ArrayLocation`` in the slot.
        failed: Rows that cannot be read, and their errors.
        work: Work done.
        error: Any other failure, as a text if the error is not of this package.
    """

    batch: Mapping[str, Any] = {}
    failed: Sequence[tuple[int, RecordError]] = ()
    work: Timings = Timings()
    error: StreamError | FormatError | str = ""


def read_batch(reply: Reply, layout: Layout, buffer: Any) -> Batch:
    """Return the batch of a reply. Images and large arrays are over the memory of its slot, others are copied."""
    arrays = layout.arrays(buffer)

    def read(batch_key: str, value: Any) -> Any:
        if not isinstance(value, ArrayLocation):
            return value
        array = arrays[batch_key] if value.dtype is None else np.ndarray(value.shape, value.dtype, buffer, value.offset)
        return array if batch_key in layout.images or array.nbytes > COPIED else array.copy()

    return map_values(read, reply.batch)


class SlotWriter:
    """Slot in a worker, which fills it with the batches of a maker."""

    def __init__(self, descriptor: int, maker: BatchMaker) -> None:
        self._fd = descriptor
        self._maker = maker
        self._map()

    def begin(self, request: Request) -> PendingBatch | None:
        """Ask for the records of a batch if the root is read in place."""
        return self._maker.begin(*self._open(request)) if self._maker.asks_ahead else None

    def make(self, request: Request, pending: PendingBatch | None = None) -> Reply:
        """Make a batch in the slot, which grows if the batch does not fit."""
        try:
            return self._make(request, pending)
        except StreamError as error:
            return Reply(error=error)
        except Exception:
            return Reply(error=traceback.format_exc())

    def _map(self) -> None:
        self._memory = np.frombuffer(mmap.mmap(self._fd, os.fstat(self._fd).st_size), np.uint8)

    def _open(self, request: Request) -> tuple[Rows, dict[str, np.ndarray]]:
        """Return the rows of a request, and the arrays of its batch."""
        if len(self._memory) < request.size:
            # Another worker enlarged the slot.
            self._map()
        rows = Rows(np.frombuffer(self._memory, ROW_TYPE, request.rows))
        return rows, self._maker.layout.arrays(self._memory, request.rows)

    def _make(self, request: Request, pending: PendingBatch | None) -> Reply:
        rows, arrays = self._open(request)
        result = self._maker.make(request.step, rows, arrays, pending)
        if result.failed:
            return Reply(failed=result.failed, work=result.work)
        placed, copies, needed = self._place(result.batch, arrays)
        if needed > len(self._memory):
            try:
                self._enlarge(needed)
            except OSError as error:
                reason = f"a batch of {needed:,} bytes does not fit into memory ({error.strerror})"
                return Reply(error=RingError(f"{reason}; take a smaller batch_size"))
        for location, array in copies:
            np.ndarray(location.shape, location.dtype, self._memory, location.offset)[...] = array
        return Reply(placed, work=result.work)

    def _place(
        self, batch: Batch, arrays: Mapping[str, np.ndarray]
    ) -> tuple[Batch, list[tuple[ArrayLocation, np.ndarray]], int]:
        """Return a batch with the locations of its arrays in the slot, the arrays to copy, and the bytes that it needs.

        ``arrays`` of the layout, and contiguous views of them, keep their location. Others go behind the layout.
        """
        layout = self._maker.layout
        end = layout.nbytes
        copies: list[tuple[ArrayLocation, np.ndarray]] = []

        def locate(batch_key: str, value: Any) -> Any:
            nonlocal end
            # Subclasses, such as masked arrays, have more than numbers.
            if type(value) is not np.ndarray or value.dtype.hasobject:
                return value
            is_contiguous = value.flags.c_contiguous
            # A transform may have changed the shape or type of an array in place.
            if (
                value is arrays.get(batch_key)
                and is_contiguous
                and layout.kinds[batch_key] == (value.dtype, value.shape)
            ):
                return LAID_OUT
            location = ArrayLocation(value.dtype, value.shape, value.ctypes.data - self._memory.ctypes.data)
            if not (is_contiguous and 0 <= location.offset <= layout.nbytes - value.nbytes):
                location = location._replace(offset=aligned(end))
                end = location.offset + value.nbytes
                copies.append((location, value))
            return location

        return map_values(locate, batch), copies, end

    def _enlarge(self, needed: int) -> None:
        available = available_memory()
        if available is not None and needed - len(self._memory) > available:
            # Checked first: the kernel would end the process instead of refusing the memory.
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        extend(self._fd, needed)
        self._map()
