"""The opening of HDF5 files through h5py, and of Zarr stores of version 2 and 3, as a folder or a zip."""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convert.errors import DamagedEpisode, UsageError
from convert.source.arrays.store import PIECE, ArrayInfo, Store, is_hdf5, reading
from stream.base.extras import missing

_SMALL = 8 << 20
"""Bytes of the chunks of one step that are read at once, without a cache."""
_CACHED = 512 << 20
"""Most bytes of the chunks of one step that a cache holds; larger compressed chunks are read several times."""


@contextlib.contextmanager
def open_store(path: Path) -> Iterator[Store]:
    """Open a file.

    Raises:
        DamagedEpisode: It cannot be read.
        UsageError: The library is not installed.
    """
    open_file, extra = (_open_zarr, "zarr") if path.is_dir() or path.suffix == ".zip" else (_open_hdf5, "hdf5")
    with contextlib.ExitStack() as stack:
        try:
            with reading():
                store = open_file(path, stack)
        except ModuleNotFoundError as error:
            raise UsageError(missing(str(error.name), extra, by=str(path))) from None
        yield store


def _open_hdf5(path: Path, stack: contextlib.ExitStack) -> Store:
    import h5py

    if path.exists() and not is_hdf5(path):
        raise DamagedEpisode("is not an HDF5 file", reason="unreadable")
    return _Hdf5Store(h5py, stack.enter_context(h5py.File(path, "r", locking=False)))


def _open_zarr(path: Path, stack: contextlib.ExitStack) -> Store:
    import zarr

    # JPEG XL and other codecs of pictures, which Zarr finds by their names.
    with contextlib.suppress(ModuleNotFoundError):
        import imagecodecs.numcodecs

        imagecodecs.numcodecs.register_codecs(verbose=False)
    # A worker has one processor.
    zarr.config.set({"threading.max_workers": 1})
    try:
        store: Any = str(path) if path.is_dir() else stack.enter_context(zarr.storage.ZipStore(path, mode="r"))
        return Store(zarr.open_group(store, mode="r"))
    except zipfile.BadZipFile as error:
        raise OSError(str(error)) from None
    except FileNotFoundError as error:
        # The library's class for a store without a group.
        raise OSError(f"holds no group of Zarr: {error}") from None


class _Hdf5Store(Store):
    """An open file of HDF5, in which one array at a time has a cache."""

    def __init__(self, h5py: Any, file: Any) -> None:
        super().__init__(file)
        self._h5py = h5py
        self._cached: tuple[str, Any] = "", None

    def block_rows(self, info: ArrayInfo) -> int | None:
        band = _band(info)
        if band <= _SMALL:
            return info.chunks[0] if info.chunks else None
        return None if band <= _CACHED else max(1, PIECE // info.row_bytes)

    def _open_array(self, path: str, info: ArrayInfo) -> Any:
        band = _band(info)
        if not _SMALL < band <= _CACHED:
            return self._root[path]
        if self._cached[0] != path:
            self._cached = "", None  # Frees the cache of the array before.
            access_properties = self._h5py.h5p.create(self._h5py.h5p.DATASET_ACCESS)
            # With 200 slots a chunk, few chunks share a slot.
            num_chunks = max(1, band // max(1, math.prod(info.chunks or ()) * info.dtype.itemsize))
            access_properties.set_chunk_cache(200 * num_chunks + 1, band, 1.0)
            dataset_id = self._h5py.h5d.open(self._root.id, path.encode(), access_properties)
            self._cached = path, self._h5py.Dataset(dataset_id)
        return self._cached[1]


def _band(info: ArrayInfo) -> int:
    """Return the bytes of the chunks that hold one step."""
    return info.row_bytes * info.chunks[0] if info.chunks else 0
