"""A ring of slots: shared memory that is allocated once and reused for many batches.

A slot is anonymous memory (``memfd_create``; on macOS a file without a name). It has no name, so no process leaves it
behind, and Docker's limit on /dev/shm does not apply. New memory for every batch would cost many page faults. A slot is
free again when the last array, view or tensor over it is gone; if the caller keeps all batches, the ring grows.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from stream.base.errors import RingError
from stream.base.machine import anonymous_file, available_memory, extend

_REMEDY = "take a smaller batch_size, fewer num_workers or a smaller prefetch"


class Slot:
    """Shared memory of ``size`` bytes for one batch; its file descriptor ``fd`` also identifies it in its ring.

    ``unlock`` is called before the memory ``map`` is unmapped; it is None if the memory is not page-locked.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.unlock: Callable[[], None] | None = None
        self.fd = -1
        try:
            self.fd = anonymous_file("stream-slot")
            extend(self.fd, size)
            self.map = mmap.mmap(self.fd, size)
        except OSError as error:
            if self.fd >= 0:
                os.close(self.fd)
            problem = f"a slot of {size:,} bytes for a batch is not available ({error.strerror})"
            raise RingError(f"{problem}; {_REMEDY}, or release batches that you keep") from None

    def refit(self) -> None:
        """Map the slot again if a worker enlarged it."""
        slot_bytes = os.fstat(self.fd).st_size
        if slot_bytes != self.size:
            self._unlock()
            self.map, self.size = mmap.mmap(self.fd, slot_bytes), slot_bytes

    def close(self) -> None:
        """Release the memory, which no array may point into."""
        self._unlock()
        del self.map
        os.close(self.fd)

    def _unlock(self) -> None:
        if self.unlock is not None:
            self.unlock()
            self.unlock = None


class _Loan(weakref.ref[Any]):
    """Reference to a buffer over a slot."""

    __slots__ = ("slot",)
    slot: Slot


def slot_of(array: Any) -> Slot | None:
    """Return the slot that an array is in, or None if its memory is not of a ring."""
    while isinstance(array, np.ndarray):
        array = array.base
    return getattr(array, "slot", None)


class Ring:
    """Slots of one iterator, free or not, of ``size`` bytes each."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.slots: list[Slot] = []
        self._free: deque[Slot] = deque()
        self._lent: dict[Slot, _Loan] = {}
        # Loans append themselves, in whichever thread releases a batch last. A Python function in place of the method
        # of the deque would lose a Ctrl-C that comes while it runs: exceptions of such calls are only printed.
        self._returned: deque[_Loan] = deque()
        self._is_closed = False

    def reserve(self, num_slots: int) -> None:
        """Check that memory for ``num_slots`` slots is available; raises RingError if not."""
        num_bytes = num_slots * self.size
        available = available_memory()
        if available is not None and num_bytes > available:
            needed = f"{num_bytes:,} bytes ({num_slots} slots of {self.size:,})"
            raise RingError(f"the ring of batches needs {needed}, {available:,} are available; {_REMEDY}")

    def take(self) -> Slot:
        """Return a free slot, or a new one if none is free."""
        # Only one thread takes slots.
        while self._returned:
            slot = self._returned.popleft().slot
            if self._lent.pop(slot, None) is not None:
                self._free.append(slot)
        if self._free:
            return self._free.popleft()
        try:
            # Checked first: in a full control group the kernel ends the process instead of refusing the memory.
            self.reserve(1)
            slot = Slot(self.size)
        except RingError as error:
            raise RingError(f"{error}; {len(self.slots)} slots of the ring are in use already") from None
        self.slots.append(slot)
        return slot

    def give(self, slot: Slot) -> None:
        """Return a slot to the ring; no array may point into it."""
        self._free.append(slot)
        self._close_if_closed()

    def lend(self, slot: Slot) -> Any:
        """Return the memory of a slot as a buffer; the slot returns to the ring with the last array over it.

        Call ``Slot.refit`` first if a worker may have enlarged the slot.
        """
        # Arrays over this object keep it alive; over a memoryview they would keep only the memory behind it.
        buffer = (ctypes.c_char * slot.size).from_buffer(slot.map)
        buffer.slot = slot  # type: ignore[attr-defined]
        loan = _Loan(buffer, self._returned.append)
        loan.slot = slot
        self._lent[slot] = loan
        self._close_if_closed()
        return buffer

    def close(self) -> None:
        """Close the free slots now, and the others when they return."""
        self._is_closed = True
        self._close_if_closed()

    def _close_if_closed(self) -> None:
        # Called after each change of the slots, as another thread may close the ring meanwhile.
        if not self._is_closed:
            return
        with contextlib.suppress(IndexError):
            while True:
                self._free.popleft().close()
        with contextlib.suppress(KeyError):
            while True:
                slot, loan = self._lent.popitem()
                buffer = loan()
                if buffer is None:
                    slot.close()
                else:
                    weakref.finalize(buffer, slot.close).atexit = False
