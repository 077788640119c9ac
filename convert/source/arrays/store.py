"""Open files of arrays, whose groups and arrays h5py and zarr show alike."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convert.errors import DamagedEpisode, MalformedEpisode, UsageError
from stream.base.extras import missing

STORES = ("zarr.json", ".zgroup", ".zarray")
"""Files that make a folder one of Zarr."""
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MAX_DEPTH = 16
"""Most levels of groups; links may form circles."""
_FAULTS = (OSError, RuntimeError, ValueError, KeyError, EOFError, MemoryError)
"""Errors of the libraries for damaged files."""
PIECE = 256 << 20
"""Most bytes of a value of an episode, of a row that may be an encoded picture, and of a piece of larger chunks."""


class ArrayInfo(NamedTuple):
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
        return self.row_bytes <= PIECE


class Store:
    """An open file of Zarr, and the base of HDF5; slashes at the ends of a path do not count."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def block_rows(self, info: ArrayInfo) -> int | None:
        """Return a count of steps whose chunks are read at once; None if any count is as good."""
        return min(info.chunks[0], max(1, PIECE // info.row_bytes)) if info.chunks else None

    def _open_array(self, path: str, info: ArrayInfo) -> Any:
        """Return an open array whose steps are read one after the other."""
        return self._root[path]

    def groups(self, pattern: str) -> list[str]:
        """Return the paths of the groups of a pattern in natural order: ``demo_2`` before ``demo_10``."""
        group_paths = [""]
        for name_pattern in pattern.strip("/").split("/"):
            group_paths = [
                f"{path}/{name}".strip("/")
                for path in group_paths
                for name in self._names(path)
                if fnmatchcase(name, name_pattern) and _is_group(self._item(f"{path}/{name}"))
            ]
        return group_paths

    def first(self, pattern: str) -> str | None:
        """Return the first path of a group or array that fits a pattern; each part takes its first match."""
        member_path = ""
        for name_pattern in pattern.strip("/").split("/"):
            member_name = next((name for name in self._names(member_path) if fnmatchcase(name, name_pattern)), None)
            if member_name is None:
                return None
            member_path = f"{member_path}/{member_name}".strip("/")
        return member_path

    def arrays(self, group: str) -> dict[str, ArrayInfo]:
        """Return all arrays below a group by their path in it."""
        return dict(self._walk(group, "", 0))

    def find(self, path: str) -> ArrayInfo | None:
        """Return an array's facts, None if it does not exist."""
        item = self._item(path)
        return None if item is None or _is_group(item) else _array_info(item)

    def array_info(self, path: str) -> ArrayInfo:
        """Return an array's facts; raises MalformedEpisode if it does not exist."""
        if (info := self.find(path)) is None:
            raise MalformedEpisode(f"has no array {path}")
        return info

    def rows(self, path: str, info: ArrayInfo, start: int, stop: int) -> np.ndarray:
        """Read some steps of an array; raises OSError if they cannot be read."""
        try:
            return np.asarray(self._open_array(path.strip("/"), info)[start:stop])
        except Exception as error:  # Codecs raise errors of any class.
            raise OSError(f"{type(error).__name__}: {error}") from None

    def value(self, path: str) -> Any:
        """Return a complete array, or the attribute of ``PATH@ATTRIBUTE``; None if it does not exist.

        Raises:
            MalformedEpisode: It takes more than 256 MiB.
        """
        item_path, separator, attribute = path.partition("@")
        if separator:
            return self.attributes(item_path).get(attribute)
        if (info := self.find(path)) is None:
            return None
        if math.prod(info.shape) * info.dtype.itemsize > PIECE:
            raise MalformedEpisode(f"{path} is {info.dtype} {info.shape}, more than {PIECE >> 20} MiB")
        return self._item(path)[()]

    def attributes(self, path: str) -> dict[str, Any]:
        """Return the attributes of a group, none if it does not exist."""
        item = self._item(path)
        return {} if item is None else dict(item.attrs)

    def _item(self, path: str) -> Any:
        path = path.strip("/")
        try:
            with _codecs():
                return self._root[path] if path else self._root
        except KeyError:
            return None

    def _names(self, path: str) -> list[str]:
        item = self._item(path)
        with _codecs():
            return sorted(item.keys(), key=natural) if item is not None and _is_group(item) else []

    def _walk(self, group: str, parent: str, depth: int) -> Iterator[tuple[str, ArrayInfo]]:
        for name in self._names(f"{group}/{parent}"):
            path = f"{parent}/{name}" if parent else name
            item = self._item(f"{group}/{path}")
            if item is not None and not _is_group(item):
                yield path, _array_info(item)
            elif depth < _MAX_DEPTH:
                yield from self._walk(group, path, depth + 1)


def natural(text: str) -> list[Any]:
    """Return a key that sorts numbers in texts by value."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def is_hdf5(path: Path) -> bool:
    """Return whether a file starts with the magic bytes of HDF5."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SIGNATURE)) == _SIGNATURE
    except OSError:
        return False


def is_zarr(path: Path) -> bool:
    """Return whether a folder is a Zarr store, or the name of a file ends in ``.zip``."""
    return any((path / marker).exists() for marker in STORES) or (path.is_file() and path.suffix == ".zip")


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Turn an error of a library into a DamagedEpisode."""
    try:
        yield
    except _FAULTS as error:
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise DamagedEpisode(f"cannot be read ({text})", reason="unreadable") from None


@contextlib.contextmanager
def _codecs() -> Iterator[None]:
    """Raise UsageError if a codec of imagecodecs is missing."""
    try:
        yield
    except ValueError as error:
        if "imagecodecs" in str(error):
            raise UsageError(missing("imagecodecs", "zarr", by="a codec of this file")) from None
        raise


def _is_group(item: Any) -> bool:
    return item is not None and not hasattr(item, "dtype")


def _array_info(item: Any) -> ArrayInfo:
    chunks = getattr(item, "chunks", None)
    return ArrayInfo(tuple(item.shape), np.dtype(item.dtype), tuple(chunks) if chunks else None)
