"""Open files of arrays: HDF5, and Zarr as a folder or zip."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from convert.errors import DamagedEpisode, MalformedEpisode

STORES = ("zarr.json", ".zgroup", ".zarray")
"""Files that make a folder one of Zarr."""
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_DEEPEST = 16
"""Most levels of groups; links may form circles."""
FAULTS = (OSError, RuntimeError, ValueError, KeyError, EOFError, MemoryError)
"""Errors of the libraries for damaged files."""
_MOST_BYTES = 256 << 20
"""Most bytes of a value of an episode, and of a row that may be an encoded picture."""


class Facts(NamedTuple):
    """An array without its content; ``chunks`` is the shape of a chunk, None for an array in one piece."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...] | None

    @property
    def row_bytes(self) -> int:
        """Bytes of the values of one step."""
        return max(1, math.prod(self.shape[1:]) * self.dtype.itemsize)

    @property
    def is_small(self) -> bool:
        """True if one step may be read at once."""
        return self.row_bytes <= _MOST_BYTES

    @property
    def band(self) -> int:
        """Bytes of the chunks that hold one step."""
        return self.row_bytes * self.chunks[0] if self.chunks else 0


class Library(Protocol):
    """The part in which HDF5 and Zarr differ."""

    def item(self, path: str) -> Any:
        """Return a group or array; raises KeyError if it does not exist."""

    def is_group(self, item: Any) -> bool:
        """Return whether an item is a group."""

    def names(self, group: Any) -> list[str]:
        """Return the names of a group's items."""

    def block_rows(self, facts: Facts) -> int | None:
        """Return a count of steps whose chunks are read at once; None if any count is as good."""

    def array(self, path: str, facts: Facts) -> Any:
        """Return an open array whose steps are read one after the other."""


class Store:
    """An open file; slashes at the ends of a path do not count."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def groups(self, pattern: str) -> list[str]:
        """Return the paths of the groups of a pattern in natural order: ``demo_2`` before ``demo_10``."""
        found = [""]
        for part in pattern.strip("/").split("/"):
            found = [
                f"{path}/{name}".strip("/")
                for path in found
                for name in sorted(self._names(path), key=natural)
                if fnmatchcase(name, part) and self.is_group(f"{path}/{name}")
            ]
        return found

    def is_group(self, path: str) -> bool:
        """Return whether a group exists."""
        item = self._item(path)
        return item is not None and self._library.is_group(item)

    def first(self, pattern: str) -> str | None:
        """Return the first path of a group or array that fits a pattern; each part of it takes the first that fits."""
        path = ""
        for part in pattern.strip("/").split("/"):
            name = next((name for name in sorted(self._names(path), key=natural) if fnmatchcase(name, part)), None)
            if name is None:
                return None
            path = f"{path}/{name}".strip("/")
        return path

    def arrays(self, group: str) -> dict[str, Facts]:
        """Return all arrays below a group by their path in it."""
        return dict(self._walk(group, "", 0))

    def find(self, path: str) -> Facts | None:
        """Return an array's facts, None if it does not exist."""
        item = self._item(path)
        return None if item is None or self._library.is_group(item) else _facts(item)

    def facts(self, path: str) -> Facts:
        """Return an array's facts; raises MalformedEpisode if it does not exist."""
        found = self.find(path)
        if found is None:
            raise MalformedEpisode(f"has no array {path}")
        return found

    def block_rows(self, facts: Facts) -> int | None:
        """Return a count of steps whose chunks are read at once; None if any count is as good."""
        return self._library.block_rows(facts)

    def rows(self, path: str, facts: Facts, start: int, stop: int) -> np.ndarray:
        """Read some steps of an array; raises OSError if they cannot be read."""
        try:
            return np.asarray(self._library.array(path.strip("/"), facts)[start:stop])
        except Exception as error:  # Codecs raise errors of their own.
            raise OSError(f"{type(error).__name__}: {error}") from None

    def value(self, path: str) -> Any:
        """Return a whole array, or the attribute of ``PATH@ATTRIBUTE``; None if it does not exist.

        Raises:
            MalformedEpisode: It takes more than 256 MiB.
        """
        place, at, attribute = path.partition("@")
        item = self._item(place)
        if at:
            return None if item is None else item.attrs.get(attribute)
        if item is None or self._library.is_group(item):
            return None
        facts = _facts(item)
        if math.prod(facts.shape) * facts.dtype.itemsize > _MOST_BYTES:
            raise MalformedEpisode(f"{path} is {facts.dtype} {facts.shape}, more than {_MOST_BYTES >> 20} MiB")
        return item[()]

    def attributes(self, path: str) -> dict[str, Any]:
        """Return the attributes of a group, none if it does not exist."""
        item = self._item(path)
        return {} if item is None else dict(item.attrs)

    def _item(self, path: str) -> Any:
        try:
            return self._library.item(path.strip("/"))
        except KeyError:
            return None

    def _names(self, path: str) -> list[str]:
        item = self._item(path)
        return self._library.names(item) if item is not None and self._library.is_group(item) else []

    def _walk(self, group: str, below: str, depth: int) -> Iterator[tuple[str, Facts]]:
        for name in sorted(self._names(f"{group}/{below}"), key=natural):
            path = f"{below}/{name}" if below else name
            item = self._item(f"{group}/{path}")
            if item is None:
                continue
            if not self._library.is_group(item):
                yield path, _facts(item)
            elif depth < _DEEPEST:
                yield from self._walk(group, path, depth + 1)


def natural(text: str) -> list[Any]:
    """Return a key that sorts numbers in texts by value."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def is_hdf5(path: Path) -> bool:
    """Return whether a file begins as HDF5 does."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SIGNATURE)) == _SIGNATURE
    except OSError:
        return False


def is_zarr(path: Path) -> bool:
    """Return whether a folder is one of Zarr, or a file is called a zip."""
    return any((path / name).exists() for name in STORES) or (path.is_file() and path.suffix == ".zip")


def unreadable(error: BaseException, *, what: str = "") -> DamagedEpisode:
    """Return what a library's error means for an episode."""
    text = " ".join(str(error).split())[:200] or type(error).__name__
    return DamagedEpisode(f"{what}cannot be read ({text})", reason="unreadable")


def _facts(item: Any) -> Facts:
    chunks: Sequence[int] | None = getattr(item, "chunks", None)
    return Facts(tuple(item.shape), np.dtype(item.dtype), tuple(chunks) if chunks else None)
