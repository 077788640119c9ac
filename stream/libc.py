"""Calls of the C library for which Python's mmap has no way: an address of one's own, no file handle kept."""

from __future__ import annotations

import ctypes

_libc = ctypes.CDLL(None, use_errno=True)
mmap, munmap, madvise = _libc.mmap, _libc.munmap, _libc.madvise
mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
mmap.restype = ctypes.c_void_p
munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
FAILED = ctypes.c_void_p(-1).value
"""What mmap returns then; why is ``ctypes.get_errno()``."""
