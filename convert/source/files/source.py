"""Sources that are files of episodes: their shards, and the reader that all such kinds share.

A kind says which paths are its files, which episodes a file has where that can be told without reading it, and how an
open file gives its episodes as plain values.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from convert.errors import DamagedEpisode, SourceError
from convert.source.describe import describe_features
from convert.source.digest import digest_path, path_size
from convert.source.features import Feature, merge_features
from convert.source.files.plain import PlainEpisode, infer_features, read_plain
from convert.source.protocol import ReadRequest, Source, SourceEpisode, SourceShard, Span, covers

FILE = "file"
"""Episode feature with the name of the file that an episode is from."""
_RUN = 20_000
"""Frames of a shard of several files."""
_SPLITS = ("train", "val", "valid", "validation", "test")
"""Names of folders that are splits."""
_Item = TypeVar("_Item")


class FileEpisode(NamedTuple):
    """An episode of a file: its number there, and its count of steps, None if only reading tells."""

    number: int
    length: int | None


Found = tuple[int, PlainEpisode | DamagedEpisode]
"""Number of an episode in its file, and the episode or why it cannot be read."""


class FileKind(ABC):
    """How to read the files of a dataset; goes to the workers, so it can be pickled.

    Attributes:
        looks: Count of episodes, from all over the dataset, whose features are the features of the dataset.
    """

    looks = 1

    @abstractmethod
    def survey(self, path: Path) -> Mapping[str, Sequence[FileEpisode]] | None:
        """Return the episodes of a file by split, ``""`` for the split of its folder; None if only reading tells.

        Raises:
            DamagedEpisode: The file cannot be read.
        """

    @abstractmethod
    def open(self, path: Path) -> AbstractContextManager[FileReader]:
        """Open a file. Raises DamagedEpisode if it cannot be read."""

    @property
    @abstractmethod
    def recipe(self) -> Any:
        """All that the content of episodes depends on beside the files, for JSON."""


class FileReader(ABC):
    """An open file."""

    @abstractmethod
    def episodes(self, numbers: Sequence[int] | None) -> Iterator[Found]:
        """Yield the episodes of these numbers, all for None; in order.

        Values may be read while they are taken, before the next episode. A file that cannot be read further raises
        DamagedEpisode.
        """


class SourceFile(NamedTuple):
    """A file of a shard.

    Attributes:
        name: Its path in the folder of the source.
        episodes: Its episodes of the split, None if only reading tells.
        bytes: Its size.
    """

    name: str
    episodes: tuple[FileEpisode, ...] | None
    bytes: int

    @property
    def title(self) -> str:
        """Its name as text: bytes that are not UTF-8 are escaped."""
        return self.name.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, kw_only=True)
class FilesShard(SourceShard):
    """Consecutive files of a split; ``root`` is the folder of their names, ``known`` the paths of all features."""

    root: str
    files: tuple[SourceFile, ...] = field(repr=False)
    kind: FileKind = field(repr=False)
    known: frozenset[str] = field(repr=False)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Count of the steps of each episode, empty where only reading tells."""
        episodes = [episode for file in self.files for episode in file.episodes or ()]
        found = tuple(episode.length for episode in episodes if episode.length is not None)
        return found if len(found) == len(episodes) else ()

    @contextlib.contextmanager
    def open(self, wanted: ReadRequest, spans: Sequence[Span]) -> Iterator[FilesReader]:
        """Open the shard; its files are opened one after the other."""
        yield FilesReader(self, wanted, spans)


