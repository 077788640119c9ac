"""Zarr stores of version 2 and 3, as a folder or a zip."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convert.errors import UsageError
from convert.source.arrays.store import ArrayInfo, Store
from stream.base.extras import missing

_MAX_READ_BYTES = 256 << 20
"""Most bytes of the chunks of one step that are read at once; larger chunks are read several times."""


@contextlib.contextmanager
def open_zarr(path: Path) -> Iterator[Store]:
    """Open a store. Raises OSError or ValueError if it cannot be read, UsageError if zarr is not installed."""
    try:
        import zarr
    except ModuleNotFoundError:
        raise UsageError(missing("zarr", "zarr", by=str(path))) from None
    # JPEG XL and other codecs of pictures, which Zarr finds by their names.
    with contextlib.suppress(ModuleNotFoundError):
        import imagecodecs.numcodecs

        imagecodecs.numcodecs.register_codecs(verbose=False)
    # A worker has one processor.
    zarr.config.set({"threading.max_workers": 1})
    with contextlib.ExitStack() as stack:
        try:
            store: Any = str(path) if path.is_dir() else stack.enter_context(zarr.storage.ZipStore(path, mode="r"))
            root = zarr.open_group(store, mode="r")
        except zipfile.BadZipFile as error:
            raise OSError(str(error)) from None
        except FileNotFoundError as error:
            # The library's class for a store without a group.
            raise OSError(f"holds no group of Zarr: {error}") from None
        yield Store(_Zarr(root))


@dataclass(frozen=True)
class _Zarr:
    """See ``convert.source.arrays.store.Library``."""

    root: Any

    def item(self, path: str) -> Any:
        with _codecs():
            return self.root[path] if path else self.root

    def is_group(self, item: Any) -> bool:
        return not hasattr(item, "dtype")

    def names(self, group: Any) -> list[str]:
        with _codecs():
            return list(group.keys())

    def block_rows(self, info: ArrayInfo) -> int | None:
        return min(info.chunks[0], max(1, _MAX_READ_BYTES // info.row_bytes)) if info.chunks else None

    def array(self, path: str, info: ArrayInfo) -> Any:
        return self.root[path]


@contextlib.contextmanager
def _codecs() -> Iterator[None]:
    """Raise UsageError if a codec of imagecodecs is missing."""
    try:
        yield
    except ValueError as error:
        if "imagecodecs" in str(error):
            raise UsageError(missing("imagecodecs", "zarr", by="a codec of this file")) from None
        raise
