"""Files mapped into memory, to be read here and there.

pyarrow's memory map asks the kernel to read all that is mapped at once: that takes 10 microseconds of the processor if
the file is in memory, and four milliseconds for 8 MB that are not, of which a few values are wanted. Python's own keeps
a file handle.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable

import pyarrow as pa

from stream import libc


class _Mapping:
    """Memory that is given back with its last user."""

    __slots__ = ("address", "size")

    def __init__(self, path: str) -> None:
        self.size = 0
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(file).st_size
            self.address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0) if size else None
            if self.address == libc.FAILED:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
            self.size = size
        finally:
            os.close(file)

    def __del__(self, _munmap: Callable[[int | None, int], int] = libc.munmap) -> None:
        if self.size:
            _munmap(self.address, self.size)


def map_file(path: str) -> pa.Buffer:
    """Return the bytes of a file; the mapping lasts as long as the buffer and what is made of it.

    Raises:
        OSError: the file cannot be opened or mapped; with its path.
    """
    mapping = _Mapping(path)
    return pa.foreign_buffer(mapping.address, mapping.size, mapping) if mapping.size else pa.py_buffer(b"")
