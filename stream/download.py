"""Copies of files of a converted root from another place: several at a time, checked, each complete or absent."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

from stream.errors import StreamError
from stream.fetched import PARTIAL
from stream.manifest import FileEntry
from stream.remote import CHUNK, RemoteFolder, is_remote
from stream.units import human_bytes, human_seconds

_POLL = 0.2
_LINE_EVERY = 30.0
_GRACE = 5.0


class FetchError(StreamError):
    """A file that cannot be brought: not there, not what its manifest says, or no room for it."""


class Folder(Protocol):
    """What is read of the folder that files come from; ``stream.remote.RemoteFolder`` is one."""

    def __truediv__(self, name: str, /) -> Folder: ...

    def folders(self) -> list[str]:
        """Return the names of the folders in it."""

    def size(self, name: str, /) -> int | None:
        """Return the size of a file in bytes, None if there is none."""

    def sizes(self) -> dict[str, int]:
        """Return name and size of every file in it."""

    def read(self, name: str, /) -> bytes:
        """Return the content of a file; raises FileNotFoundError if there is none."""

    def read_range(self, name: str, start: int, stop: int, /) -> bytes:
        """Return the bytes [start, stop) of a file."""


class LocalFolder:
    """A local or mounted folder, with the methods of ``stream.remote.RemoteFolder``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def __truediv__(self, name: str) -> LocalFolder:
        return LocalFolder(self._path / name)

    def folders(self) -> list[str]:
        """Return the names of the folders in it."""
        return sorted(entry.name for entry in self._path.iterdir() if entry.is_dir()) if self._path.is_dir() else []

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, None if there is none."""
        path = self._path / name
        return path.stat().st_size if path.is_file() else None

    def sizes(self) -> dict[str, int]:
        """Return name and size of every file in it."""
        if not self._path.is_dir():
            return {}
        with os.scandir(self._path) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}

    def read(self, name: str) -> bytes:
        """Return the content of a file; raises FileNotFoundError if there is none."""
        return (self._path / name).read_bytes()

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a file, fewer where it ends before."""
        with (self._path / name).open("rb") as file:
            file.seek(start)
            return file.read(stop - start)


def open_source(root: str) -> Folder:
    """Open the root that files come from; raises FetchError or RemoteError if it is not there."""
    if is_remote(root):
        remote = RemoteFolder(root)
        remote.check()
        return remote
    if not Path(root).is_dir():
        raise FetchError(f"{root}: no such folder; expected a root that was converted, a folder, s3:// or gs://")
    return LocalFolder(Path(root))


@dataclass(frozen=True, kw_only=True)
class Download:
    """A file to copy.

    Attributes:
        folder: Source.
        target: File to make; it has the same name in the source.
        entry: Size and SHA-256 that the manifest states.
    """

    folder: Folder
    target: Path
    entry: FileEntry

    def is_there(self) -> bool:
        """Return whether the file was copied before: it gets its name only after it was checked."""
        try:
            return self.target.stat().st_size == self.entry.bytes
        except OSError:
            return False


def check_source(files: Sequence[Download]) -> None:
    """Raise FetchError unless all files are where they come from, with their sizes; one look at each folder."""
    there: dict[str, dict[str, int]] = {}
    for file in files:
        where, name = str(file.folder), file.target.name
        if where not in there:
            there[where] = file.folder.sizes()
        found = there[where].get(name)
        if found != file.entry.bytes:
            what = "is not there" if found is None else f"has {found:,} bytes, its manifest says {file.entry.bytes:,}"
            raise FetchError(f"{where}/{name}: {what}; the root is damaged, check it with `python -m convert.verify`")


