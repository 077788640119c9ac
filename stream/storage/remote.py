"""Addresses of object stores and web servers, the error of a request, and folders on this machine."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from stream.base.errors import ArgumentError, StreamError

MEMBERS = ".members"
"""Folder of a cache with the roots that share it: members with another root, and all roots of the default cache."""
_NO_CREDENTIALS = re.compile("(NoCredentials|DefaultCredentials|Refresh|Unauthenticated)Error|ProfileNotFound")
_REVISION = re.compile(r"^(hf://datasets/[^/@]+/[^/@]+)@")
_REMOTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/|$)")


class RemoteError(StreamError):
    """A request that an object store did not fulfil.

    ``refused`` is True if retrying cannot help: no such bucket, no credentials, no permission, a missing library.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class BusyError(Exception):
    """A request that a store asks to send again, not before ``pause_s`` seconds have passed."""

    def __init__(self, message: str, *, pause_s: float = 0) -> None:
        super().__init__(message)
        self.pause_s = pause_s


@dataclass
class Traffic:
    """Requests that were sent to a store, and the bytes of their answers."""

    requests: int = 0
    num_bytes: int = 0


def is_remote(location: str | Path) -> bool:
    """Return whether a path is a URL; a ``Path`` of a URL has lost one slash.

    >>> is_remote("s3://bucket/oxe"), is_remote(Path("gs://bucket")), is_remote("data/oxe")
    (True, True, False)
    """
    return bool(_REMOTE.match(str(location)))


def check_local(location: str | Path) -> None:
    """Raise ArgumentError for an address: writing to it as a path would make a folder ``s3:`` on this machine."""
    if is_remote(location):
        raise ArgumentError(f"{checked_url(location)}: expected a local path; write it there, and copy it to the store")


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
    """A root, or a folder of a root, whose records are read in place; or a local root with remote members.

    Attributes:
        url: Address, or the local folder.
        cache: Local folder of the index, and of the records that were read.
        most: Largest number of bytes of records in the cache, None for no bound.
        below: Folder below the cache, if several roots share it.
    """

    url: str
    cache: Path
    most: int | None
    below: str = ""

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, folder_name: str) -> CachedRoot:
        return replace(self, url=f"{self.url}/{folder_name}")

    def resolve(self) -> CachedRoot:
        """Return the root with links resolved."""
        return self if is_remote(self.url) else replace(self, url=str(Path(self.url).resolve()))

    @property
    def folder(self) -> Path:
        """Local folder with the index and records of this root."""
        return self.cache / self.below

    def member(self, url: str) -> CachedRoot:
        """Return the root of a member of a mixture; the same dataset of another root has a separate folder."""
        if (url := checked_url(url)) == self.url:
            return self
        return replace(self, url=url, below=folder_of(url))


def folder_of(url: str) -> str:
    """Return the folder of a root below a cache that several roots share."""
    folder_name = re.sub(r"[^A-Za-z0-9.-]+", "-", url)[:60]
    return f"{MEMBERS}/{folder_name}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def checked_url(address: str | Path) -> str:
    """Return an address as a URL; raise ArgumentError if it has a name, key or query in it."""
    # A Path has lost one slash.
    url = re.sub(r":/+", "://", str(address), count=1).rstrip("/")
    if re.search(r"[@?#]", _REVISION.sub(r"\1", url)):
        scheme = url.partition("://")[0]
        raise ArgumentError(f"{scheme}://...: has a name, key or query in it; give only the address")
    return url


@dataclass(frozen=True)
class LocalFolder:
    """A local or mounted folder, with the reading methods of ``RemoteFolder``."""

    path: Path
    chunk_bytes: ClassVar[int] = 1 << 20
    """Bytes to read at a time from a large file."""

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, folder_name: str) -> LocalFolder:
        return LocalFolder(self.path / folder_name)

    def folders(self) -> list[str]:
        """Return the names of the subfolders."""
        return sorted(entry.name for entry in self.path.iterdir() if entry.is_dir()) if self.path.is_dir() else []

    def sizes(self) -> dict[str, int]:
        """Return the size of each file directly in the folder, by name."""
        if not self.path.is_dir():
            return {}
        return {entry.name: entry.stat().st_size for entry in self.path.iterdir() if entry.is_file()}

    def size(self, file_name: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""
        file_path = self.path / file_name
        return file_path.stat().st_size if file_path.is_file() else None

    def read(self, file_name: str) -> bytes:
        """Return the content of a file; raise FileNotFoundError if it does not exist."""
        return (self.path / file_name).read_bytes()

    def read_range(self, file_name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a file, or fewer if it is shorter."""
        with (self.path / file_name).open("rb") as file:
            file.seek(start)
            return file.read(stop - start)


def is_final(error: BaseException) -> bool:
    """Return whether a request that failed would fail again: any other failure may be an outage."""
    if not isinstance(error, Exception) or isinstance(error, StreamError | FileNotFoundError | ImportError):
        return True
    text = f"{type(error).__name__} {error}"
    return bool(re.search(r"AlreadyExistsError|status code: (404|416) |NoSuchBucket", text)) or explain(error)[1]


def explain(error: Exception) -> tuple[str, bool]:
    """Return the reason of an error of the libraries, and whether retrying cannot help."""
    kind = type(error).__name__
    # obstore appends its own structures.
    reason = " ".join(str(error).partition("\n\nDebug source")[0].split())
    server = re.search(r" (https?://[^/@\s]+)", reason)
    if answer := re.search(r"non-2xx status code: ([^:]*)(.*)", reason):
        # The rest of an answer may repeat credentials.
        details = re.findall("<(?:Code|Message)>([^<]+)<", answer[2])
        reason = ": ".join((f"the server answered {answer[1]}", *details))
    reason = reason[:300].rstrip(": ") or kind
    if re.search(r"credential provider: \w*(?:Connect|Timeout|Transport)", reason):
        return f"no answer from the service of credentials ({reason}); try again", False
    if _NO_CREDENTIALS.fullmatch(kind) or re.search("answered 401|: ExpiredToken|: InvalidToken", reason):
        return f"no credentials that are valid ({reason}); docs/object-stores.md says how to set them", True
    if kind == "PermissionDeniedError" or isinstance(error, PermissionError) or "answered 403" in reason:
        return f"not allowed with these credentials ({reason}); docs/object-stores.md says how to set others", True
    if "Range request not supported" in reason:
        return "the server does not answer requests for ranges of a file; use one that does, such as nginx", True
    if "incorrectly configured region" in reason:
        return "the bucket is in another region; set AWS_REGION to it", True
    if re.search("error sending request|body error", reason) or isinstance(error, TimeoutError):
        sender = f" from {server[1]}" if server else ""
        return f"no answer{sender}; check the address, the network and the server, and try again", False
    return reason if answer else f"{kind}: {reason}", False
