"""Shards of a root that is read in place: sparse copies whose records are checked by their own hashes."""

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
    """A shard of a remote root, and what the cache has of it.

    A record is there if its bytes have its hash. Any other is read from the store and checked, so a hole, a kill,
    damage and another process that makes room cost a request, and nothing else.

    Args:
        path: File of the shard in the cache if ``pairstream fetch`` has brought all of it; else ``cached_copy`` of it
            has the records that were read.
        url: Address of the shard.
        size: Size in bytes that the manifest gives.
        span: Bytes that are read together, about.
        room: Room of the cache.
        traffic: Counts the requests and their bytes.
    """

    def __init__(
        self, path: str, *, url: str, size: int, room: CacheQuota, span: int = 0, traffic: Traffic | None = None
    ) -> None:
        self._url, self._size, self._room, self._traffic = url, size, room, traffic or Traffic()
        self._unit = max(_BLOCK, -(-span // _BLOCK) * _BLOCK)
        self._sparse = cached_copy(Path(path))
        self._used = time.monotonic()
        self._kept: dict[int, memoryview] = {}
        try:
            super().__init__(path, size)
            self._is_sparse = False
        except (FormatError, OSError):
            if self._fd >= 0:
                os.close(self._fd)
            self._is_sparse = True
            self._fd = self._open()

    def ahead(self, records: Iterable[tuple[int, int]]) -> list[Read]:
        """Return the reads that bring records, which may be there already: neighbours join in one.

        Args:
            records: Position and size of each record.
        """
        self._touch()
        reads: list[Read] = []
        # Whole units are not joined, so that all processes ask for the same ones.
        is_unit = self._unit > _BLOCK
        most, claim = (self._unit, self._claim) if is_unit else (MOST_AT_ONCE, None)
        for position, num_bytes in sorted(records):
            stop = position + stored_size(position, num_bytes)
            if not 0 <= position < stop <= self._size or self._is_here(position, stop):
                continue
            first, stop = position // self._unit * self._unit, min(self._size, -(-stop // self._unit) * self._unit)
            for begin in range(first, stop, self._unit if is_unit else stop - first):
                end = min(stop, begin + self._unit) if is_unit else stop
                if reads and begin - reads[-1].end <= _GAP and end - reads[-1].begin <= most:
                    begin, end = reads[-1].begin, max(end, reads.pop().end)
                reads.append(Read(self._url, begin, end, self._keep, claim, self._traffic))
        return reads

    def read_all(self, positions: Sequence[int], num_bytes: Sequence[int], xxh3_64: Sequence[int]) -> list[memoryview]:
        """Return some records, see ``RecordFile``; raises RemoteError too."""
        try:
            return super().read_all(positions, num_bytes, xxh3_64)
        except FormatError:
            return list(map(self._read_one, positions, num_bytes, xxh3_64))

    def read_into(self, position: int, num_bytes: int, xxh3_64: int, parts: Sequence[memoryview]) -> None:
        """Read one record into buffers, see ``RecordFile``; raises RemoteError too."""
        try:
            super().read_into(position, num_bytes, xxh3_64, parts)
        except (FormatError, OSError):
            record, start = self._read_one(position, num_bytes, xxh3_64), 0
            if sum(map(len, parts)) != num_bytes:
                raise
            for part in parts:
                part[:] = record[start : start + len(part)]
                start += len(part)

    def pread(self, num_bytes: int, position: int) -> bytes | memoryview:
        """Return bytes of the copy, or those that the disk did not take; fewer where it cannot be read."""
        if (kept := self._in_memory(position, position + num_bytes)) is not None:
            return kept
        try:
            return super().pread(num_bytes, position)
        except OSError:
            return b""

    def _in_memory(self, begin: int, end: int) -> memoryview | None:
        for first, content in list(self._kept.items()) if self._kept else ():
            if first <= begin and end <= first + len(content):
                return content[begin - first : end - first]
        return None

    def _read_one(self, position: int, num_bytes: int, xxh3_64: int) -> memoryview:
        size = stored_size(position, num_bytes)
        with contextlib.suppress(FormatError):
            return super().read_all((position,), (num_bytes,), (xxh3_64,))[0]
        content = object_reads().read(self._url, position, position + size, traffic=self._traffic)
        try:
            record = cut_record(memoryview(content), size, position, num_bytes, xxh3_64)
        except FormatError:
            raise FormatError(
                f"{self._url}, bytes {position:,} to {position + size:,}: are not those of the index; the object was "
                "replaced or damaged: make the loader again if the root was converted anew"
            ) from None
        self._keep(position, memoryview(content))
        return record

    def _keep(self, begin: int, content: memoryview) -> None:
        """Write bytes of the store into the copy, or keep them in memory if the disk does not take them."""
        if not self._is_sparse:
            # A damaged file of ``pairstream.fetch`` stays what it is.
            return self._room.keep(self._kept, begin, content)
        try:
            if os.pwrite(self._fd, content, begin) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._room.tell_refused(error)
            return self._room.keep(self._kept, begin, content)
        self._room.took(len(content))

    def _is_here(self, begin: int, end: int) -> bool:
        """Return whether there is no hole in some bytes; only their hash tells whether they are right."""
        if not self._is_sparse or self._in_memory(begin, end) is not None:
            return True
        try:
            return os.lseek(self._fd, begin, os.SEEK_HOLE) >= end
        except OSError:
            return False

    def _claim(self, begin: int, end: int, *, take: bool) -> bool | None:
        """Lock bytes for this process, or release them; the kernel releases them with the process.

        Returns:
            None if the bytes are here, so that there is nothing to lock; False if another process is reading them.
        """
        kind = fcntl.F_WRLCK if take else fcntl.F_UNLCK
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi", kind, os.SEEK_SET, begin, end - begin, 0))
        except BlockingIOError:
            return False
        except OSError:
            # A disk without locks has each process read for itself.
            return True
        if take and self._is_here(begin, end):
            self._claim(begin, end, take=False)
            return None
        return True

    def _open(self) -> int:
        """Open the copy, or a file without content where the disk refuses it: the store has every record."""
        try:
            self._sparse.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._sparse, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if limit_of(error):
                raise
            self._room.tell_refused(error)
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            if os.fstat(file).st_size != self._size:
                os.truncate(file, self._size)
        return file

    def _touch(self) -> None:
        """Mark the copy as used, and begin another one if it was deleted, or refused by the disk."""
        now = time.monotonic()
        if not self._is_sparse or now - self._used < _TOUCH_S:
            return
        self._used = now
        with contextlib.suppress(OSError):
            found = os.fstat(self._fd)
            if found.st_nlink and found.st_size:
                os.utime(self._fd)
            else:
                new = self._open()
                # Other threads may be reading: the number stays, the file behind it changes.
                os.dup2(new, self._fd, inheritable=False)
                os.close(new)
