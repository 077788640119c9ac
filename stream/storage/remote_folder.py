"""Folders of object stores and web servers: ``s3://``, ``gs://``, ``https://`` and ``http://``."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, ClassVar, Self

from stream.base.errors import FormatError, StreamError
from stream.base.extras import missing
from stream.storage.object_reads import OPENING_S, object_reads
from stream.storage.object_stores import object_key, open_store
from stream.storage.remote import LocalFolder, RemoteError, checked_url, explain

LISTING = "info.json"
"""File with the datasets of a root on a web server, which cannot list folders; ``pairstream info`` prints it."""
_WEB = ("http", "https")
_LATE_S, _SLOW = 2, 128 << 10
"""Seconds after which an answer is late, and bytes per second of a slow link, over which no file is requested twice."""


class RemoteFolder:
    """A folder of an object store or web server: the objects whose names start with the folder's path.

    Args:
        url: ``s3://bucket/folder``, ``gs://bucket/folder``, or the address of a web server with requests for ranges.
        root: Address of the converted root, where a web server has the list of datasets; by default ``url``.

    Raises:
        ArgumentError: The URL has a name, key or query in it.
        RemoteError: The URL is of another kind, or a library is not installed.
    """

    schemes: ClassVar[dict[str, str]] = {
        "s3": "s3://BUCKET/...",
        "gs": "gs://BUCKET/...",
        **dict.fromkeys(_WEB, "https://HOST/..."),
        "hf": "hf://datasets/ORG/NAME",
    }
    chunk_bytes: ClassVar[int] = 1 << 20
    deadline_s: ClassVar[float] = OPENING_S
    timeout_s: ClassVar[float] = 0.8 * OPENING_S

    def __init__(self, url: str, *, root: str = "") -> None:
        # Only the root: the folders below it may have any name.
        checked_url(root or url)
        self.url, self._root = url.rstrip("/"), (root or url).rstrip("/")
        self.scheme, _, path = self.url.partition("://")
        self.bucket = path.partition("/")[0]
        # obstore panics at other names.
        if self.scheme not in self.schemes or not re.fullmatch(r"[\w.:\[\]-]+", self.bucket):
            url_patterns = list(dict.fromkeys(self.schemes.values()))
            expected = f"a folder, {', '.join(url_patterns[:-1])} or {url_patterns[-1]}"
            raise RemoteError(f"{url}: expected {expected}", refused=True)
        object_reads()  # raises if obstore is missing
        with self.explained("opened"):
            self.store = open_store(self.scheme, self.bucket, timeout_s=self.timeout_s)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, folder_name: str) -> Self:
        return type(self)(f"{self.url}/{folder_name}", root=self._root)

    def check(self) -> None:
        """Raise RemoteError unless the bucket exists and can be listed, or a web server has its list."""
        self.folders()

    def sizes(self) -> dict[str, int]:
        """Return the size of each object directly in the folder, by name."""
        return {object_key.rsplit("/", 1)[-1]: num_bytes for object_key, num_bytes in self._list()[0].items()}

    def folders(self) -> list[str]:
        """Return the names of the subfolders; of a web server the datasets of the root, or the versions of one."""
        if self.scheme not in _WEB:
            return sorted(key.rsplit("/", 1)[-1] for key in self._list()[1])
        if name := self.url.removeprefix(self._root).strip("/"):
            return sorted({version for dataset_name, version in self._listed() if dataset_name == name})
        return sorted({dataset_name for dataset_name, _ in self._listed()})

    def _list(self) -> tuple[dict[str, int], list[str]]:
        """Return the size of each object by its key, and the keys of the subfolders."""
        folder_key = self.key("")
        with self.explained("listed"):
            listing = self._wait(lambda: self.store.list_with_delimiter_async(folder_key or None))
        sizes = {str(entry["path"]): int(entry["size"]) for entry in listing["objects"]}
        # A store may list an object with the folder's own name.
        sizes.pop(folder_key, None)
        return sizes, list(map(str, listing["common_prefixes"]))

    def size(self, object_name: str) -> int | None:
        """Return the size of an object in bytes, or None if it does not exist."""
        try:
            with self.explained("read", object_name):
                return int(self._wait(lambda: self.store.head_async(self.key(object_name)))["size"])
        except FileNotFoundError:
            return None
        except RemoteError as error:
            # A bucket behind a web address answers 403 for a missing object to a user who may not list the bucket.
            if self.scheme in _WEB and "answered 403" in str(error):
                return None
            raise

    def read(self, object_name: str) -> bytes:
        """Return the content of an object; raise FileNotFoundError if it does not exist."""
        return object_reads().wait(self._read(object_name))

    async def _read(self, object_name: str) -> bytes:
        async def send() -> bytes:
            response = await self.store.get_async(self.key(object_name))
            return bytes(await response.bytes_async())

        with self.explained("read", object_name):
            return await self._repeat(send)

    def _repeat(self, send_request: Callable[[], Awaitable[Any]], *, num_bytes: int = 0) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a request that is repeated until the deadline, a second later for each MiB sent."""
        deadline = time.monotonic() + self.deadline_s + (num_bytes >> 20)
        return object_reads().repeat(send_request, lambda: deadline - time.monotonic())

    def _wait(self, send_request: Callable[[], Awaitable[Any]], *, num_bytes: int = 0) -> Any:
        """Return the answer of a request that is repeated until the deadline."""
        return object_reads().wait(self._repeat(send_request, num_bytes=num_bytes))

    def read_range(self, object_name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of an object; raise RemoteError if it is shorter."""
        try:
            late_s = _LATE_S + (stop - start) / _SLOW
            content = object_reads().read(f"{self.url}/{object_name}", start, stop, late_s=late_s)
        except FormatError as error:
            raise RemoteError(str(error)) from None
        if len(content) != stop - start:
            raise RemoteError(f"{self.url}/{object_name}: {len(content):,} bytes came for {stop - start:,}; try again")
        return content

    def key(self, object_name: str) -> str:
        """Return the key of an object in the bucket."""
        return object_key(f"{self.url}/{object_name}").rstrip("/")

    @contextlib.contextmanager
    def explained(self, done: str, name: str = "") -> Iterator[None]:
        """Turn an exception of the libraries into one clear RemoteError, FileNotFoundError or FileExistsError."""
        context = f"{self.url}/{name}" if name else self.url
        try:
            yield
        except StreamError:
            raise
        except ImportError as error:
            library, extra = ("botocore", "s3") if self.scheme == "s3" else ("google-auth", "gcs")
            raise RemoteError(f"{missing(library, extra, by=context)} ({error})", refused=True) from None
        except Exception as error:
            if "NoSuchBucket" in str(error):
                bucket = f"{self.scheme}://{self.bucket}"
                raise RemoteError(f"{context}: no such bucket: {bucket}; check its name", refused=True) from None
            if isinstance(error, FileNotFoundError):
                raise FileNotFoundError(f"{context}: no such object") from None
            if type(error).__name__ == "AlreadyExistsError":
                raise FileExistsError(f"{context}: exists already") from None
            reason, refused = explain(error)
            raise RemoteError(f"{context}: cannot be {done}: {reason}", refused=refused or done == "opened") from None

    def _listed(self) -> list[tuple[str, str]]:
        """Return name and version of each dataset of the root."""
        try:
            content: Any = json.loads(RemoteFolder(self._root).read(LISTING))
            return [(str(dataset_row["dataset"]), str(dataset_row["version"])) for dataset_row in content["datasets"]]
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            remedy = f"write it with `pairstream info ROOT --json > ROOT/{LISTING}`"
            message = f"{self._root}/{LISTING}: no list of datasets, which a web server needs; {remedy}"
            raise RemoteError(message, refused=True) from None


Folder = LocalFolder | RemoteFolder
