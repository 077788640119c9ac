"""The root that is being browsed: its datasets, open splits and marks, for all pages of a session."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from pairstream.browse.episodes import EpisodeTable
from pairstream.browse.facts import DatasetFacts
from pairstream.browse.marks import Marks
from pairstream.view.tracks import Tracks, open_tracks
from stream.base.errors import ArgumentError, FormatError, closest
from stream.cache.in_place import open_catalog
from stream.format.catalog import Catalog, Dataset
from stream.format.index import SplitIndex, open_index
from stream.format.names import MANIFEST_NAME
from stream.storage.remote import CachedRoot

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that only this machine reaches."""
_KEPT_EPISODES = 64


@dataclass(eq=False)
class BrowsedRoot:
    """A root and what was opened of it; several threads may use it.

    Attributes:
        catalog: Datasets below the root.
        marks: Marked episodes.
        names: Datasets that can be used.
        damaged: Datasets whose manifest cannot be used, and why.
        takes_paths: Whether a page may open a file that its address names; False if other machines reach the pages.
        transforms: Transforms of runs, ``MODULE:NAME``, or None.
    """

    catalog: Catalog
    marks: Marks
    names: tuple[str, ...]
    damaged: dict[str, str] = field(default_factory=dict)
    takes_paths: bool = True
    transforms: str | None = None
    _indexes: dict[tuple[str, str], SplitIndex] = field(default_factory=dict)
    _episodes: dict[tuple[str, str, int], Tracks] = field(default_factory=dict)
    _tables: dict[tuple[str, str], EpisodeTable] = field(default_factory=dict)
    _stamps: dict[str, tuple[int, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def open(
        cls,
        root: str | Path | CachedRoot,
        *,
        marks: str | Path = "marks.json",
        takes_paths: bool = True,
        transforms: str | None = None,
    ) -> BrowsedRoot:
        """Open a root and read all manifests; raise ArgumentError without a usable conversion or file of marks."""
        catalog = open_catalog(root)
        catalog.check_converted()
        complete, damaged = catalog.complete, {}
        for dataset_name in complete:
            try:
                _ = catalog.open(dataset_name).fields
            except (FormatError, OSError) as error:
                damaged[dataset_name] = str(error)
        if len(damaged) == len(complete):
            raise ArgumentError(next(iter(damaged.values())))
        names = tuple(name for name in complete if name not in damaged)
        browsed = cls(catalog, Marks(marks, complete), names, damaged, takes_paths=takes_paths, transforms=transforms)
        browsed._stamps.update({name: _stamp(catalog.open(name)) for name in names})
        return browsed

    def facts(self) -> list[DatasetFacts]:
        """Return the facts about all datasets that can be used."""
        return [DatasetFacts.of(self.dataset(name)) for name in self.names]

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
                caches: tuple[dict[Any, Any], ...] = (self._indexes, self._episodes, self._tables)
                for cache in caches:
                    for cache_key in [cache_key for cache_key in cache if cache_key[0] == name]:
                        del cache[cache_key]
                self._stamps[name] = stamp
        return self.catalog.open(name)

    def index(self, name: str, split: str) -> SplitIndex:
        """Return the mapped index of a split; raise ArgumentError if it does not exist, FormatError for damage."""
        dataset = self.dataset(name)
        if split not in dataset.shards:
            raise ArgumentError(f"dataset {name}: no split {split!r:.80}; splits there: {', '.join(dataset.shards)}")
        with self._lock:
            if (name, split) not in self._indexes:
                self._indexes[name, split] = open_index(dataset, split)
            return self._indexes[name, split]

    def table(self, name: str, split: str) -> EpisodeTable:
        """Return the episodes of a split as a table; raise as ``index`` does."""
        dataset, index = self.dataset(name), self.index(name, split)
        with self._lock:
            return self._tables.setdefault((name, split), EpisodeTable(dataset, index))

    def episode(self, name: str, split: str, episode_number: int) -> Tracks:
        """Return an episode, from which its frames are read; raise as ``index`` does."""
        dataset, episode_key = self.dataset(name), (name, split, episode_number)
        tracks = self._episodes.get(episode_key)
        if tracks is None:
            tracks = open_tracks(dataset, self.index(name, split), episode_number)
            with self._lock:
                while len(self._episodes) >= _KEPT_EPISODES:
                    self._episodes.pop(next(iter(self._episodes)))
                self._episodes[episode_key] = tracks
        return tracks

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
    parameters = {dataset: value for dataset, value in (("step", step), ("window", window)) if value}
    return f"/episode/{quote(dataset)}/{quote(split)}/{episode}" + (f"?{urlencode(parameters)}" if parameters else "")
