"""Folders in object stores, ``s3://`` and ``gs://``: the only module that knows fsspec, which it imports when one is
opened.

Credentials, endpoints, proxies and retries are those of the libraries (s3fs, gcsfs): ``AWS_PROFILE``,
``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``STORAGE_EMULATOR_HOST``, ``FSSPEC_S3_ANON`` and so on.
An object appears whole or not at all, so nothing here writes under temporary names.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import logging
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from stream.errors import StreamError
from stream.extras import missing

CHUNK = 8 << 20
"""Bytes of one request when an object is read from its start to its end."""

_LIBRARIES = {"s3": "s3fs", "gs": "gcsfs"}
_MAX_PUT = 5 << 30
"""S3 takes no larger object in one request."""
_MULTIPART = 5 << 20
"""gcsfs sends a smaller file as a part of a message, whose end is a line that the content must not be mistaken for."""
_REMOTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


class RemoteError(StreamError):
    """An object store that does not do what it is asked for. ``refused``: not by accident, so trying again is no use:
    no such bucket, no credentials, not allowed, a library that is not installed."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused

    def __reduce__(self) -> tuple[object, ...]:
        return _error, (str(self), self.refused)


def _error(message: str, refused: bool) -> RemoteError:
    return RemoteError(message, refused=refused)


def is_remote(path: str | Path) -> bool:
    """Whether a path is an address; ``Path`` makes one slash of its two.

    >>> is_remote("s3://bucket/oxe"), is_remote(Path("gs://bucket")), is_remote("data/oxe")
    (True, True, False)
    """
    return bool(_REMOTE.match(str(path)))


def join(root: str | Path, *names: str) -> str:
    """Return the path of something below a folder, local or remote.

    >>> join("s3://bucket/oxe/", "bridge", "0.1.0"), join("data/oxe", "bridge")
    ('s3://bucket/oxe/bridge/0.1.0', 'data/oxe/bridge')
    """
    if is_remote(root):
        return "/".join((str(root).rstrip("/"), *names))
    return str(Path(root, *names))


