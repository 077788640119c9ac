"""The memory of a slot: shared by processes without a name, and on huge pages where the kernel gives them.

A batch of 64 pairs of 256x256 lies on 6,200 ordinary pages, more than a processor finds without looking them up in
memory, or on 13 huge ones. On these the loader makes 0.9 % more batches a second on a virtual machine with an Intel
processor (two workers, five starts of 80 rounds together in turns: 0.2 to 1.8 %), and on one with AMD's, which can
keep neighbouring pages together by itself, no more than before (four starts: -1.3 to +0.3 %). Who writes to a slot for
the first time takes 3 ms in place of 11. numpy asks for huge pages of its own for large arrays, so decoding alone had
them already. Making a slot takes 2 to 8 ms in place of 2 to 9, and up to 120 where the machine below has to find the
memory first.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from pathlib import Path

from stream import libc

_MAP_FIXED = 0x10
_MADV_COLLAPSE = 25
"""Linux 6.1 has it, Python's mmap not. Other ways to huge pages of shared memory are switched off on most machines, or
need some that were set aside."""
_MOST_BYTES = 32 << 20
"""Huge pages that are larger, of 512 MB on some ARM processors, are left alone."""


def make_memory(size: int) -> int:
    """Return a file descriptor of so many bytes of zeros, all of them reserved; raises OSError if they cannot be
    had."""
    fd = os.memfd_create("stream-slot", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        _take_huge_pages(fd, size)
        # Reserved now: a page that cannot be had later would end the process with SIGBUS.
        os.posix_fallocate(fd, 0, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def map_memory(fd: int, size: int) -> memoryview:
    """Map shared memory, from an address on where a huge page can lie; raises OSError.

    It is unmapped with the last user of what is returned.
    """
    huge = _huge_page() if size >= _huge_page() else 0
    # Where Python's mmap puts memory cannot be chosen. So it only keeps a place, which ends with it.
    kept = mmap.mmap(-1, size + huge, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -address_of(kept) % huge if huge else 0
    place = address_of(kept) + start
    if libc.mmap(place, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) != place:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return memoryview(kept)[start : start + size]


def address_of(memory: mmap.mmap | memoryview) -> int:
    """Return where memory begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _take_huge_pages(fd: int, size: int) -> None:
    """Put what is still empty on huge pages, as far as there are some; raises OSError if there is no memory at all."""
    huge = _huge_page()
    if size < huge:
        return
    # The kernel wants one page of each to be there. Written by a call, which is refused where memory is short.
    for start in range(0, size - huge + 1, huge):
        os.pwrite(fd, b"\0", start)
    # All in one call: before each, the kernel waits for all processors. Where that fails the rest stays as it is.
    memory = map_memory(fd, size)
    libc.madvise(address_of(memory), size // huge * huge, _MADV_COLLAPSE)


@functools.cache
def _huge_page() -> int:
    """Bytes of a huge page; more than any slot has where there are none."""
    try:
        size = int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 1 << 62
    return size if 0 < size <= _MOST_BYTES else 1 << 62
