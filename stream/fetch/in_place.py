"""Roots that are read in place: their index is copied once, their records stay where they are until they are read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from stream.fetch.copies import RemoteCatalog
from stream.format.catalog import Catalog, Dataset
from stream.format.manifest import read_manifest
from stream.storage.errors import ArgumentError
from stream.storage.object_reads import object_reads
from stream.storage.remote import CachedRoot

_JOBS = 8
"""Files of the index copied at the same time."""


class InPlaceCatalog(RemoteCatalog):
    """Datasets of a remote root; opening one brings its index to the cache, or finds it there.

    Raises:
        ArgumentError: The cache cannot be used.
        RemoteError: The root cannot be read: no such bucket, no credentials, no library.
    """

    def __init__(self, root: CachedRoot) -> None:
        object_reads()  # raises now
        super().__init__(root.url)
        self.root, self.place, self._remote = root.cache, root, root
        _check_disk(root.cache)

    def _read(self, name: str, version: str) -> Dataset:
        dataset = super()._read(name, version)
        self.copy([(dataset, ())], self.root, jobs=_JOBS, whole_index=True)
        manifest = read_manifest(dataset.folder)
        return Dataset.of(name, version, dataset.folder, manifest, remote=self._remote / name / version)


def open_catalog(root: str | Path | CachedRoot) -> Catalog:
    """Return the catalog of a local root, or of one that is read in place."""
    return InPlaceCatalog(root) if isinstance(root, CachedRoot) else Catalog(root)


def _check_disk(folder: Path) -> None:
    """Raise ArgumentError if a folder cannot be written, or its disk has no sparse files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.truncate(file.fileno(), 1 << 20)
            if os.lseek(file.fileno(), 0, os.SEEK_HOLE):
                raise ArgumentError(f"cache={folder}: this disk has no sparse files; choose a folder on another")
    except OSError as error:
        raise ArgumentError(f"cache={folder}: cannot be written: {error.strerror}; choose another folder") from None
