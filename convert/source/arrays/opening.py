"""The opening of a file of arrays, by its kind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from convert.source.arrays.hdf5 import open_hdf5
from convert.source.arrays.store import FAULTS, Store, unreadable
from convert.source.arrays.zarr import open_zarr


@contextlib.contextmanager
def open_store(path: Path) -> Iterator[Store]:
    """Open a file.

    Raises:
        DamagedEpisode: It cannot be read.
        UsageError: The library is not installed.
    """
    open_file = open_zarr if path.is_dir() or path.suffix == ".zip" else open_hdf5
    with contextlib.ExitStack() as stack:
        try:
            store = stack.enter_context(open_file(path))
        except FAULTS as error:
            raise unreadable(error) from None
        yield store