@dataclass(frozen=True)
class FilesReader:
    """A reader of some episodes, see ``convert.source.protocol.EpisodeReader``."""

    shard: FilesShard
    wanted: ReadRequest
    spans: Sequence[Span]

    @property
    def digests(self) -> dict[str, str]:
        """Digest of each file in hex by name."""
        paths = {file.title: Path(self.shard.root, file.name) for file in self.shard.files}
        return {name: digest_path(path) if path.exists() else "missing" for name, path in paths.items()}

    def __iter__(self) -> Iterator[SourceEpisode]:
        first = 0
        for file in self.shard.files:
            numbers = None
            if file.episodes is not None:
                numbered = enumerate(file.episodes, first)
                numbers = [episode.number for place, episode in numbered if covers(self.spans, place)]
                first += len(file.episodes)
            if numbers != []:
                yield from self._read(file, numbers)

    def _read(self, file: SourceFile, numbers: list[int] | None) -> Iterator[SourceEpisode]:
        """Yield the wanted episodes of a file, all for None."""
        left = None if numbers is None else list(numbers)
        done, stop = 0, max(stop for _, stop in self.spans)
        size = file.bytes // len(file.episodes) if file.episodes else 0
        try:
            with self.shard.kind.open(Path(self.shard.root, file.name)) as reader:
                for number, found in reader.episodes(numbers):
                    done = number + 1
                    if left is None and number >= stop:
                        break
                    if left is not None:
                        left.remove(number)
                    yield SourceEpisode(file.title, number, size, self._content(file, found))
            if left:
                raise DamagedEpisode(f"ends before episode {left[0]}", reason="unreadable")
        except DamagedEpisode as error:
            damage = DamagedEpisode(f"{file.title}: {error}", reason=error.reason)
            for number in [done] if left is None else left:
                yield SourceEpisode(file.title, number, 0, damage)

    def _content(self, file: SourceFile, found: PlainEpisode | DamagedEpisode) -> Any:
        try:
            return read_plain(_named(found, file), self.wanted, known=self.shard.known)
        except DamagedEpisode as error:
            return DamagedEpisode(f"{file.title}: {error}", reason=error.reason)


@dataclass(frozen=True, kw_only=True)
class FilesSource(Source):
    """A dataset of files."""

    kind: FileKind = field(repr=False)
    known: frozenset[str] = field(repr=False)
    units: Mapping[str, Sequence[Sequence[SourceFile]]] = field(repr=False)

    def shards(self, split: str) -> tuple[FilesShard, ...]:
        """Return the shards of a split: one a file, or runs of small files."""
        units = self.units[split]
        return tuple(
            FilesShard(
                split=split,
                index=index,
                count=len(units),
                path=f"{self.path}/{_unit_name(unit)}",
                name=_unit_name(unit),
                records=_count(unit),
                bytes=sum(file.bytes for file in unit),
                root=self.path,
                files=tuple(unit),
                kind=self.kind,
                known=self.known,
            )
            for index, unit in enumerate(units)
        )


def open_files(
    root: str,
    paths: Sequence[Path],
    kind: FileKind,
    *,
    name: str,
    facts: Mapping[str, Any],
    libraries: tuple[str, ...] = (),
) -> FilesSource:
    """Return the source of some files below a folder.

    Args:
        root: The folder.
        paths: Its files.
        name: Name of the dataset for people.
        facts: Fields of the entry that go before those that the features tell.

    Raises:
        SourceError: No file, or none with an episode that can be read.
    """
    surveys: dict[str, list[SourceFile]] = {}
    faults: list[str] = []
    for path in sorted(paths):
        file, size = str(path.relative_to(root)), path_size(path) if path.exists() else 0
        folder = file.split("/", 1)[0] if "/" in file else ""
        split = folder if folder in _SPLITS else "train"
        try:
            found = kind.survey(path)
        except DamagedEpisode as error:
            # One episode that cannot be read, so that the damage is listed.
            faults.append(f"{file}: {error}")
            found = {"": (FileEpisode(0, 0),)}
        if found is None:
            surveys.setdefault(split, []).append(SourceFile(file, None, size))
            continue
        for key, episodes in found.items():
            if episodes:
                surveys.setdefault(key or split, []).append(SourceFile(file, tuple(episodes), size))
    known, remarks = _look(root, surveys, kind, faults)
    features = {path: feature for path, feature in known.items() if feature.size != 0}
    cameras = sum(feature.kind == "image" for feature in features.values())
    units = {split: list(_cut(files, max(cameras, 1))) for split, files in surveys.items()}
    lengths = [each.length or 0 for files in surveys.values() for file in files for each in file.episodes or ()]
    splits = {split: tuple(map(_count, found)) for split, found in units.items()}
    entry = describe_features(features, name=name, splits=splits, lengths=lengths) | dict(facts)
    names = sorted({file.name for files in surveys.values() for file in files})
    content = json.dumps([kind.recipe, names, [repr(each) for each in features.values()]], sort_keys=True)
    return FilesSource(
        path=root,
        fingerprint=hashlib.sha256(content.encode()).hexdigest(),
        metadata=("files",),
        features=features,
        splits=splits,
        entry=entry,
        remarks=(
            f"files: {len(names):,}, {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}",
            *([f"cannot be read: {'; '.join(faults[:3])}{' ...' if len(faults) > 3 else ''}"] if faults else ()),
            *remarks,
        ),
        libraries=libraries,
        kind=kind,
        known=frozenset(known),
        units=units,
    )