class RemoteFolder:
    """A folder of an object store, that is, the objects whose names start with it.

    Args:
        url: ``s3://bucket/folder`` or ``gs://bucket/folder``.

    Raises:
        RemoteError: another kind of address, or the library for it is not installed.
    """

    def __init__(self, url: str) -> None:
        scheme, _, path = url.partition("://")
        self._path = path.strip("/")
        if scheme not in _LIBRARIES or not self._path:
            raise RemoteError(f"{url}: expected a folder, s3://BUCKET/... or gs://BUCKET/...", refused=True)
        self._scheme = scheme
        self.url = f"{scheme}://{self._path}"
        self._bucket, _, self._prefix = self._path.partition("/")
        with self._explained("opened"):
            self._store = _open_store(scheme)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> RemoteFolder:
        return RemoteFolder(f"{self.url}/{name}")

    def check(self) -> None:
        """Raise RemoteError unless the bucket is there and may be listed."""
        with self._explained("listed"):
            try:
                if self._scheme == "s3":
                    self._store.call_s3("list_objects_v2", Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)
                else:
                    self._store.call("GET", "b/{}/o", self._bucket, prefix=self._prefix, maxResults=1, json_out=True)
            except FileNotFoundError:
                raise RemoteError(
                    f"{self.url}: no such bucket: {self._scheme}://{self._bucket}; check its name", refused=True
                ) from None

    def sizes(self) -> dict[str, int]:
        """Return name and size of every object that lies in the folder itself."""
        return {str(entry["name"]).rsplit("/", 1)[-1]: int(entry["size"]) for entry in self._list("file")}

    def folders(self) -> list[str]:
        """Return the names of the folders in it."""
        return sorted(str(entry["name"]).rstrip("/").rsplit("/", 1)[-1] for entry in self._list("directory"))

    def _list(self, kind: str) -> list[dict[str, Any]]:
        with self._explained("listed"):
            try:
                entries = self._store.ls(self._path, detail=True)
            except FileNotFoundError:
                return []
        # A store may have an object of the folder's own name; it is nothing that lies in it.
        return [
            entry
            for entry in entries
            if entry["type"] == kind and str(entry["name"]).strip("/") != self._path.strip("/")
        ]

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes, None if there is none."""
        found = self._info(name)
        return None if found is None else int(found["size"])

    def _info(self, name: str) -> dict[str, Any] | None:
        with self._explained("read", name):
            try:
                found: dict[str, Any] = self._store.info(f"{self._path}/{name}")
            except FileNotFoundError:
                return None
        return found if found["type"] == "file" else None

    def read(self, name: str) -> bytes:
        """Return the content of an object; raises FileNotFoundError if there is none."""
        with self._explained("read", name):
            try:
                return bytes(self._store.cat_file(f"{self._path}/{name}"))
            except FileNotFoundError:
                raise FileNotFoundError(f"{self.url}/{name}: no such object") from None

    def read_some(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of several objects, read at the same time, of those that are there."""
        paths = {f"{self._path}/{name}": name for name in names}
        if not paths:
            return {}
        with self._explained("read"):
            found = self._store.cat(list(paths), on_error="return")
            for content in found.values():
                if isinstance(content, BaseException) and not isinstance(content, FileNotFoundError):
                    raise content
        return {paths[path]: bytes(content) for path, content in found.items() if not isinstance(content, Exception)}

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of an object, which must be there and not end before."""
        with self._explained("read", name):
            content = bytes(self._store.cat_file(f"{self._path}/{name}", start=start, end=stop))
        if len(content) != stop - start:
            raise RemoteError(f"{self.url}/{name}: {len(content):,} bytes came for {stop - start:,}; try again")
        return content

    def open(self, name: str, *, size: int) -> BinaryIO:
        """Open an object of ``size`` bytes, to read it from its start to its end."""
        return io.BufferedReader(_Reader(self, name, size), CHUNK)

    def write(self, name: str, content: bytes, *, unless_there: bool = False) -> None:
        """Store an object and compare what the store says of it.

        Args:
            name: of the object.
            content: all of it.
            unless_there: leave one that is there as it is. Stores that do not know the condition replace it.
        """
        with self._explained("written", name):
            try:
                mode = "create" if unless_there else "overwrite"
                self._store.pipe_file(f"{self._path}/{name}", content, mode=mode)
            except FileExistsError:
                return
        self._compare(name, io.BytesIO(content))

    def upload(self, path: Path, name: str) -> None:
        """Store a file and compare size and hash that the store says of it; it is read back if the store has none.

        Raises:
            RemoteError: the store has something else, which is removed.
            OSError: the file cannot be read.
        """
        with path.open("rb") as file:
            try:
                self._put(file, path, name)
            except RemoteError as error:
                if error.refused:
                    raise
                # A network fails now and then, and the library does not start again at the beginning of the file.
                self._put(file, path, name, bare=True)

    def _put(self, file: io.BufferedReader, path: Path, name: str, *, bare: bool = False) -> None:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        key = f"{self._prefix}/{name}".lstrip("/")
        with self._explained("written", name):
            if self._scheme == "s3" and size <= _MAX_PUT:
                # In one request from the disk: parts of one that was killed would stay, and cost money.
                self._store.call_s3("put_object", Bucket=self._bucket, Key=key, Body=file)
            elif self._scheme == "gs" and bare and size < _MULTIPART:
                # gcsfs ends the part with "\n" and its mark. Whoever reads that as "\r\n" and the mark drops the last
                # byte of a file that ends with "\r", as one of 256 does.
                address = f"{self._store.base.removesuffix('storage/v1/')}upload/storage/v1/b/{{}}/o"
                self._store.call("POST", address, self._bucket, uploadType="media", name=key, data=file.read())
            else:
                self._store.put_file(str(path), f"{self._path}/{name}")
        self._compare(name, file)

    def _compare(self, name: str, file: io.BufferedReader | io.BytesIO) -> None:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        info = self._info(name)
        if info is not None and int(info["size"]) == size:
            expected = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).digest()
            if _stored_md5(info) == expected:
                return
            # An ETag is no MD5 in buckets with keys of their own, and objects made of parts have none.
            with contextlib.suppress(RemoteError):
                if self._md5(name, size) == expected:
                    return
        self.remove([name])
        found = "nothing" if info is None else f"other content ({int(info['size']):,} bytes)"
        raise RemoteError(f"{self.url}/{name}: after {size:,} bytes were stored, the store has {found}; try again")

    def _md5(self, name: str, size: int) -> bytes:
        digest = hashlib.md5(usedforsecurity=False)
        for start in range(0, size, CHUNK):
            digest.update(self.read_range(name, start, min(size, start + CHUNK)))
        return digest.digest()

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects, as far as they are there."""
        for name in names:
            with self._explained("removed", name), contextlib.suppress(FileNotFoundError):
                self._store.rm_file(f"{self._path}/{name}")

    @contextlib.contextmanager
    def _explained(self, done: str, name: str = "") -> Iterator[None]:
        """Turn what the libraries raise, which is nearly anything, into one clear error."""
        where = f"{self.url}/{name}" if name else self.url
        try:
            yield
        except RemoteError:
            raise
        except FileNotFoundError:
            if done == "written":
                raise RemoteError(f"{where}: no such bucket: {self._bucket}; check its name", refused=True) from None
            raise
        except ImportError as error:
            extra = "s3" if self._scheme == "s3" else "gcs"
            library = _LIBRARIES[self._scheme]
            raise RemoteError(f"{missing(library, extra, by=where)} ({error})", refused=True) from None
        except Exception as error:
            reason, refused = _reason(error)
            raise RemoteError(f"{where}: cannot be {done}: {reason}", refused=refused) from error


