"""Checked copies of many files at a time; each copy is complete or absent."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from stream.base.errors import StreamError
from stream.base.progress import Progress
from stream.format.manifest import PARTIAL, FileEntry
from stream.format.names import cached_copy
from stream.storage.files import make_folder, rename_durably
from stream.storage.remote import RemoteError
from stream.storage.remote_folder import Folder

_AHEAD = 2
"""Ranges of a file that are read at the same time."""


class FetchError(StreamError):
    """A file cannot be copied: it is missing, differs from its manifest, or does not fit on the disk."""


@dataclass(frozen=True, kw_only=True)
class Download:
    """A file of a folder to copy to ``target``; ``source`` is its name in the folder if that differs.

    ``entry`` is its size and SHA-256 in the manifest, and ``damaged`` the damaged file that the copy replaces.
    """

    folder: Folder
    target: Path
    entry: FileEntry
    source: str = ""
    damaged: Path | None = None


def count_damaged(files: Iterable[Download]) -> dict[str, int]:
    """Return the numbers of damaged shards and tables that files replace."""
    is_shard = [file.target.suffix == ".arrayrecord" for file in files if file.damaged]
    return {"shards_damaged": sum(is_shard), "tables_damaged": len(is_shard) - sum(is_shard)}


def download(files: Sequence[Download], *, jobs: int) -> None:
    """Copy files with ``jobs`` threads, and show the progress; after an error complete files stay, partial ones go.

    Raises:
        FetchError: A file differs from its manifest.
        RemoteError: The source cannot be read.
        OSError: The target cannot be written.
    """
    if not files:
        return
    stop = threading.Event()
    total_bytes = sum(file.entry.bytes for file in files)
    with (
        Progress(total_bytes, "B", stream=sys.stderr, label="fetch") as progress,
        ThreadPoolExecutor(jobs * _AHEAD) as readers,
        ThreadPoolExecutor(jobs) as pool,
    ):
        try:
            copies = [pool.submit(_copy, file, readers, progress, stop) for file in files]
            finished_copies, _ = wait(copies, return_when=FIRST_EXCEPTION)
            for finished_copy in finished_copies:
                finished_copy.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _copy(file: Download, readers: ThreadPoolExecutor, progress: Progress, stop: threading.Event) -> None:
    source_name, num_bytes = file.source or file.target.name, file.entry.bytes
    make_folder(file.target.parent)
    temporary = file.target.with_name(f".{source_name}.{os.getpid()}{PARTIAL}")
    digest = hashlib.sha256()
    try:
        with temporary.open("wb") as sink:
            for content in _read_ahead(file.folder, source_name, num_bytes, readers):
                if stop.is_set():
                    return
                digest.update(content)
                sink.write(content)
                progress.advance(len(content))
            sink.flush()
            os.fsync(sink.fileno())
        if digest.hexdigest() != file.entry.sha256:
            _check_size(file, source_name)
            remedy = "fetch again, and if that does not help, the root is damaged: check it with `pairstream verify`"
            raise FetchError(f"{file.folder}/{source_name}: its SHA-256 is not that of its manifest; {remedy}")
        rename_durably(temporary, file.target)
        cached_copy(file.target).unlink(missing_ok=True)
    except (FileNotFoundError, RemoteError):
        with contextlib.suppress(RemoteError):
            _check_size(file, source_name)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _check_size(file: Download, source_name: str) -> None:
    """Raise FetchError unless the source has the file with its size; only checked when a copy failed."""
    source_bytes, expected_bytes = file.folder.size(source_name), file.entry.bytes
    if source_bytes != expected_bytes:
        problem = "is missing"
        if source_bytes is not None:
            problem = f"has {source_bytes:,} bytes, its manifest says {expected_bytes:,}"
        name = f"{file.folder}/{source_name}"
        raise FetchError(f"{name}: {problem}; the root is damaged, check it with `pairstream verify`")


def _read_ahead(folder: Folder, source_name: str, num_bytes: int, readers: ThreadPoolExecutor) -> Iterator[bytes]:
    """Yield the content of a file in order, while the next ranges are being read."""
    pending_reads: deque[Future[bytes]] = deque()
    for start in range(0, num_bytes, folder.chunk_bytes):
        stop = min(num_bytes, start + folder.chunk_bytes)
        pending_reads.append(readers.submit(folder.read_range, source_name, start, stop))
        if len(pending_reads) == _AHEAD:
            yield pending_reads.popleft().result()
    while pending_reads:
        yield pending_reads.popleft().result()
