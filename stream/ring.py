"""The ring: batches live in slots of shared memory that are made once and used again.

A slot is anonymous memory (``memfd_create``): it has no name, so nothing can be left behind, and Docker's limit on
/dev/shm does not apply. A fresh segment for every batch would cost half the machine in page faults. A slot is free
again when the last array, view or tensor that points into it is gone; if all are kept, the ring grows.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import math
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from stream.errors import RingError
from stream.memory_limit import available_memory

ALIGN = 64
IMAGE_SHIFT = 16
"""Offset of images from a multiple of 64 bytes. libjpeg-turbo writes lines that begin at a multiple of 32 bytes past
the caches, which is slower."""
Fields = Mapping[str, tuple[str, tuple[int, ...]]]


class Layout:
    """Where the arrays of a batch of ``rows`` rows lie in a slot, one behind the other, each aligned to 64 bytes but
    images, which lie ``IMAGE_SHIFT`` bytes behind.

    >>> layout = Layout({"a": ("u1", (3,)), "b": ("i8", ()), "c": ("u1", (2, 2, 3))}, rows=2)
    >>> layout.offsets, layout.nbytes
    ({'a': 0, 'b': 64, 'c': 144}, 168)
    """

    def __init__(self, fields: Fields, *, rows: int) -> None:
        self.nbytes = 0
        self._arrays: list[tuple[str, tuple[int, ...], np.dtype, int]] = []
        for name, (kind, shape) in fields.items():
            dtype = np.dtype(kind)
            shift = IMAGE_SHIFT if _is_image(dtype, shape) else 0
            start = -(-self.nbytes // ALIGN) * ALIGN + shift
            self._arrays.append((name, (rows, *shape), dtype, start))
            self.nbytes = start + rows * math.prod(shape) * dtype.itemsize

    @property
    def offsets(self) -> dict[str, int]:
        """Where each array begins."""
        return {name: start for name, _, _, start in self._arrays}

    def arrays(self, buffer: Any, *, base: int = 0) -> dict[str, np.ndarray]:
        """Return the arrays over a buffer, without a copy; each keeps the buffer alive."""
        return {name: np.ndarray(shape, dtype, buffer, base + start) for name, shape, dtype, start in self._arrays}


def empty_array(rows: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Make an array of ``rows`` rows, not initialised, that lies as ``Layout`` has it."""
    if not _is_image(dtype, shape):
        return np.empty((rows, *shape), dtype)
    size = math.prod((rows, *shape))
    memory = np.empty(size + ALIGN, np.uint8)
    start = (IMAGE_SHIFT - memory.ctypes.data) % ALIGN
    return memory[start : start + size].reshape(rows, *shape)


def _is_image(dtype: str | np.dtype, shape: tuple[int, ...]) -> bool:
    return np.dtype(dtype) == np.uint8 and len(shape) >= 3


class Slot:
    """One slot. ``fd`` is handed to the workers; ``size`` is in bytes; ``number`` is never used twice in a process."""

    _numbers = itertools.count()

    def __init__(self, size: int) -> None:
        self.on_map: Callable[[Slot], None] | None = None
        """Called with the slot whenever its memory lies somewhere new."""
        self.on_unmap: Callable[[], None] | None = None
        """Called before its memory goes from where it lies, once."""
        self.number = next(Slot._numbers)
        self.size = size
        self.fd = -1
        try:
            self.fd = os.memfd_create("stream-slot", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, size)
            # Reserved now: a page that cannot be had later would end the process with SIGBUS.
            os.posix_fallocate(self.fd, 0, size)
            self.map = mmap.mmap(self.fd, size)
        except OSError as error:
            self.close()
            raise RingError(_too_little(size, error)) from None

    def refit(self) -> None:
        """Map the slot again after a worker made it larger."""
        size = os.fstat(self.fd).st_size
        if size != self.size:
            grown = mmap.mmap(self.fd, size)
            self._unmap()
            self.map, self.size = grown, size
            if self.on_map is not None:
                self.on_map(self)

    def close(self, _close: Callable[[int], None] = os.close) -> None:
        """Give the memory back, once no array points into it any more."""
        # At the end of the interpreter ``os`` may be gone before the last batch.
        if self.fd >= 0:
            _close(self.fd)
            self.fd = -1
        self._unmap()

    @property
    def address(self) -> int:
        """Address of the memory in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def _unmap(self) -> None:
        on_unmap, self.on_unmap = self.on_unmap, None
        if on_unmap is not None:
            on_unmap()
        self.__dict__.pop("map", None)


_lent: dict[int, weakref.ref[Any]] = {}
"""The memory that is lent, by the number of its slot. Kept by their ring, a garbage collection could take both before
memory comes back."""


class Ring:
    """The slots of one iterator.

    Args:
        size: bytes of a slot.
        on_new: called with every new slot, to register its memory with a device, for example.
    """

    def __init__(self, size: int, *, on_new: Callable[[Slot], None] | None = None) -> None:
        self.size = size
        self.slots: list[Slot] = []
        # At the end of the interpreter it may be gone from the module before the last batch.
        self._lent = _lent
        self._on_new = on_new
        # Appended to by weak references, in whichever thread lets go of a batch last.
        self._free: deque[Slot] = deque()
        self._closed = threading.Event()

    def __len__(self) -> int:
        """Slots that were made."""
        return len(self.slots)

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
        try:
            return self._free.popleft()
        except IndexError:
            pass
        try:
            # Asked first: where a cgroup is full, the kernel ends the process instead of refusing the memory.
            self.reserve(1)
            slot = Slot(self.size)
        except RingError as error:
            raise RingError(f"{error}; {len(self.slots)} slots of the ring are in use already") from None
        self.slots.append(slot)
        slot.on_map = self._on_new
        if self._on_new is not None:
            self._on_new(slot)
        return slot

    def give(self, slot: Slot) -> None:
        """Give back a slot that nothing points into."""
        self._free.append(slot)
        # Looked at afterwards, so that no slot is left over if another thread closes the ring meanwhile.
        if self._closed.is_set():
            self._close_free()

    def lend(self, slot: Slot) -> Any:
        """Return the memory of a slot as a buffer; it comes back to the ring when the last array over it is gone.

        A slot that a worker may have made larger is to be refit before.
        """
        # Arrays made by np.frombuffer keep this object alive; of a memoryview they would keep only the memory behind
        # it.
        buffer = (ctypes.c_char * slot.size).from_buffer(slot.map)
        # The callback must not hold the ring's owner, else a dropped iterator would live as long as its last batch.
        self._lent[slot.number] = weakref.ref(buffer, partial(self._come_back, slot))
        return buffer

    def _come_back(self, slot: Slot, _: weakref.ref[Any]) -> None:
        del self._lent[slot.number]
        self.give(slot)

    def close(self) -> None:
        """Close the free slots now, and the others when they come back."""
        self._closed.set()
        self._close_free()

    def _close_free(self) -> None:
        while True:
            try:
                self._free.popleft().close()
            except IndexError:
                return


def _too_little(size: int, error: OSError) -> str:
    reason = "too many open files" if error.errno in (errno.EMFILE, errno.ENFILE) else error.strerror
    return (
        f"a slot of {size:,} bytes for a batch cannot be had ({reason}); take a smaller batch_size, fewer "
        "num_workers or a smaller prefetch, or let go of batches that were kept"
    )
