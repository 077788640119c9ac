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
from stream.storage.files import make_folder, place_file
from stream.storage.remote import RemoteError
from stream.storage.remote_folder import Folder

_CHUNK = 1 << 20
"""Bytes of one request."""
_AHEAD = 2
"""Ranges of a file that are on their way at the same time."""


class FetchError(StreamError):
    """A file cannot be copied: it is missing, differs from its manifest, or does not fit on the disk."""


@dataclass(frozen=True, kw_only=True)
class Download:
    """A file to copy.

    Attributes:
        folder: Folder of the source.
        target: Path of the copy.
        entry: Size and SHA-256 in the manifest.
        source: File name at the source, by default that of the copy.
        damaged: Damaged file that the copy replaces.
    """

    folder: Folder
    target: Path
    entry: FileEntry
    source: str = ""
    damaged: Path | None = None


def count_damaged(files: Iterable[Download]) -> dict[str, int]:
    """Return the numbers of damaged shards and tables that files replace."""
    shards = [file.target.suffix == ".arrayrecord" for file in files if file.damaged]
    return {"shards_damaged": sum(shards), "tables_damaged": len(shards) - sum(shards)}


def download(files: Sequence[Download], *, jobs: int) -> None:
    """Copy files, and show the progress.

    After an error complete files stay, and partial files are removed.

    Args:
        files: Files to copy.
        jobs: Number of threads.

    Raises:
        FetchError: A file differs from its manifest.
        RemoteError: The source cannot be read.
        OSError: The target cannot be written.
    """
    if not files:
        return
    stop = threading.Event()
    size = sum(file.entry.bytes for file in files)
    with (
        Progress(size, "B", stream=sys.stderr, label="fetch") as progress,
        ThreadPoolExecutor(jobs * _AHEAD) as readers,
        ThreadPoolExecutor(jobs) as pool,
    ):
        try:
            copies = [pool.submit(_copy, file, readers, progress, stop) for file in files]
            done, _ = wait(copies, return_when=FIRST_EXCEPTION)
            for each in done:
                each.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _copy(file: Download, readers: ThreadPoolExecutor, progress: Progress, stop: threading.Event) -> None:
    name, size = file.source or file.target.name, file.entry.bytes
    make_folder(file.target.parent)
    temporary = file.target.with_name(f".{name}.{os.getpid()}{PARTIAL}")
    digest = hashlib.sha256()
    try:
        with temporary.open("wb") as sink:
            for content in _read_ahead(file.folder, name, size, readers):
                if stop.is_set():
                    return
                digest.update(content)
                sink.write(content)
                progress.advance(len(content))
            sink.flush()
            os.fsync(sink.fileno())
        if digest.hexdigest() != file.entry.sha256:
            _check_size(file, name)
            raise FetchError(
                f"{file.folder}/{name}: its SHA-256 is not that of its manifest; fetch again, and if that does not "
                "help, the root is damaged: check it with `pairstream verify`"
            )
        place_file(temporary, file.target)
        cached_copy(file.target).unlink(missing_ok=True)
    except (FileNotFoundError, RemoteError):
        with contextlib.suppress(RemoteError):
            _check_size(file, name)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _check_size(file: Download, name: str) -> None:
    """Raise FetchError unless the source has the file with its size; only asked when a copy failed."""
    found, size = file.folder.size(name), file.entry.bytes
    if found != size:
        what = "is missing" if found is None else f"has {found:,} bytes, its manifest says {size:,}"
        raise FetchError(f"{file.folder}/{name}: {what}; the root is damaged, check it with `pairstream verify`")


def _read_ahead(folder: Folder, name: str, size: int, readers: ThreadPoolExecutor) -> Iterator[bytes]:
    """Yield the content of a file in order, with some ranges on their way."""
    asked: deque[Future[bytes]] = deque()
    for start in range(0, size, _CHUNK):
        asked.append(readers.submit(folder.read_range, name, start, min(size, start + _CHUNK)))
        if len(asked) == _AHEAD:
            yield asked.popleft().result()
    while asked:
        yield asked.popleft().result()
