"""The room that a cache may take: whole shards leave it, least recently used first."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from stream.storage.remote import MEMBERS

_COPIES = "*/*/*/cached/*.arrayrecord"
_LOCK = ".room"
_SHARE = 64
_MOST_BETWEEN = 256 << 20
_LEFT = 0.9
"""Share of the bound that stays when room is made."""
_log = logging.getLogger("stream")


class CacheQuota:
    """The room of a cache, as one process sees it. Processes look at the disk, and share nothing else.

    Args:
        folder: Folder of the cache.
        most: Most bytes of records, None for no bound; it is exceeded by what a process writes between two looks, a
            64th of it or 256 MB.
    """

    def __init__(self, folder: Path, most: int | None) -> None:
        self._folder, self._most = folder, most
        self._written = 0
        self._is_warned = False
        self._lock = threading.Lock()
        self._kept: deque[tuple[dict[int, memoryview], int]] = deque()
        self._kept_bytes = 0

    def took(self, num_bytes: int) -> None:
        """Count bytes that were written, and make room in a thread of its own from time to time."""
        self._written += num_bytes
        # The disk has room again.
        with self._lock:
            self._drop(self._kept_bytes - num_bytes)
        if self._most is not None and self._written > min(_MOST_BETWEEN, self._most // _SHARE):
            self._written = 0
            threading.Thread(target=self.make, args=(self._most,), name="stream-room", daemon=True).start()

    def keep(self, kept: dict[int, memoryview], begin: int, content: memoryview) -> None:
        """Keep bytes of a file in memory, and drop the oldest of all files beyond 256 MB."""
        with self._lock:
            if begin not in kept:
                self._kept.append((kept, begin))
            self._kept_bytes += len(content) - len(kept.get(begin, ()))
            kept[begin] = content
            self._drop(_MOST_BETWEEN)

    def _drop(self, most: int) -> None:
        while self._kept and self._kept_bytes > most:
            other, first = self._kept.popleft()
            self._kept_bytes -= len(other.pop(first))

    def tell_refused(self, error: OSError) -> None:
        """Tell once that the disk takes no records, so that they are read again and again."""
        if not self._is_warned:
            self._is_warned = True
            _log.warning(
                "%s: cannot be written (%s), so records are read from the store without being kept; free some space, "
                "or give another folder or a smaller bound: cache='%s:200GB'",
                self._folder,
                error.strerror or error,
                self._folder,
            )

    def make(self, most: int) -> None:
        """Empty shards until at most nine tenths of the bound are taken, unless another process is at it."""
        with contextlib.suppress(OSError), open(self._folder / _LOCK, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = []
            for path in sparse_copies(self._folder):
                with contextlib.suppress(OSError):
                    status = path.stat()
                    found.append((status.st_mtime_ns, status.st_blocks * 512, status.st_size, path))
            taken = sum(size for _, size, _, _ in found)
            if taken <= most:
                return
            for _, held, size, path in sorted(found):
                if taken <= most * _LEFT:
                    break
                if held:
                    # Not removed: who has the file open would go on to fill it, where nobody sees it.
                    os.truncate(path, 0)
                    os.truncate(path, size)
                    taken -= held


def sparse_copies(folder: Path) -> Iterator[Path]:
    """Return the sparse copies of shards below the folder of a cache."""
    yield from folder.glob(_COPIES)
    yield from folder.glob(f"{MEMBERS}/*/{_COPIES}")


@cache
def room_of(folder: Path, most: int | None) -> CacheQuota:
    """Return the room of a cache for this process."""
    return CacheQuota(folder, most)
