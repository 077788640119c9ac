"""Folders of object stores that ``convert`` reads and writes.

An object appears complete or not at all, so nothing here writes under temporary names.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stream.storage.remote import CHUNK, LocalFolder, RemoteError, RemoteFolder, is_remote

_MAX_PUT = 5 << 30
"""Largest object that S3 takes in one request."""
_MULTIPART = 5 << 20
"""gcsfs would send a smaller file as a part of a message; after a final "\\r" its end mark takes a byte of the file."""


class StoreFolder(RemoteFolder):
    """A folder of an object store that can be written to, see ``stream.storage.remote.RemoteFolder``."""

    def read_some(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of the objects that exist among several, read at the same time."""
        paths = {f"{self.path}/{name}": name for name in names}
        if not paths:
            return {}
        with self.explained("read"):
            found = self.store.cat(list(paths), on_error="return")
            for content in found.values():
                if isinstance(content, BaseException) and not isinstance(content, FileNotFoundError):
                    raise content
        return {paths[path]: bytes(content) for path, content in found.items() if not isinstance(content, Exception)}

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
        with self.explained("written", name):
            try:
                mode = "create" if unless_there else "overwrite"
                self.store.pipe_file(f"{self.path}/{name}", content, mode=mode)
            except FileExistsError:
                return
        self._check(name, io.BytesIO(content))

    def upload(self, path: Path, name: str) -> None:
        """Store a file and check what arrived.

        Raises:
            RemoteError: The store has something else, which is removed.
            OSError: The file cannot be read.
        """
        try:
            self._put(path, name)
        except RemoteError as error:
            if error.refused:
                raise
            # A network fails now and then, and the library does not start again at the beginning of the file.
            self._put(path, name)

    def _put(self, path: Path, name: str) -> None:
        key = f"{self.prefix}/{name}".lstrip("/")
        with path.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            with self.explained("written", name):
                if self.scheme == "s3" and size <= _MAX_PUT:
                    # One request: the parts of a killed upload would stay, and cost money.
                    self.store.call_s3("put_object", Bucket=self.bucket, Key=key, Body=file)
                elif self.scheme == "gs" and size < _MULTIPART:
                    address = f"{self.store.base.removesuffix('storage/v1/')}upload/storage/v1/b/{{}}/o"
                    self.store.call("POST", address, self.bucket, uploadType="media", name=key, data=file.read())
                else:
                    self.store.put_file(str(path), f"{self.path}/{name}")
            self._check(name, file)

    def _check(self, name: str, file: io.BufferedReader | io.BytesIO) -> None:
        """Compare an object with its file by the store's MD5, or by its content if the store has no MD5."""
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        expected = hashlib.file_digest(file, _md5).digest()
        info = self.info(name)
        if info is not None and int(info["size"]) == size:
            if _stored_md5(info) == expected:
                return
            # An ETag is no MD5 in buckets with keys of their own, and objects made of parts have none.
            with contextlib.suppress(RemoteError), self.open(name, size=size) as stored:
                if hashlib.file_digest(stored, _md5).digest() == expected:
                    return
        self.remove([name])
        found = "nothing" if info is None else f"other content ({int(info['size']):,} bytes)"
        raise RemoteError(f"{self.url}/{name}: after {size:,} bytes were stored, the store has {found}; try again")

    def copy(self, source: RemoteFolder, name: str) -> None:
        """Store a copy of an object of another folder of the same object store."""
        with self.explained("written", name):
            self.store.cp_file(f"{source.path}/{name}", f"{self.path}/{name}")

    def remove(self, names: Iterable[str]) -> None:
        """Remove the objects that exist among several."""
        for name in names:
            with self.explained("removed", name), contextlib.suppress(FileNotFoundError):
                self.store.rm_file(f"{self.path}/{name}")


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


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def _stored_md5(info: dict[str, Any]) -> bytes | None:
    """Return the MD5 of an object that its store knows."""
    if found := info.get("md5Hash"):
        return base64.b64decode(found)
    etag = str(info.get("ETag", "")).strip('"')
    return bytes.fromhex(etag) if re.fullmatch(r"[0-9a-f]{32}", etag) else None
