"""Files mapped one after the other, so that one numpy take reads from all of them.

A batch has rows of many datasets. One take for each dataset and column would cost many calls; in one range of addresses
the index of a number is a sum, whatever its file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Sequence

import numpy as np

from stream.base.machine import available_memory

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FIXED = 0x10
_MADV_POPULATE_READ = 22
_CHUNK = 64 << 20
"""Bytes mapped at a time; fewer are left to page faults."""
_PAUSE_S = 0.5


class Region:
    """Files mapped into one range of addresses, after a page of zeros.

    Args:
        paths: Files.

    Attributes:
        starts: Byte offset of each file in the region, a multiple of the page size.
        files: Bytes of each file, uint8.

    Raises:
        OSError: A file cannot be opened or mapped.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        sizes = [os.stat(path).st_size for path in paths]
        pages = [-(-size // mmap.PAGESIZE) * mmap.PAGESIZE for size in sizes]
        self.starts: list[int] = (mmap.PAGESIZE + np.cumsum([0, *pages])[:-1]).tolist()
        # Python's mmap cannot choose an address, so one mapping reserves the range until its last user is gone.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        kept = mmap.mmap(-1, mmap.PAGESIZE + sum(pages), flags=flags, prot=mmap.PROT_READ)
        self._bytes = np.frombuffer(kept, np.uint8)
        base = self._bytes.ctypes.data
        for path, size, start in zip(paths, sizes, self.starts, strict=True):
            if size:
                self._map(path, size, base + start)
        self.files = [self._bytes[start : start + size] for start, size in zip(self.starts, sizes, strict=True)]

    def read_ahead(self, spans: Sequence[tuple[int, int]]) -> None:
        """Read bytes that batches need into the page cache and map them, in a thread, while memory allows.

        Args:
            spans: (start, stop) of bytes of the region, in the order in which they are needed.
        """
        size = sum(stop - start for start, stop in spans)
        if size <= _CHUNK:
            return
        # By default the kernel reads 128 kB for each of the numbers of a batch.
        _libc.madvise(self._bytes.ctypes.data, len(self._bytes), mmap.MADV_RANDOM)
        available = available_memory()
        if available is None or size < available // 2:
            threading.Thread(target=self._map_pages, args=(spans,), name="stream-map", daemon=True).start()

    def _map_pages(self, spans: Sequence[tuple[int, int]]) -> None:
        base = self._bytes.ctypes.data
        # The first batch comes first.
        time.sleep(_PAUSE_S)
        for first, stop in spans:
            for start in range(first // mmap.PAGESIZE * mmap.PAGESIZE, stop, _CHUNK):
                length = min(_CHUNK, stop - start)
                _libc.madvise(base + start, length, mmap.MADV_NORMAL)
                # Before Linux 5.14 this fails, and pages are mapped as they are used.
                if _libc.madvise(base + start, length, _MADV_POPULATE_READ):
                    return

    def view(self, dtype: str) -> np.ndarray:
        """Return the region as numbers of a type; an index is a byte offset divided by the type's size."""
        size = np.dtype(dtype).itemsize
        return self._bytes[: len(self._bytes) // size * size].view(dtype)

    @staticmethod
    def _map(path: str, size: int, address: int) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _libc.mmap(address, size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) != address:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(fd)
