"""HDF5 files through h5py, with each chunk read once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convert.errors import DamagedEpisode, UsageError
from convert.source.arrays.store import ArrayInfo, Store, is_hdf5
from stream.base.extras import missing

_SMALL = 8 << 20
"""Bytes of the chunks of one step that are read at once, without a cache."""
_CACHED = 512 << 20
"""Most bytes of the chunks of one step that a cache holds."""
_PIECE = 256 << 20
"""Bytes that are read at once of larger ones, whose compressed chunks are read several times."""


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[Store]:
    """Open a file. Raises OSError if it cannot be read, UsageError if h5py is not installed."""
    try:
        import h5py
    except ModuleNotFoundError:
        raise UsageError(missing("h5py", "hdf5", by=str(path))) from None
    if path.exists() and not is_hdf5(path):
        raise DamagedEpisode("is not an HDF5 file", reason="unreadable")
    with h5py.File(path, "r", locking=False) as file, contextlib.closing(_Hdf5(h5py, file)) as library:
        yield Store(library)


@dataclass
class _Hdf5:
    """See ``convert.source.arrays.store.Library``; one array at a time has a cache."""

    h5py: Any
    file: Any
    cached: tuple[str, Any] = field(default=("", None))

    def item(self, path: str) -> Any:
        return self.file[path or "/"]

    def is_group(self, item: Any) -> bool:
        return isinstance(item, self.h5py.Group)

    def names(self, group: Any) -> list[str]:
        return list(group.keys())

    def block_rows(self, info: ArrayInfo) -> int | None:
        if info.band <= _SMALL:
            return info.chunks[0] if info.chunks else None
        return None if info.band <= _CACHED else max(1, _PIECE // info.row_bytes)

    def array(self, path: str, info: ArrayInfo) -> Any:
        if not _SMALL < info.band <= _CACHED:
            return self.file[path]
        if self.cached[0] != path:
            self.close()
            access_properties = self.h5py.h5p.create(self.h5py.h5p.DATASET_ACCESS)
            # With 200 slots a chunk, few chunks share a slot.
            num_chunks = max(1, info.band // max(1, _chunk_bytes(info)))
            access_properties.set_chunk_cache(200 * num_chunks + 1, info.band, 1.0)
            self.cached = path, self.h5py.Dataset(self.h5py.h5d.open(self.file.id, path.encode(), access_properties))
        return self.cached[1]

    def close(self) -> None:
        """Free the cache."""
        self.cached = "", None


def _chunk_bytes(info: ArrayInfo) -> int:
    num_bytes = info.dtype.itemsize
    for length in info.chunks or ():
        num_bytes *= length
    return num_bytes