def download(files: Sequence[Download], *, jobs: int, progress: Progress) -> None:
    """Bring files in several threads.

    Raises:
        FetchError, RemoteError, OSError: the first thing that went wrong. What was complete stays; nothing
            half-written does.
    """
    waiting: queue.SimpleQueue[Download] = queue.SimpleQueue()
    for file in files:
        waiting.put(file)
    stop = threading.Event()
    failures: list[BaseException] = []
    half: set[Path] = set()

    def work() -> None:
        while not stop.is_set():
            try:
                file = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                _bring(file, progress, stop, half)
            except _StoppedError:
                return
            except BaseException as error:
                failures.append(error)
                stop.set()

    # Not an executor: at its end a program waits for those, however long a request that hangs may take.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(jobs, len(files)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_POLL)
                progress.show()
    finally:
        stop.set()
        end = time.monotonic() + _GRACE
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        # Of a thread that hangs in a request or in a disk that is slow.
        for path in list(half):
            path.unlink(missing_ok=True)
    if failures:
        raise failures[0]


class _StoppedError(Exception):
    pass


def _bring(file: Download, progress: Progress, stop: threading.Event, half: set[Path]) -> None:
    """``half``: the files that are half-written, for whoever cannot wait for this."""
    name, size = file.target.name, file.entry.bytes
    temporary = file.target.with_name(f".{name}.{os.getpid()}{PARTIAL}")
    digest = hashlib.sha256()
    half.add(temporary)
    try:
        with temporary.open("wb") as sink:
            for start in range(0, size, CHUNK):
                content = file.folder.read_range(name, start, min(size, start + CHUNK))
                if stop.is_set():
                    raise _StoppedError
                digest.update(content)
                sink.write(content)
                progress.add(len(content))
            sink.flush()
            os.fsync(sink.fileno())
        if digest.hexdigest() != file.entry.sha256:
            raise FetchError(
                f"{file.folder}/{name}: its SHA-256 is not that of its manifest; fetch again, and if that does not "
                "help, the root is damaged: check it with `python -m convert.verify`"
            )
        temporary.replace(file.target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchError(
                f"{file.target.parent}: the disk is full; make room and run the same command again"
            ) from None
        raise
    finally:
        temporary.unlink(missing_ok=True)
        half.discard(temporary)
    progress.finish_file()


def remove_leftovers(folder: Path) -> None:
    """Remove what a fetch that was killed left half-written in a folder."""
    for path in folder.glob(f".*{PARTIAL}") if folder.is_dir() else []:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


class Progress:
    """Counts files and bytes, and shows them with rate and time left: in place on a terminal, else a line now and
    then."""

    def __init__(self, files: int, size: int, *, stream: TextIO | None = None) -> None:
        self.files = 0
        self.bytes = 0
        self._all = (files, size)
        self._stream = stream or sys.stderr
        self._lock = threading.Lock()
        self._started = self._shown = time.monotonic()

    def add(self, count: int) -> None:
        """Count bytes."""
        with self._lock:
            self.bytes += count

    def finish_file(self) -> None:
        """Count a file."""
        with self._lock:
            self.files += 1

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """End with a line, however the context ends."""
        try:
            yield
        finally:
            self._print(end="\n")

    def show(self) -> None:
        """Show where things are, if it is time to."""
        tty = self._stream.isatty()
        if tty or time.monotonic() - self._shown >= _LINE_EVERY:
            self._print(end="" if tty else "\n")

    def _print(self, *, end: str) -> None:
        self._shown = time.monotonic()
        elapsed = max(self._shown - self._started, 1e-6)
        files, size = self._all
        rate = self.bytes / elapsed
        left = f", ETA {human_seconds((size - self.bytes) / rate)}" if 0 < self.bytes < size else ""
        start = "\r\x1b[K" if self._stream.isatty() else ""
        print(
            f"{start}{self.files:,}/{files:,} files, {human_bytes(self.bytes)} of {human_bytes(size)}, "
            f"{human_bytes(rate)}/s, {human_seconds(elapsed)}{left}",
            end=end,
            file=self._stream,
            flush=True,
        )
