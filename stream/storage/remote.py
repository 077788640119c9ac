"""Folders, local ones and those in object stores, ``s3://`` and ``gs://``.

Only this module knows fsspec, and imports it when a remote folder is opened.

Credentials, endpoints, proxies and retries are those of the libraries (s3fs, gcsfs): ``AWS_PROFILE``,
``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``STORAGE_EMULATOR_HOST``, ``FSSPEC_S3_ANON`` and so on.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from stream.storage.errors import StreamError
from stream.storage.extras import missing

CHUNK = 8 << 20
"""Bytes of one request when an object is read from its start to its end."""

_LIBRARIES = {"s3": "s3fs", "gs": "gcsfs"}
_REMOTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


class RemoteError(StreamError):
    """A request that an object store did not fulfil.

    Attributes:
        refused: Whether trying again is no use: no such bucket, no credentials, not allowed, a missing library.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


def is_remote(path: str | Path) -> bool:
    """Return whether a path is an address, of which ``Path`` keeps one slash.

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
        self.path = path.strip("/")
        if scheme not in _LIBRARIES or not self.path:
            raise RemoteError(f"{url}: expected a folder, s3://BUCKET/... or gs://BUCKET/...", refused=True)
        self.scheme = scheme
        self.url = f"{scheme}://{self.path}"
        self.bucket, _, self.prefix = self.path.partition("/")
        with self.explained("opened"):
            self.store = _open_store(scheme)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> Self:
        return type(self)(f"{self.url}/{name}")

    def check(self) -> None:
        """Raise RemoteError unless the bucket is there and may be listed."""
        with self.explained("listed"):
            if self.scheme == "s3":
                self.store.call_s3("list_objects_v2", Bucket=self.bucket, Prefix=self.prefix, MaxKeys=1)
            else:
                self.store.call("GET", "b/{}/o", self.bucket, prefix=self.prefix, maxResults=1, json_out=True)

    def sizes(self) -> dict[str, int]:
        """Return name and size of every object that lies in the folder itself."""
        return {str(entry["name"]).rsplit("/", 1)[-1]: int(entry["size"]) for entry in self._list("file")}

    def folders(self) -> list[str]:
        """Return the names of the folders in it."""
        return sorted(str(entry["name"]).rstrip("/").rsplit("/", 1)[-1] for entry in self._list("directory"))

    def _list(self, kind: str) -> list[dict[str, Any]]:
        with self.explained("listed"):
            try:
                entries = self.store.ls(self.path, detail=True)
            except FileNotFoundError:
                return []
        # A store may have an object of the folder's own name; it is nothing that lies in it.
        return [entry for entry in entries if entry["type"] == kind and str(entry["name"]).strip("/") != self.path]

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes, None if there is none."""
        found = self.info(name)
        return None if found is None else int(found["size"])

    def info(self, name: str) -> dict[str, Any] | None:
        """Return what the store says of an object, None if there is none."""
        with self.explained("read", name):
            try:
                found: dict[str, Any] = self.store.info(f"{self.path}/{name}")
            except FileNotFoundError:
                return None
        return found if found["type"] == "file" else None

    def read(self, name: str) -> bytes:
        """Return the content of an object; raises FileNotFoundError if there is none."""
        with self.explained("read", name):
            try:
                return bytes(self.store.cat_file(f"{self.path}/{name}"))
            except FileNotFoundError:
                raise FileNotFoundError(f"{self.url}/{name}: no such object") from None

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of an object, which must be there and not end before."""
        with self.explained("read", name):
            content = bytes(self.store.cat_file(f"{self.path}/{name}", start=start, end=stop))
        if len(content) != stop - start:
            raise RemoteError(f"{self.url}/{name}: {len(content):,} bytes came for {stop - start:,}; try again")
        return content

    @contextlib.contextmanager
    def explained(self, done: str, name: str = "") -> Iterator[None]:
        """Turn what the libraries raise, which is nearly anything, into one clear error."""
        where = f"{self.url}/{name}" if name else self.url
        try:
            yield
        except RemoteError:
            raise
        except FileNotFoundError:
            if done in ("listed", "written"):
                bucket = f"{self.scheme}://{self.bucket}"
                raise RemoteError(f"{where}: no such bucket: {bucket}; check its name", refused=True) from None
            raise
        except ImportError as error:
            extra = "s3" if self.scheme == "s3" else "gcs"
            library = _LIBRARIES[self.scheme]
            raise RemoteError(f"{missing(library, extra, by=where)} ({error})", refused=True) from None
        except Exception as error:
            reason, refused = _reason(error)
            raise RemoteError(f"{where}: cannot be {done}: {reason}", refused=refused) from error


@dataclass(frozen=True)
class LocalFolder:
    """A local or mounted folder, with the methods of ``RemoteFolder`` that read."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> LocalFolder:
        return LocalFolder(self.path / name)

    def folders(self) -> list[str]:
        """Return the names of the folders in it."""
        return sorted(entry.name for entry in self.path.iterdir() if entry.is_dir()) if self.path.is_dir() else []

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, None if there is none."""
        path = self.path / name
        return path.stat().st_size if path.is_file() else None

    def read(self, name: str) -> bytes:
        """Return the content of a file; raises FileNotFoundError if there is none."""
        return (self.path / name).read_bytes()

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a file, fewer where it ends before."""
        with (self.path / name).open("rb") as file:
            file.seek(start)
            return file.read(stop - start)


Folder = LocalFolder | RemoteFolder


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


def _reason(error: Exception) -> tuple[str, bool]:
    """Return the reason of an error in the library's words, and whether the store refused for good."""
    code = str(getattr(error, "code", ""))
    text = " ".join(str(error).split())[:300] or type(error).__name__
    if type(error).__name__ in ("NoCredentialsError", "DefaultCredentialsError", "RefreshError") or code == "401":
        return f"no credentials that are valid ({text}); see the library's own ways to give them", True
    if isinstance(error, PermissionError) or code == "403" or "Forbidden" in text:
        return f"not allowed with these credentials ({text})", True
    return f"{type(error).__name__}: {text}", False
