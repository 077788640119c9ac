"""Folders on this machine and in object stores, ``s3://`` and ``gs://``.

Only this module uses s3fs and gcsfs, and it imports them when a remote folder is opened. The libraries find
credentials, endpoints and proxies, for example in ``AWS_PROFILE``, ``AWS_ENDPOINT_URL``,
``GOOGLE_APPLICATION_CREDENTIALS`` and ``STORAGE_EMULATOR_HOST``.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol, Self

from stream.storage.errors import ArgumentError, StreamError
from stream.storage.extras import missing

CHUNK = 8 << 20
"""Bytes of one request when an object is read in sequence."""

_LIBRARIES = {"s3": "s3fs", "gs": "gcsfs"}
_REMOTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


class RemoteError(StreamError):
    """A request that an object store did not fulfil.

    Attributes:
        refused: True if retrying cannot help: no such bucket, no credentials, no permission, a missing library.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


def is_remote(path: str | Path) -> bool:
    """Return whether a path is a URL; a ``Path`` of a URL has lost one slash.

    >>> is_remote("s3://bucket/oxe"), is_remote(Path("gs://bucket")), is_remote("data/oxe")
    (True, True, False)
    """
    return bool(_REMOTE.match(str(path)))


def join(root: str | Path, *names: str) -> str:
    """Return a path below a local or remote folder.

    >>> join("s3://bucket/oxe/", "bridge", "0.1.0"), join("data/oxe", "bridge")
    ('s3://bucket/oxe/bridge/0.1.0', 'data/oxe/bridge')
    """
    if is_remote(root):
        return "/".join((str(root).rstrip("/"), *names))
    return str(Path(root, *names))


@dataclass(frozen=True)
class CachedRoot:
    """A root of an object store, or a folder of it, whose records are read in place.

    Attributes:
        url: Address.
        cache: Local folder of the index, and of the records that were read.
        most: Most bytes of records in the cache, None for no bound.
    """

    url: str
    cache: Path
    most: int | None

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> CachedRoot:
        return replace(self, url=f"{self.url}/{name}")

    def resolve(self) -> CachedRoot:
        """Return the root itself, which no link leads to."""
        return self


def cached_root(root: str | Path | CachedRoot, cache: str | Path | None) -> str | Path | CachedRoot:
    """Return the root of a loader: a ``CachedRoot`` if it is an address.

    Args:
        root: Local folder, or an address.
        cache: ``DIR`` or ``DIR:200GB`` (KB to TB), for an address alone.

    Raises:
        ArgumentError: The address has no cache, or the cache no address; or either cannot be used.

    >>> cached_root("s3://bucket/oxe/", "/scratch/oxe:200GB")
    CachedRoot(url='s3://bucket/oxe', cache=PosixPath('/scratch/oxe'), most=200000000000)
    """
    if isinstance(root, CachedRoot) or not isinstance(root, str | Path) or not is_remote(root):
        if cache is not None:
            raise ArgumentError(f"cache={str(cache)!r:.200} is for roots like s3://BUCKET/...; leave it out for {root}")
        return root
    # A Path has lost one slash.
    url = re.sub(r":/+", "://", str(root), count=1).rstrip("/")
    if re.search(r"[@?#]", url):
        raise ArgumentError(f"{url.partition('://')[0]}://...: has a name, key or query in it; give the address alone")
    if cache is None:
        raise ArgumentError(
            f"{url}: to read it in place, name a local folder for what was read, and a bound: "
            "cache='/scratch/oxe:200GB' (--cache for a command); or copy what a mixture needs with "
            f"`python -m stream.fetch {url} LOCAL --mixture MIXTURE`, and open LOCAL"
        )
    if not isinstance(cache, str | Path):
        raise ArgumentError(f"cache={cache!r:.100}; expected a local folder, with a bound such as /scratch/oxe:200GB")
    folder, bound = str(cache), re.fullmatch(r"(.+):([0-9]+(?:\.[0-9]+)?)\s*([KMGT])B?", str(cache), re.IGNORECASE)
    most = None
    if bound is not None:
        folder, most = bound[1], int(float(bound[2]) * 1000 ** (1 + "KMGT".index(bound[3].upper())))
    if is_remote(folder) or not folder.strip() or (":" in folder and bound is None) or most == 0:
        raise ArgumentError(
            f"cache={str(cache)!r:.200}; expected a local folder, with a bound such as /scratch/oxe:200GB"
        )
    return CachedRoot(url, Path(folder).absolute(), most)