class _Reader(io.RawIOBase):
    """Reads an object in sequence."""

    def __init__(self, folder: RemoteFolder, name: str, size: int) -> None:
        super().__init__()
        self._folder = folder
        self._name = name
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        stop = min(self._size, self._position + len(view))
        if stop <= self._position:
            return 0
        content = self._folder.read_range(self._name, self._position, stop)
        view[: len(content)] = content
        self._position = stop
        return len(content)


@cache
def _open_store(scheme: str) -> Any:
    # What they log on the way to an error would be traces around the one message, which is ours.
    for name in (_LIBRARIES[scheme], "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    if scheme == "s3":
        import s3fs

        return s3fs.S3FileSystem(use_listings_cache=False)
    # The class that the package exports asks for the kind of each bucket first, which needs a right of its own.
    from gcsfs.core import GCSFileSystem

    return GCSFileSystem(use_listings_cache=False)


def _stored_md5(info: dict[str, Any]) -> bytes | None:
    """The MD5 of an object that its store knows."""
    if found := info.get("md5Hash"):
        return base64.b64decode(found)
    etag = str(info.get("ETag", "")).strip('"')
    return bytes.fromhex(etag) if re.fullmatch(r"[0-9a-f]{32}", etag) else None


def _reason(error: Exception) -> tuple[str, bool]:
    """What went wrong in the words of the library, and whether the store refused it for good."""
    code = str(getattr(error, "code", ""))
    text = " ".join(str(error).split())[:300] or type(error).__name__
    if type(error).__name__ in ("NoCredentialsError", "DefaultCredentialsError", "RefreshError") or code == "401":
        return f"no credentials that are valid ({text}); see the library's own ways to give them", True
    if isinstance(error, PermissionError) or code == "403" or "Forbidden" in text:
        return f"not allowed with these credentials ({text})", True
    return f"{type(error).__name__}: {text}", False
