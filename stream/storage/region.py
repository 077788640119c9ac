"""Files mapped one after the other, so that one numpy take reads from all of them.

A batch has rows of many datasets. One take for each dataset and column would cost many calls; in one range of addresses
the index of a number is a sum, whatever its file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
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
_CAN_POPULATE = sys.platform == "linux"
_CHUNK = 64 << 20
"""Bytes mapped at a time; fewer are left to page faults."""
_PAUSE_S = 0.5


class Region:
    """Files mapped into one range of addresses, after a page of zeros.

    Attributes:
        starts: Byte offset of each file in the region, a multiple of the page size.
        files: Bytes of each file, uint8.

    Raises:
        OSError: A file cannot be opened or mapped.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        file_sizes = [os.stat(path).st_size for path in paths]
        mapped_sizes = [-(-file_size // mmap.PAGESIZE) * mmap.PAGESIZE for file_size in file_sizes]
        self.starts: list[int] = (mmap.PAGESIZE + np.cumsum([0, *mapped_sizes])[:-1]).tolist()
        # Python's mmap cannot choose an address, so one mapping reserves the range until its last user is gone.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        reserved = mmap.mmap(-1, mmap.PAGESIZE + sum(mapped_sizes), flags=flags, prot=mmap.PROT_READ)
        self._bytes = np.frombuffer(reserved, np.uint8)
        base_address = self._bytes.ctypes.data
        for path, file_size, file_start in zip(paths, file_sizes, self.starts, strict=True):
            if file_size:
                self._map(path, file_size, base_address + file_start)
        self.files = [self._bytes[start : start + size] for start, size in zip(self.starts, file_sizes, strict=True)]

    def read_ahead(self, spans: Sequence[tuple[int, int]]) -> None:
        """Read spans of bytes into the page cache and map them, in this order and in a thread, while memory allows."""
        num_bytes = sum(stop - start for start, stop in spans)
        if num_bytes <= _CHUNK:
            return
        # By default the kernel reads 128 kB for each of the numbers of a batch.
        _libc.madvise(self._bytes.ctypes.data, len(self._bytes), mmap.MADV_RANDOM)
        available = available_memory()
        if not _CAN_POPULATE:
            return
        if available is None or num_bytes < available // 2:
            threading.Thread(target=self._map_pages, args=(spans,), name="stream-map", daemon=True).start()

    def _map_pages(self, spans: Sequence[tuple[int, int]]) -> None:
        base_address = self._bytes.ctypes.data
        # The first batch is read without competition.
        time.sleep(_PAUSE_S)
        for span_start, span_stop in spans:
            for chunk_start in range(span_start // mmap.PAGESIZE * mmap.PAGESIZE, span_stop, _CHUNK):
                length = min(_CHUNK, span_stop - chunk_start)
                _libc.madvise(base_address + chunk_start, length, mmap.MADV_NORMAL)
                # Before Linux 5.14 this fails, and pages are mapped as they are used.
                if _libc.madvise(base_address + chunk_start, length, _MADV_POPULATE_READ):
                    return

    def view(self, dtype: str) -> np.ndarray:
        """Return the region as numbers of a type; an index is a byte offset divided by the type's size."""
        itemsize = np.dtype(dtype).itemsize
        return self._bytes[: len(self._bytes) // itemsize * itemsize].view(dtype)

    @staticmethod
    def _map(path: str, num_bytes: int, address: int) -> None:
        file_descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if (
                _libc.mmap(address, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, file_descriptor, 0)
                != address
            ):
                error_number = ctypes.get_errno()
                raise OSError(error_number, os.strerror(error_number), path)
        finally:
            os.close(file_descriptor)
