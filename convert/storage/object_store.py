"""Folders of object stores that ``convert`` reads and writes.

An object appears complete or not at all, so nothing here writes under temporary names.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import mmap
import shutil
from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from stream.storage.object_reads import DEADLINE_S, object_reads
from stream.storage.object_stores import open_store
from stream.storage.remote import LocalFolder, RemoteError, is_remote
from stream.storage.remote_folder import RemoteFolder

CHUNK = 8 << 20
"""Bytes of one request when an object is read in sequence."""
_MAX_PUT = 5 << 30
"""Largest object that S3 takes, or copies, in one request."""
_PART, _PART_REPEATS = 64 << 20, 10
_TIMEOUT_S = 30
"""Seconds that a small request may take; a second more for each MiB."""


class StoreFolder(RemoteFolder):
    """A folder of an object store that can be written to, see ``stream.storage.remote_folder.RemoteFolder``."""

    schemes: ClassVar = {scheme: RemoteFolder.schemes[scheme] for scheme in ("s3", "gs")}
    deadline_s: ClassVar = DEADLINE_S
    timeout_s: ClassVar = _TIMEOUT_S

    def read_some(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of the objects that exist among several, read at the same time."""

        async def read(name: str) -> bytes | None:
            try:
                return await self._read(name)
            except FileNotFoundError:
                return None

        wanted = list(names)
        found = zip(wanted, object_reads().wait_all(map(read, wanted)), strict=True)
        return {name: content for name, content in found if content is not None}

    def open(self, name: str, *, size: int) -> io.BufferedReader:
        """Open an object of ``size`` bytes to read it in sequence."""
        return io.BufferedReader(_Reader(self, name, size), CHUNK)

    def download(self, name: str, path: Path, *, size: int) -> None:
        """Copy an object of ``size`` bytes to a file."""
        with self.open(name, size=size) as source, path.open("wb") as copy:
            shutil.copyfileobj(source, copy, CHUNK)

    def write(self, name: str, content: bytes, *, unless_there: bool = False) -> None:
        """Store an object and check what arrived.

        ``unless_there`` leaves an existing object as it is. Stores that do not know the condition replace it.

        Raises:
            RemoteError: The store has something else, which is removed.
        """
        try:
            self._put(name, content, mode="create" if unless_there else "overwrite")
        except FileExistsError:
            return

    def upload(self, path: Path, name: str) -> None:
        """Store a file and check what arrived.

        Raises:
            RemoteError: The store has something else, which is removed.
            OSError: The file cannot be read.
        """
        with path.open("rb") as file:
            # Pages of a file that is mapped are sent without being copied; no map is empty.
            content = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if path.stat().st_size else b""
            try:
                self._put(name, content)
            except RemoteError as error:
                if error.refused:
                    raise
                # A network damages bytes now and then.
                self._put(name, content)

    def _put(
        self, name: str, content: bytes | mmap.mmap, *, mode: Literal["create", "overwrite"] = "overwrite"
    ) -> None:
        """Store an object, and compare it by the store's MD5, or by its content if the store has none."""
        # One request: the parts of a killed upload would stay, and cost money.
        in_parts = len(content) > _MAX_PUT
        store = self._store_for(len(content), in_parts=in_parts)
        with self.explained("written", name):
            found = self._wait(
                lambda: store.put_async(self.key(name), content, mode=mode, use_multipart=in_parts, chunk_size=_PART),
                num_bytes=len(content),
            )
        expected = _md5(content).hexdigest()
        # An ETag is no MD5 in buckets with keys of their own, and objects made of parts have none.
        if str(found["e_tag"]).strip('"') == expected:
            return
        size = self.size(name)
        if size == len(content):
            with contextlib.suppress(RemoteError), self.open(name, size=size) as stored:
                if hashlib.file_digest(stored, _md5).hexdigest() == expected:
                    return
        self.remove([name])
        there = "nothing" if size is None else f"other content ({size:,} bytes)"
        raise RemoteError(
            f"{self.url}/{name}: after {len(content):,} bytes were stored, the store has {there}; try again"
        )

    def copy(self, source: RemoteFolder, names: Iterable[str]) -> None:
        """Store copies of objects of another folder of the same bucket."""

        async def copy(name: str) -> int:
            """Copy an object within the store if it does that in one request, and return its size."""
            with self.explained("written", name):
                size = int((await self._repeat(lambda: self.store.head_async(source.key(name))))["size"])
                if size <= _MAX_PUT:
                    store = self._store_for(size)
                    await self._repeat(lambda: store.copy_async(source.key(name), self.key(name)), num_bytes=size)
                return size

        wanted = list(names)
        for name, size in zip(wanted, object_reads().wait_all(map(copy, wanted)), strict=True):
            if size > _MAX_PUT:
                with self.explained("written", name):
                    self._wait(partial(self._put_parts, source.key(name), name, size), num_bytes=size)

    def remove(self, names: Iterable[str]) -> None:
        """Remove the objects that exist among several."""

        async def remove(name: str) -> None:
            with contextlib.suppress(FileNotFoundError), self.explained("removed", name):
                await self._repeat(lambda: self.store.delete_async(self.key(name)))

        object_reads().wait_all(map(remove, names))

    def _put_parts(self, source: str, name: str, size: int) -> Any:
        """Return the request that stores an object of the bucket again, in parts."""
        store = self._store_for(size, in_parts=True)
        parts = _parts(store, source, size)
        return store.put_async(self.key(name), parts, use_multipart=True, chunk_size=_PART, max_concurrency=4)

    def _store_for(self, size: int, *, in_parts: bool = False) -> Any:
        """Return the store with time for requests of ``size`` bytes, doubled until it is enough: there are few."""
        times = -(-((_PART if in_parts else size) >> 20) // _TIMEOUT_S)
        # A part that fails must not cost the others.
        more = {"repeats": _PART_REPEATS} if in_parts else {}
        return open_store(self.scheme, self.bucket, timeout_s=_TIMEOUT_S << times.bit_length(), **more)


def open_folder(path: str) -> LocalFolder | StoreFolder:
    """Return a local or remote folder."""
    return StoreFolder(path) if is_remote(path) else LocalFolder(Path(path))


class _Reader(io.RawIOBase):
    """A reader of an object in sequence."""

    def __init__(self, folder: RemoteFolder, name: str, size: int) -> None:
        super().__init__()
        self._folder = folder
        self._name = name
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        start, stop = self._position, min(self._size, self._position + len(buffer))
        if start < stop:
            buffer[: stop - start] = self._folder.read_range(self._name, start, stop)
        self._position = stop
        return stop - start


async def _parts(store: Any, key: str, size: int) -> AsyncIterator[bytes]:
    """Yield the content of an object, a request a part."""
    for start in range(0, size, _PART):
        yield await store.get_range_async(key, start=start, end=min(size, start + _PART))


def _md5(content: bytes | mmap.mmap = b"") -> Any:
    return hashlib.md5(content, usedforsecurity=False)
