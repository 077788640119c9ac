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

    def read_some(self, object_names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of the objects that exist among several, read at the same time."""

        contents: dict[str, bytes] = {}

        async def read(name: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                contents[name] = await self._read(name)

        requested = list(object_names)
        object_reads().wait_all(map(read, requested))
        return {name: contents[name] for name in requested if name in contents}

    def open(self, name: str, *, num_bytes: int) -> io.BufferedReader:
        """Open an object of ``num_bytes`` bytes to read it in sequence."""
        return io.BufferedReader(_Reader(self, name, num_bytes), CHUNK)

    def download(self, name: str, target_path: Path, *, num_bytes: int) -> None:
        """Copy an object of ``num_bytes`` bytes to a file."""
        with self.open(name, num_bytes=num_bytes) as source, target_path.open("wb") as target_file:
            shutil.copyfileobj(source, target_file, CHUNK)

    def write(self, name: str, content: bytes, *, unless_there: bool = False) -> None:
        """Store an object and check what arrived; raises RemoteError if it is something else, which is removed.

        ``unless_there`` leaves an existing object as it is. Stores that do not know the condition replace it.
        """
        with contextlib.suppress(FileExistsError):
            self._put(name, content, put_mode="create" if unless_there else "overwrite")

    def upload(self, file_path: Path, name: str) -> None:
        """Store a file and check what arrived, as ``write``; raises OSError if the file cannot be read."""
        with file_path.open("rb") as source_file:
            # Pages of a file that is mapped are sent without being copied; no map is empty.
            content = mmap.mmap(source_file.fileno(), 0, prot=mmap.PROT_READ) if file_path.stat().st_size else b""
            try:
                self._put(name, content)
            except RemoteError as error:
                if error.refused:
                    raise
                # A network damages bytes now and then.
                self._put(name, content)

    def _put(
        self, name: str, content: bytes | mmap.mmap, *, put_mode: Literal["create", "overwrite"] = "overwrite"
    ) -> None:
        """Store an object, and compare it by the store's MD5, or by its content if the store has none."""
        # One request: the parts of a killed upload would stay, and cost money.
        in_parts = len(content) > _MAX_PUT
        store = self._store_for(len(content), in_parts=in_parts)
        with self.explained("written", name):
            put = partial(store.put_async, mode=put_mode, use_multipart=in_parts, chunk_size=_PART)
            put_result = self._wait(partial(put, self.key(name), content), num_bytes=len(content))
        expected = _md5(content).hexdigest()
        # An ETag is not an MD5 in buckets with their own keys, and objects made of parts have none.
        if str(put_result["e_tag"]).strip('"') == expected:
            return
        stored_bytes = self.size(name)
        if stored_bytes == len(content):
            with contextlib.suppress(RemoteError), self.open(name, num_bytes=stored_bytes) as stored:
                if hashlib.file_digest(stored, _md5).hexdigest() == expected:
                    return
        self.remove([name])
        stored_text = "nothing" if stored_bytes is None else f"other content ({stored_bytes:,} bytes)"
        reason = f"after {len(content):,} bytes were stored, the store has {stored_text}"
        raise RemoteError(f"{self.url}/{name}: {reason}; try again")

    def copy(self, source: RemoteFolder, object_names: Iterable[str]) -> None:
        """Store copies of objects of another folder of the same bucket."""

        async def copy(name: str) -> int:
            """Copy an object within the store if it does that in one request, and return its size."""
            with self.explained("written", name):
                num_bytes = int((await self._repeat(lambda: self.store.head_async(source.key(name))))["size"])
                if num_bytes <= _MAX_PUT:
                    store = self._store_for(num_bytes)
                    await self._repeat(lambda: store.copy_async(source.key(name), self.key(name)), num_bytes=num_bytes)
                return num_bytes

        requested = list(object_names)
        for name, num_bytes in zip(requested, object_reads().wait_all(map(copy, requested)), strict=True):
            if num_bytes > _MAX_PUT:
                with self.explained("written", name):
                    self._wait(partial(self._put_parts, source.key(name), name, num_bytes), num_bytes=num_bytes)

    def remove(self, object_names: Iterable[str]) -> None:
        """Remove the objects that exist among several."""

        async def remove(name: str) -> None:
            with contextlib.suppress(FileNotFoundError), self.explained("removed", name):
                await self._repeat(lambda: self.store.delete_async(self.key(name)))

        object_reads().wait_all(map(remove, object_names))

    def _put_parts(self, source_key: str, name: str, num_bytes: int) -> Any:
        """Return the request that stores an object of the bucket again, in parts."""
        store = self._store_for(num_bytes, in_parts=True)
        parts = _parts(store, source_key, num_bytes)
        return store.put_async(self.key(name), parts, use_multipart=True, chunk_size=_PART, max_concurrency=4)

    def _store_for(self, num_bytes: int, *, in_parts: bool = False) -> Any:
        """Return the store with time for requests of ``num_bytes`` bytes, doubled until it is enough: there are few."""
        num_timeouts = -(-((_PART if in_parts else num_bytes) >> 20) // _TIMEOUT_S)
        # A part that fails must not cost the others.
        store_options = {"repeats": _PART_REPEATS} if in_parts else {}
        return open_store(self.scheme, self.bucket, timeout_s=_TIMEOUT_S << num_timeouts.bit_length(), **store_options)


def open_folder(folder_path: str) -> LocalFolder | StoreFolder:
    """Return a local or remote folder."""
    return StoreFolder(folder_path) if is_remote(folder_path) else LocalFolder(Path(folder_path))


class _Reader(io.RawIOBase):
    """A reader of an object in sequence."""

    def __init__(self, folder: RemoteFolder, name: str, num_bytes: int) -> None:
        super().__init__()
        self._folder = folder
        self._name = name
        self._size = num_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        first_byte, end_byte = self._position, min(self._size, self._position + len(buffer))
        if first_byte < end_byte:
            buffer[: end_byte - first_byte] = self._folder.read_range(self._name, first_byte, end_byte)
        self._position = end_byte
        return end_byte - first_byte


async def _parts(store: Any, object_key: str, num_bytes: int) -> AsyncIterator[bytes]:
    """Yield the content of an object, a request a part."""
    for first_byte in range(0, num_bytes, _PART):
        yield await store.get_range_async(object_key, start=first_byte, end=min(num_bytes, first_byte + _PART))


def _md5(content: bytes | mmap.mmap = b"") -> Any:
    return hashlib.md5(content, usedforsecurity=False)