def _look(
    root: str, surveys: Mapping[str, Sequence[SourceFile]], kind: FileKind, faults: list[str]
) -> tuple[dict[str, Feature], list[str]]:
    """Return the features of episodes from all over the dataset, at least of one with steps, and remarks on them."""
    files = [file for files in surveys.values() for file in files]
    chosen = spread(files, kind.looks)
    looked: list[dict[str, Feature]] = []
    for file in [*chosen, *(file for file in files if file not in chosen)]:
        if looked and file is not chosen[0] and file not in chosen:
            break
        numbers = None if file.episodes is None else [each.number for each in file.episodes if each.length != 0]
        most = max(1, kind.looks // len(files))
        for some in (numbers,) if numbers is None else (spread(numbers, most), numbers):
            looked += islice(_features_of(root, file, kind, some, faults), most)
            if looked:
                break
    if not looked:
        reason = faults[0] if faults else "no file has an episode with steps"
        raise SourceError(f"{root}: no episode can be read, so its features are not known; {reason}")
    faults[:] = dict.fromkeys(faults)
    return merge_features(looked)


def _features_of(
    root: str, file: SourceFile, kind: FileKind, numbers: Sequence[int] | None, faults: list[str]
) -> Iterator[dict[str, Feature]]:
    """Yield the features of each episode of a file that can be read and has steps; the faults of others are noted."""
    try:
        with kind.open(Path(root, file.name)) as reader:
            for _, found in reader.episodes(numbers):
                try:
                    if features := infer_features(_named(found, file)):
                        yield features
                except DamagedEpisode as error:
                    faults.append(f"{file.title}: {error}")
    except DamagedEpisode as error:
        faults.append(f"{file.title}: {error}")


def _named(found: PlainEpisode | DamagedEpisode, file: SourceFile) -> PlainEpisode:
    """Return an episode with the name of its file; raises DamagedEpisode if it cannot be read."""
    if isinstance(found, DamagedEpisode):
        raise found
    return found._replace(episode={**found.episode, FILE: file.title})


def spread(items: Sequence[_Item], most: int) -> list[_Item]:
    """Return at most so many items, evenly spread, the first among them.

    >>> spread(range(10), 4)
    [0, 2, 5, 7]
    """
    count = min(len(items), most)
    return [items[number * len(items) // count] for number in range(count)]


def _cut(files: Sequence[SourceFile], cameras: int) -> Iterator[list[SourceFile]]:
    """Yield runs of consecutive files of at least ``_RUN`` frames; single files where only reading tells them."""
    for counted, group in groupby(files, key=lambda file: file.episodes is not None):
        unit: list[SourceFile] = []
        frames = 0
        for file in group:
            unit.append(file)
            frames += sum(_RUN if each.length is None else each.length for each in file.episodes or ()) * cameras
            if not counted or frames >= _RUN:
                yield unit
                unit, frames = [], 0
        if unit:
            yield unit


def _count(unit: Sequence[SourceFile]) -> int | None:
    counts = [len(file.episodes) for file in unit if file.episodes is not None]
    return sum(counts) if len(counts) == len(unit) else None


def _unit_name(unit: Sequence[SourceFile]) -> str:
    return unit[0].title + (f" and {len(unit) - 1:,} more" if len(unit) > 1 else "")
