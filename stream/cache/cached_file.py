"""Shards of a root that is read in place: sparse copies, whose records are checked by their hashes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from stream.base.errors import FormatError
from stream.base.machine import limit_of
from stream.cache.quota import CacheQuota
from stream.format.names import cached_copy
from stream.format.record_file import RecordFile, cut_record, stored_size
from stream.storage.object_reads import Read, object_reads
from stream.storage.remote import Traffic

_BLOCK = 4096
"""Requests begin and end at blocks of the disk, so that a block is a hole or complete."""
_GAP = 64 << 10
"""Bytes between two records that are still read with one request."""
MOST_AT_ONCE = 4 << 20
"""Bytes of one request."""
_TOUCH_S = 30
"""Seconds after which a shard in use is marked as used again."""


class CachedFile(RecordFile):
    """A shard of a remote root, and its copy in the cache.

    A record is in the cache if its bytes have its hash. Any other record is read from the store and checked. So a hole,
    a kill, damage and another process that frees space cost only a request.

    Args:
        shard_path: File of the shard in the cache if ``pairstream fetch`` has copied all of it; otherwise its
            ``cached_copy`` has the records that were read.
        size: Size in bytes in the manifest.
        span: Approximate count of bytes that are read together.
    """

    def __init__(
        self, shard_path: str, *, url: str, size: int, quota: CacheQuota, span: int = 0, traffic: Traffic | None = None
    ) -> None:
        self._url, self._size, self._quota, self._traffic = url, size, quota, traffic or Traffic()
        self._unit = max(_BLOCK, -(-span // _BLOCK) * _BLOCK)
        self._sparse = cached_copy(Path(shard_path))
        self._used = time.monotonic()
        self._kept: dict[int, memoryview] = {}
        try:
            super().__init__(shard_path, size)
            self._is_sparse = False
        except (FormatError, OSError):
            if self._fd >= 0:
                os.close(self._fd)
            self._is_sparse = True
            self._fd = self._open()

    def ahead(self, records: Iterable[tuple[int, int]]) -> list[Read]:
        """Return the reads of the records that are not in the cache, by position and size; neighbours are joined."""
        self._touch()
        reads: list[Read] = []
        # Larger units are not joined, so that all processes read the same ranges.
        is_unit = self._unit > _BLOCK
        max_bytes, claim = (self._unit, self._claim) if is_unit else (MOST_AT_ONCE, None)
        for position, num_bytes in sorted(records):
            stop = position + stored_size(position, num_bytes)
            if not 0 <= position < stop <= self._size or self._is_here(position, stop):
                continue
            # The units that the record touches.
            first_byte = position // self._unit * self._unit
            stop_byte = min(self._size, -(-stop // self._unit) * self._unit)
            for begin in range(first_byte, stop_byte, self._unit if is_unit else stop_byte - first_byte):
                end = min(stop_byte, begin + self._unit) if is_unit else stop_byte
                if reads and begin - reads[-1].end <= _GAP and end - reads[-1].begin <= max_bytes:
                    begin, end = reads[-1].begin, max(end, reads.pop().end)
                reads.append(Read(self._url, begin, end, self._keep, claim, self._traffic))
        return reads

    def read_all(self, positions: Sequence[int], num_bytes: Sequence[int], xxh3_64: Sequence[int]) -> list[memoryview]:
        """Return some records, see ``RecordFile``; also raises RemoteError."""
        try:
            return super().read_all(positions, num_bytes, xxh3_64)
        except FormatError:
            return list(map(self._read_one, positions, num_bytes, xxh3_64))

    def read_into(self, position: int, num_bytes: int, xxh3_64: int, buffers: Sequence[memoryview]) -> None:
        """Read one record into buffers, see ``RecordFile``; also raises RemoteError."""
        try:
            super().read_into(position, num_bytes, xxh3_64, buffers)
        except (FormatError, OSError):
            record, num_copied = self._read_one(position, num_bytes, xxh3_64), 0
            if sum(map(len, buffers)) != num_bytes:
                raise
            for buffer in buffers:
                buffer[:] = record[num_copied : num_copied + len(buffer)]
                num_copied += len(buffer)

    def pread(self, num_bytes: int, position: int) -> bytes | memoryview:
        """Return bytes of the copy, or of the memory for bytes that the disk refused; fewer if it cannot be read."""
        if (kept_content := self._in_memory(position, position + num_bytes)) is not None:
            return kept_content
        try:
            return super().pread(num_bytes, position)
        except OSError:
            return b""

    def _in_memory(self, begin: int, end: int) -> memoryview | None:
        for kept_begin, content in list(self._kept.items()) if self._kept else ():
            if kept_begin <= begin and end <= kept_begin + len(content):
                return content[begin - kept_begin : end - kept_begin]
        return None

    def _read_one(self, position: int, num_bytes: int, xxh3_64: int) -> memoryview:
        num_stored = stored_size(position, num_bytes)
        with contextlib.suppress(FormatError):
            return super().read_all((position,), (num_bytes,), (xxh3_64,))[0]
        content = object_reads().read(self._url, position, position + num_stored, traffic=self._traffic)
        try:
            record = cut_record(memoryview(content), num_stored, position, num_bytes, xxh3_64)
        except FormatError:
            raise FormatError(
                f"{self._url}, bytes {position:,} to {position + num_stored:,}: are not those of the index; the object "
                "was replaced or damaged: make the loader again if the root was converted again"
            ) from None
        self._keep(position, memoryview(content))
        return record

    def _keep(self, begin: int, content: memoryview) -> None:
        """Write bytes of the store into the copy, or keep them in memory if the disk refuses them."""
        if not self._is_sparse:
            # A damaged file of ``pairstream fetch`` stays unchanged.
            return self._quota.keep(self._kept, begin, content)
        try:
            if os.pwrite(self._fd, content, begin) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._quota.warn_refused(error)
            return self._quota.keep(self._kept, begin, content)
        self._quota.count_written(len(content))

    def _is_here(self, begin: int, end: int) -> bool:
        """Return whether some bytes have no hole; only their hash tells whether they are correct."""
        if not self._is_sparse or self._in_memory(begin, end) is not None:
            return True
        try:
            return os.lseek(self._fd, begin, os.SEEK_HOLE) >= end
        except OSError:
            return False

    def _claim(self, begin: int, end: int, *, take: bool) -> bool | None:
        """Lock bytes for this process, or release them; the kernel releases them with the process.

        Returns None if the bytes are in the cache and need no lock, and False if another process is reading them.
        """
        if not hasattr(fcntl, "F_OFD_SETLK"):
            return None if take and self._is_here(begin, end) else True
        lock_kind = fcntl.F_WRLCK if take else fcntl.F_UNLCK
        lock = struct.pack("hhqqi", lock_kind, os.SEEK_SET, begin, end - begin, 0)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, lock)
        except BlockingIOError:
            return False
        except OSError:
            # On a disk without locks each process reads for itself.
            return True
        if take and self._is_here(begin, end):
            self._claim(begin, end, take=False)
            return None
        return True

    def _open(self) -> int:
        """Open the copy, or an empty file if the disk refuses it: the store has every record."""
        try:
            self._sparse.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._sparse, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if limit_of(error):
                raise
            self._quota.warn_refused(error)
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_size != self._size:
                os.truncate(descriptor, self._size)
        return descriptor

    def _touch(self) -> None:
        """Mark the copy as used, and start another copy if it was deleted, or refused by the disk."""
        current_time = time.monotonic()
        if not self._is_sparse or current_time - self._used < _TOUCH_S:
            return
        self._used = current_time
        with contextlib.suppress(OSError):
            file_status = os.fstat(self._fd)
            if file_status.st_nlink and file_status.st_size:
                os.utime(self._fd)
            else:
                new_descriptor = self._open()
                # Other threads may be reading: the number stays, the file behind it changes.
                os.dup2(new_descriptor, self._fd, inheritable=False)
                os.close(new_descriptor)
