"""The ring: batches live in slots of shared memory that are made once and used again.

A slot is anonymous memory (``memfd_create``): it has no name, so nothing can be left behind, and Docker's limit on
/dev/shm does not apply. A fresh segment for every batch would cost half the machine in page faults. A slot is free
again when the last array, view or tensor that points into it is gone; if all are kept, the ring grows.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections import deque
from typing import Any

from stream.storage.errors import RingError
from stream.storage.memory import available_memory


class Slot:
    """One slot. ``fd`` is handed to the workers, and names the slot among those of its ring; ``size`` is in bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.fd = -1
        try:
            self.fd = os.memfd_create("stream-slot", os.MFD_CLOEXEC)
            # Reserved now: a page that cannot be had later would end the process with SIGBUS.
            os.posix_fallocate(self.fd, 0, size)
            self.map = mmap.mmap(self.fd, size)
        except OSError as error:
            if self.fd >= 0:
                os.close(self.fd)
            raise RingError(
                f"a slot of {size:,} bytes for a batch cannot be had ({error.strerror}); take a smaller batch_size, "
                "fewer num_workers or a smaller prefetch, or let go of batches that were kept"
            ) from None

    def refit(self) -> None:
        """Map the slot again after a worker made it larger."""
        size = os.fstat(self.fd).st_size
        if size != self.size:
            self.map, self.size = mmap.mmap(self.fd, size), size

    def close(self) -> None:
        """Give the memory back, once no array points into it any more."""
        del self.map
        os.close(self.fd)


class Ring:
    """The slots of one iterator.

    Args:
        size: bytes of a slot.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.slots: list[Slot] = []
        # Appended to by weak references, in whichever thread lets go of a batch last.
        self._free: deque[Slot] = deque()
        self._is_closed = False

    def reserve(self, count: int) -> None:
        """Make sure that ``count`` slots can be had; raises RingError if memory is short."""
        needed = count * self.size
        available = available_memory()
        if available is not None and needed > available:
            raise RingError(
                f"the ring of batches needs {needed:,} bytes ({count} slots of {self.size:,}), {available:,} are "
                "available; take a smaller batch_size, fewer num_workers or a smaller prefetch"
            )

    def take(self) -> Slot:
        """Return a free slot, a new one if there is none."""
        # Only this thread takes any.
        if self._free:
            return self._free.popleft()
        try:
            # Asked first: where a cgroup is full, the kernel ends the process instead of refusing the memory.
            self.reserve(1)
            slot = Slot(self.size)
        except RingError as error:
            raise RingError(f"{error}; {len(self.slots)} slots of the ring are in use already") from None
        self.slots.append(slot)
        return slot

    def give(self, slot: Slot) -> None:
        """Give back a slot that nothing points into."""
        self._free.append(slot)
        # Looked at afterwards, so that no slot is left over if another thread closes the ring meanwhile.
        if self._is_closed:
            self.close()

    def lend(self, slot: Slot) -> Any:
        """Return the memory of a slot as a buffer; it comes back to the ring when the last array over it is gone.

        A slot that a worker may have made larger is to be refit before.
        """
        # Arrays made by np.frombuffer keep this object alive; of a memoryview they would keep only the memory behind
        # it.
        buffer = (ctypes.c_char * slot.size).from_buffer(slot.map)
        # The callback must not hold the ring's owner, else a dropped iterator would live as long as its last batch.
        weakref.finalize(buffer, self.give, slot).atexit = False
        return buffer

    def close(self) -> None:
        """Close the free slots now, and the others when they come back."""
        self._is_closed = True
        with contextlib.suppress(IndexError):
            while True:
                self._free.popleft().close()
