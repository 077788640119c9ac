"""Roots that are read in place: their index is copied once, each record when it is read first."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stream.base.errors import ArgumentError
from stream.cache.copies import RemoteCatalog
from stream.format.catalog import Catalog, Dataset
from stream.format.manifest import read_manifest
from stream.storage.object_reads import object_reads
from stream.storage.remote import CachedRoot, is_remote

_log = logging.getLogger("stream")
_JOBS = 8
"""Files of the index copied at the same time."""


class InPlaceCatalog(RemoteCatalog):
    """Datasets of a remote root; opening a dataset copies its index to the cache, or finds it there.

    Raises:
        ArgumentError: The cache cannot be used.
        RemoteError: The root cannot be read: no such bucket, no credentials, no library.
    """

    def __init__(self, root: CachedRoot) -> None:
        object_reads()  # raises here, not at the first read
        super().__init__(root.url)
        self.root, self.location, self._remote = root.folder, root, root

    def open(self, name: str) -> Dataset:
        """Open a dataset, see ``Catalog``; also raises what copying its index raises."""
        return self.open_all([name])[0]

    def open_all(self, dataset_names: Sequence[str]) -> list[Dataset]:
        """Open several datasets, their manifests and indexes at the same time."""
        open_one = super().open
        with ThreadPoolExecutor(_JOBS) as pool:
            datasets = dict(zip(dataset_names, pool.map(open_one, dataset_names), strict=True))
        new_datasets = {name: dataset for name, dataset in datasets.items() if dataset.remote is None}
        if new_datasets:
            # Not before: a wrong name leaves no folder behind.
            _check_disk(self._remote.cache)
            by_folder = {dataset.folder: dataset for dataset in new_datasets.values()}
            needed = [(dataset, ()) for dataset in by_folder.values()]
            _, files = self.copy(needed, self.root, jobs=_JOBS, whole_index=True)
            for file in files:
                if file.damaged:
                    _log.warning("%s: was damaged, and was fetched again", file.damaged)
        for dataset_name, dataset in new_datasets.items():
            remote, manifest = self._remote / dataset.name / dataset.version, read_manifest(dataset.folder)
            opened = Dataset.of(dataset.name, dataset.version, dataset.folder, manifest, remote=remote)
            datasets[dataset_name] = self._open[dataset_name] = opened
        return [datasets[dataset_name] for dataset_name in dataset_names]


def open_catalog(root: str | Path | CachedRoot) -> Catalog:
    """Return the catalog of a local root, or of a root that is read in place."""
    if not isinstance(root, CachedRoot):
        return Catalog(root)
    if is_remote(root.url):
        return InPlaceCatalog(root)
    catalog = Catalog(root.url)
    catalog.location = root
    return catalog


def _check_disk(folder: Path) -> None:
    """Raise ArgumentError if a folder cannot be written, or its disk has no sparse files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe_file:
            os.truncate(probe_file.fileno(), 1 << 20)
            if os.lseek(probe_file.fileno(), 0, os.SEEK_HOLE):
                raise ArgumentError(f"cache={folder}: this disk has no sparse files; choose a folder on another disk")
    except OSError as error:
        raise ArgumentError(f"cache={folder}: cannot be written: {error.strerror}; choose another folder") from None
