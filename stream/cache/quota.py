"""The quota of a cache: complete shards are emptied, least recently used first."""

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
"""Share of the bound that stays when space is freed."""
_log = logging.getLogger("stream")


class CacheQuota:
    """The quota of a cache in one process. Processes share only the files on the disk.

    ``max_bytes`` of records is None for no bound. Between two checks a process may exceed it by a 64th of it or 256 MB.
    """

    def __init__(self, folder: Path, max_bytes: int | None) -> None:
        self._folder, self._most = folder, max_bytes
        self._written = 0
        self._is_warned = False
        self._lock = threading.Lock()
        self._kept: deque[tuple[dict[int, memoryview], int]] = deque()
        self._kept_bytes = 0

    def count_written(self, num_bytes: int) -> None:
        """Count bytes that were written, and free space in a separate thread from time to time."""
        self._written += num_bytes
        # The disk has space again.
        with self._lock:
            self._drop(self._kept_bytes - num_bytes)
        if self._most is not None and self._written > min(_MOST_BETWEEN, self._most // _SHARE):
            self._written = 0
            threading.Thread(target=self.free_space, args=(self._most,), name="stream-quota", daemon=True).start()

    def keep(self, file_memory: dict[int, memoryview], begin: int, content: memoryview) -> None:
        """Keep bytes of a file in memory, and drop the oldest of all files beyond 256 MB."""
        with self._lock:
            if begin not in file_memory:
                self._kept.append((file_memory, begin))
            self._kept_bytes += len(content) - len(file_memory.get(begin, ()))
            file_memory[begin] = content
            self._drop(_MOST_BETWEEN)

    def _drop(self, max_bytes: int) -> None:
        while self._kept and self._kept_bytes > max_bytes:
            file_memory, oldest_begin = self._kept.popleft()
            self._kept_bytes -= len(file_memory.pop(oldest_begin))

    def warn_refused(self, error: OSError) -> None:
        """Warn once that the disk refuses records, which are therefore read again every time."""
        if not self._is_warned:
            self._is_warned = True
            _log.warning(
                "%s: cannot be written (%s), so records are read from the store without being kept; free some space, "
                "or give another folder or a smaller bound: cache='%s:200GB'",
                self._folder,
                error.strerror or error,
                self._folder,
            )

    def free_space(self, max_bytes: int) -> None:
        """Empty shards until at most nine tenths of the bound are used, unless another process is doing it."""
        with contextlib.suppress(OSError), open(self._folder / _LOCK, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sparse_files = []
            for shard_path in sparse_copies(self._folder):
                with contextlib.suppress(OSError):
                    status = shard_path.stat()
                    sparse_files.append((status.st_mtime_ns, status.st_blocks * 512, status.st_size, shard_path))
            used_bytes = sum(size for _, size, _, _ in sparse_files)
            if used_bytes <= max_bytes:
                return
            for _, allocated, size, shard_path in sorted(sparse_files):
                if used_bytes <= max_bytes * _LEFT:
                    break
                if allocated:
                    # Truncated, not removed: a process with the file open would continue to fill a removed file.
                    os.truncate(shard_path, 0)
                    os.truncate(shard_path, size)
                    used_bytes -= allocated


def sparse_copies(folder: Path) -> Iterator[Path]:
    """Return the sparse copies of shards below the folder of a cache."""
    yield from folder.glob(_COPIES)
    yield from folder.glob(f"{MEMBERS}/*/{_COPIES}")


@cache
def quota_of(folder: Path, max_bytes: int | None) -> CacheQuota:
    """Return the quota of a cache for this process."""
    return CacheQuota(folder, max_bytes)
