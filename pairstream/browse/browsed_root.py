"""The root that is being browsed: its datasets, open splits and marks, for all pages of a session."""

from __future__ import annotations

import threading
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, urlencode

from pairstream.browse.episodes import EpisodeTable
from pairstream.browse.facts import Facts, describe_facts
from pairstream.browse.marks import Marks
from pairstream.info.overview import open_root
from pairstream.view.tracks import Tracks, open_tracks
from stream.base.errors import ArgumentError, FormatError, closest
from stream.format.catalog import Dataset
from stream.format.index import SplitIndex, open_index
from stream.format.names import MANIFEST_NAME
from stream.storage.remote import CachedRoot

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that only this machine reaches."""


class BrowsedRoot:
    """A root and what was opened of it; several threads may use it.

    Attributes:
        catalog: Datasets below the root.
        names: Datasets that can be used.
        damaged: Datasets whose manifest cannot be used, and why.
        marks: Marked episodes.
        takes_paths: Whether a page may open a file that its address names; False if other machines reach the pages.
        transforms: Transforms of runs, ``MODULE:NAME``, or None.

    Raises:
        ArgumentError: The root has no conversion that can be used, or the file of marks is something else.
    """

    def __init__(
        self,
        root: str | Path | CachedRoot,
        *,
        marks: str | Path = "marks.json",
        takes_paths: bool = True,
        transforms: str | None = None,
    ) -> None:
        overview = open_root(root)
        self.catalog, self.damaged = overview.catalog, overview.damaged
        self.names = tuple(dataset.name for dataset in overview.datasets)
        if not self.names:
            raise ArgumentError(next(iter(self.damaged.values())))
        self.marks = Marks(marks, [*self.names, *self.damaged])
        self.takes_paths, self.transforms = takes_paths, transforms
        self._stamps = {dataset.name: _stamp(dataset) for dataset in overview.datasets}
        self._lock = threading.Lock()
        self._indexes = lru_cache(None)(self._open_index)
        self._tables = lru_cache(None)(self._open_table)
        self._episodes = lru_cache(64)(self._open_episode)

    def facts(self) -> list[Facts]:
        """Return the facts about all datasets that can be used."""
        return [describe_facts(self.dataset(name)) for name in self.names]

    def dataset(self, name: str) -> Dataset:
        """Return a dataset as it is now; raise ArgumentError for an unknown name, FormatError for damage."""
        if name in self.damaged:
            raise FormatError(self.damaged[name])
        if name not in self.names:
            raise ArgumentError(f"no dataset {name!r:.80}; {closest(name, self.names, noun='datasets')}")
        stamp = _stamp(self.catalog.open(name))
        with self._lock:
            if self._stamps[name] != stamp:
                # Labels or a new index came, so nothing that was opened before is shown.
                self.catalog.forget(name)
                for cache in (self._indexes, self._tables, self._episodes):
                    cache.cache_clear()
                self._stamps[name] = stamp
        return self.catalog.open(name)

    def index(self, name: str, split: str) -> SplitIndex:
        """Return the mapped index of a split; raise ArgumentError if it does not exist, FormatError for damage."""
        dataset = self.dataset(name)
        if split not in dataset.shards:
            raise ArgumentError(f"dataset {name}: no split {split!r:.80}; splits there: {', '.join(dataset.shards)}")
        return self._indexes(name, split)

    def table(self, name: str, split: str) -> EpisodeTable:
        """Return the episodes of a split as a table; raise as ``index`` does."""
        self.dataset(name)
        return self._tables(name, split)

    def episode(self, name: str, split: str, episode_number: int) -> Tracks:
        """Return an episode, from which its frames are read; raise as ``index`` does."""
        self.dataset(name)
        return self._episodes(name, split, episode_number)

    def _open_index(self, name: str, split: str) -> SplitIndex:
        return open_index(self.catalog.open(name), split)

    def _open_table(self, name: str, split: str) -> EpisodeTable:
        return EpisodeTable(self.catalog.open(name), self.index(name, split))

    def _open_episode(self, name: str, split: str, episode_number: int) -> Tracks:
        return open_tracks(self.catalog.open(name), self.index(name, split), episode_number)

    def frame_url(self, name: str, split: str, episode: int, camera: int, step: int) -> str:
        """Return the address of a stored frame; it changes with the data, so a browser may keep what it shows."""
        checksum = self.dataset(name).manifest.checksum[:12]
        return f"/frame/{quote(name)}/{quote(split)}/{episode}/{camera}/{step}.jpg?data={checksum}"


def _stamp(dataset: Dataset) -> tuple[int, int]:
    """Return file number and time of a manifest, which each change of a dataset replaces; zeros if it is gone."""
    try:
        file_status = (dataset.folder / MANIFEST_NAME).stat()
    except OSError:
        return 0, 0
    return file_status.st_ino, file_status.st_mtime_ns


def dataset_url(dataset: str, split: str) -> str:
    """Return the address of a dataset's page."""
    return f"/dataset/{quote(dataset)}/{quote(split)}"


def episode_url(dataset: str, split: str, episode: int, *, step: int = 0, window: int = 0) -> str:
    """Return the address of an episode's page, at a step, with some steps from there on marked.

    >>> episode_url("bridge", "train", 3, step=12)
    '/episode/bridge/train/3?step=12'
    """
    parameters = {name: value for name, value in (("step", step), ("window", window)) if value}
    return f"/episode/{quote(dataset)}/{quote(split)}/{episode}" + (f"?{urlencode(parameters)}" if parameters else "")
