"""Folders of a web server that answers requests for ranges, ``https://`` and ``http://``."""

from __future__ import annotations

import json
from typing import Any

from stream.storage.errors import FormatError
from stream.storage.object_reads import OPENING_S, explained, object_reads, open_store
from stream.storage.remote import RemoteError

LISTING = "info.json"
"""List of the datasets of a root, which a web server has no other way to tell: that of ``python -m stream.info``."""


class HttpFolder:
    """A folder of a web server, with the reading methods of ``RemoteFolder``.

    Args:
        url: Address of the folder.
        root: Address of the converted root, which has the list of its datasets; by default the same.
    """

    def __init__(self, url: str, *, root: str = "") -> None:
        self.url, self._root = url.rstrip("/"), (root or url).rstrip("/")
        object_reads()  # raises now
        scheme, _, path = self.url.partition("://")
        place, _, self._path = path.partition("/")
        self._store = open_store(scheme, place, deadline_s=OPENING_S)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> HttpFolder:
        return HttpFolder(f"{self.url}/{name}", root=self._root)

    def check(self) -> None:
        """Raise RemoteError unless the root has its list."""
        self._listed()

    def folders(self) -> list[str]:
        """Return the datasets of the root, or the versions of a dataset."""
        below = self.url.removeprefix(self._root).strip("/")
        return sorted({version if below else name for name, version in self._listed() if below in ("", name)})

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""
        try:
            with explained(f"{self.url}/{name}"):
                return int(self._store.head(self._key(name))["size"])
        except FormatError:
            return None

    def read(self, name: str) -> bytes:
        """Return the content of a file; raise FileNotFoundError if it does not exist."""
        try:
            with explained(f"{self.url}/{name}"):
                return bytes(self._store.get(self._key(name)).bytes())
        except FormatError:
            raise FileNotFoundError(f"{self.url}/{name}: no such file") from None

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a file, or fewer if it is shorter."""
        return object_reads().read(f"{self.url}/{name}", start, stop)

    def _key(self, name: str) -> str:
        return f"{self._path}/{name}".lstrip("/")

    def _listed(self) -> list[tuple[str, str]]:
        """Return name and version of each dataset of the root."""
        try:
            content: Any = json.loads((HttpFolder(self._root)).read(LISTING))
            return [(str(each["dataset"]), str(each["version"])) for each in content["datasets"]]
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            raise RemoteError(
                f"{self._root}/{LISTING}: no list of datasets, which a web server cannot tell by itself; write it "
                f"with `python -m stream.info ROOT --json > ROOT/{LISTING}`",
                refused=True,
            ) from None