class RemoteFolder:
    """A folder of an object store: the objects whose names start with the folder's path.

    Args:
        url: ``s3://bucket/folder`` or ``gs://bucket/folder``.

    Raises:
        RemoteError: The URL is of another kind, or its library is not installed.
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
        """Raise RemoteError unless the bucket exists and can be listed."""
        with self.explained("listed"):
            if self.scheme == "s3":
                self.store.call_s3("list_objects_v2", Bucket=self.bucket, Prefix=self.prefix, MaxKeys=1)
            else:
                self.store.call("GET", "b/{}/o", self.bucket, prefix=self.prefix, maxResults=1, json_out=True)

    def sizes(self) -> dict[str, int]:
        """Return the size of each object directly in the folder, by name."""
        return {str(entry["name"]).rsplit("/", 1)[-1]: int(entry["size"]) for entry in self._list("file")}

    def folders(self) -> list[str]:
        """Return the names of the subfolders."""
        return sorted(str(entry["name"]).rstrip("/").rsplit("/", 1)[-1] for entry in self._list("directory"))

    def _list(self, kind: str) -> list[dict[str, Any]]:
        with self.explained("listed"):
            try:
                entries = self.store.ls(self.path, detail=True)
            except FileNotFoundError:
                return []
        # A store may list an object with the folder's own name.
        return [entry for entry in entries if entry["type"] == kind and str(entry["name"]).strip("/") != self.path]

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes, or None if it does not exist."""
        found = self.info(name)
        return None if found is None else int(found["size"])

    def info(self, name: str) -> dict[str, Any] | None:
        """Return the store's metadata of an object, or None if it does not exist."""
        with self.explained("read", name):
            try:
                found: dict[str, Any] = self.store.info(f"{self.path}/{name}")
            except FileNotFoundError:
                return None
        return found if found["type"] == "file" else None

    def read(self, name: str) -> bytes:
        """Return the content of an object; raise FileNotFoundError if it does not exist."""
        with self.explained("read", name):
            return bytes(self.store.cat_file(f"{self.path}/{name}"))

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of an object; raise RemoteError if it is shorter."""
        with self.explained("read", name):
            content = bytes(self.store.cat_file(f"{self.path}/{name}", start=start, end=stop))
        if len(content) != stop - start:
            raise RemoteError(f"{self.url}/{name}: {len(content):,} bytes came for {stop - start:,}; try again")
        return content

    @contextlib.contextmanager
    def explained(self, done: str, name: str = "") -> Iterator[None]:
        """Turn any exception of the libraries into one clear RemoteError."""
        where = f"{self.url}/{name}" if name else self.url
        try:
            yield
        except RemoteError:
            raise
        except FileNotFoundError:
            if done in ("listed", "written"):
                bucket = f"{self.scheme}://{self.bucket}"
                raise RemoteError(f"{where}: no such bucket: {bucket}; check its name", refused=True) from None
            raise FileNotFoundError(f"{where}: no such object") from None
        except ImportError as error:
            extra = "s3" if self.scheme == "s3" else "gcs"
            library = _LIBRARIES[self.scheme]
            raise RemoteError(f"{missing(library, extra, by=where)} ({error})", refused=True) from None
        except Exception as error:
            reason, refused = explain(error)
            raise RemoteError(f"{where}: cannot be {done}: {reason}", refused=refused) from error


@dataclass(frozen=True)
class LocalFolder:
    """A local or mounted folder, with the reading methods of ``RemoteFolder``."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> LocalFolder:
        return LocalFolder(self.path / name)

    def folders(self) -> list[str]:
        """Return the names of the subfolders."""
        return sorted(entry.name for entry in self.path.iterdir() if entry.is_dir()) if self.path.is_dir() else []

    def sizes(self) -> dict[str, int]:
        """Return the size of each file directly in the folder, by name."""
        if not self.path.is_dir():
            return {}
        return {entry.name: entry.stat().st_size for entry in self.path.iterdir() if entry.is_file()}

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""
        path = self.path / name
        return path.stat().st_size if path.is_file() else None

    def read(self, name: str) -> bytes:
        """Return the content of a file; raise FileNotFoundError if it does not exist."""
        return (self.path / name).read_bytes()

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a file, or fewer if it is shorter."""
        with (self.path / name).open("rb") as file:
            file.seek(start)
            return file.read(stop - start)


class Folder(Protocol):
    """Reading methods of folders of every kind."""

    def __truediv__(self, name: str) -> Folder: ...

    def folders(self) -> list[str]:
        """Return the names of the subfolders."""

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""

    def read(self, name: str) -> bytes:
        """Return the content of a file; raise FileNotFoundError if it does not exist."""

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a file."""


@cache
def _open_store(scheme: str) -> Any:
    # Their logged tracebacks would hide the one message of RemoteError.
    for name in (_LIBRARIES[scheme], "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    if scheme == "s3":
        import s3fs

        return s3fs.S3FileSystem(use_listings_cache=False)
    # The class that gcsfs exports first asks for each bucket's type, which needs a permission of its own.
    from gcsfs.core import GCSFileSystem

    return GCSFileSystem(use_listings_cache=False)


def explain(error: Exception) -> tuple[str, bool]:
    """Return the reason of an error in the library's words, and whether retrying cannot help."""
    code = str(getattr(error, "code", ""))
    # obstore appends its own structures.
    text = " ".join(str(error).partition("\n\nDebug source")[0].split())[:300] or type(error).__name__
    kind = type(error).__name__
    no_credentials = ("NoCredentialsError", "DefaultCredentialsError", "RefreshError", "UnauthenticatedError")
    if kind in no_credentials or code == "401":
        return f"no credentials that are valid ({text}); the documentation of s3fs or gcsfs says how to set them", True
    if isinstance(error, PermissionError) or kind == "PermissionDeniedError" or code == "403" or "Forbidden" in text:
        return f"not allowed with these credentials ({text})", True
    return f"{kind}: {text}", False
