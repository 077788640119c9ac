"""Sources that are files of episodes: their shards, and the reader that all such kinds share.

A kind says which paths are its files, which episodes a file has where that can be told without reading it, and how an
open file gives its episodes as plain values.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from convert.errors import DamagedEpisode, SourceError
from convert.source.describe import describe_features
from convert.source.features import Feature
from convert.source.files.plain import PlainEpisode, infer_features, read_plain
from convert.source.protocol import Source, SourceEpisode, SourceShard, Span, Wanted, covers
from stream.storage.remote import is_remote

FILE = "file"
"""Episode feature with the name of the file that an episode is from."""
_RUN = 20_000
"""Frames of a shard of several files."""
_HASHED = 64 << 20
"""Bytes of a file, or of samples of a larger one, that its digest covers."""
_LONGEST = 200
"""Most letters of the name of a shard."""
_SPLITS = ("train", "val", "valid", "validation", "test")
"""Names of folders that are splits."""


class FileEpisode(NamedTuple):
    """An episode of a file: its number there, and its count of steps, None if only reading tells."""

    number: int
    length: int | None


Found = tuple[int, PlainEpisode | DamagedEpisode]
"""Number of an episode in its file, and the episode or why it cannot be read."""


class FileKind(ABC):
    """How to read the files of a dataset; goes to the workers, so it can be pickled."""

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


@dataclass(frozen=True, kw_only=True)
class FilesShard(SourceShard):
    """Consecutive files of a split; ``root`` is the folder of their names."""

    root: str
    files: tuple[SourceFile, ...] = field(repr=False)
    kind: FileKind = field(repr=False)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Count of the steps of each episode, empty where only reading tells."""
        episodes = [episode for file in self.files for episode in file.episodes or ()]
        found = tuple(episode.length for episode in episodes if episode.length is not None)
        return found if len(found) == len(episodes) else ()

    @contextlib.contextmanager
    def open(self, wanted: Wanted, spans: Sequence[Span]) -> Iterator[FilesReader]:
        """Open the shard; its files are opened one after the other."""
        yield FilesReader(self, wanted, spans)


@dataclass(frozen=True)
class FilesReader:
    """A reader of some episodes, see ``convert.source.protocol.EpisodeReader``."""

    shard: FilesShard
    wanted: Wanted
    spans: Sequence[Span]

    @property
    def digests(self) -> dict[str, str]:
        """Digest of each file in hex by name."""
        paths = {file.name: Path(self.shard.root, file.name) for file in self.shard.files}
        return {name: digest_path(path) if path.exists() else "missing" for name, path in paths.items()}

    def __iter__(self) -> Iterator[SourceEpisode]:
        first = 0
        for file in self.shard.files:
            numbers, places = None, {}
            if file.episodes is not None:
                chosen = [each for each in range(len(file.episodes)) if covers(self.spans, first + each)]
                places = {file.episodes[each].number: first + each for each in chosen}
                numbers, first = list(places), first + len(file.episodes)
                if not numbers:
                    continue
            yield from self._read(file, numbers, places)

    def _read(self, file: SourceFile, numbers: list[int] | None, places: Mapping[int, int]) -> Iterator[SourceEpisode]:
        """Yield the wanted episodes of a file; of several files, numbered in the shard."""
        left = None if numbers is None else list(numbers)
        alone, done, stop = len(self.shard.files) == 1, 0, max(stop for _, stop in self.spans)
        size = file.bytes // max(len(file.episodes or ()), 1) if file.episodes else 0
        try:
            with self.shard.kind.open(Path(self.shard.root, file.name)) as reader:
                for number, found in reader.episodes(numbers):
                    done = number + 1
                    if left is None and number >= stop:
                        break
                    if left is not None:
                        left.remove(number)
                    yield SourceEpisode(number if alone else places[number], size, self._content(file, found))
            if left:
                raise DamagedEpisode(f"ends before episode {left[0]}", reason="unreadable")
        except DamagedEpisode as error:
            damage = DamagedEpisode(f"{file.name}: {error}", reason=error.reason)
            for number in [done] if left is None else left:
                yield SourceEpisode(number if alone else places[number], 0, damage)

    def _content(self, file: SourceFile, found: PlainEpisode | DamagedEpisode) -> Any:
        try:
            if isinstance(found, DamagedEpisode):
                raise found
            return read_plain(found._replace(episode={**found.episode, FILE: file.name}), self.wanted)
        except DamagedEpisode as error:
            return DamagedEpisode(f"{file.name}: {error}", reason=error.reason)


@dataclass(frozen=True, kw_only=True)
class FilesSource(Source):
    """A dataset of files."""

    kind: FileKind = field(repr=False)
    units: Mapping[str, Sequence[Sequence[SourceFile]]] = field(repr=False)

    def shards(self, split: str) -> tuple[FilesShard, ...]:
        """Return the shards of a split: one a file, or runs of small files."""
        units = self.units[split]
        return tuple(
            FilesShard(
                split=split,
                index=index,
                count=len(units),
                path=str(Path(self.path, unit[0].name)),
                name=_unit_name(unit),
                records=_count(unit),
                bytes=sum(file.bytes for file in unit),
                root=self.path,
                files=tuple(unit),
                kind=self.kind,
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
        file, size = str(path.relative_to(root)), _size(path)
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
    features = _first_features(root, surveys, kind, faults)
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
        ),
        libraries=libraries,
        kind=kind,
        units=units,
    )


def find_paths(place: str, patterns: Sequence[str], *, stores: Sequence[str] = ()) -> tuple[str, list[Path]]:
    """Return the folder and the files that a place names: a file, a folder, or a glob.

    Args:
        place: Absolute path.
        patterns: Names of files to take of a folder and all below it.
        stores: Names of files that make a folder one file, such as ``.zgroup``.

    Raises:
        SourceError: Nothing is there.
    """
    if is_remote(place):
        raise SourceError(f"{place}: only local files can be read as this kind; copy them to this machine")
    path = Path(place)
    if any(letter in place for letter in "*?["):
        fixed = Path(*path.parts[: next(i for i, part in enumerate(path.parts) if set(part) & set("*?["))])
        matches = sorted(fixed.glob(str(path.relative_to(fixed))))
        found = [each for each in matches if each.is_file() or any((each / store).exists() for store in stores)]
        root = fixed
    elif path.is_file() or any((path / store).exists() for store in stores):
        return str(path.parent), [path]
    else:
        root, found = path, list(_walk(path, patterns, stores))
    if not found:
        there = f"no file {' or '.join(patterns)} in this folder" if path.is_dir() else "no such file or folder"
        raise SourceError(f"{place}: {there}")
    return str(root), found


def _walk(folder: Path, patterns: Sequence[str], stores: Sequence[str]) -> Iterator[Path]:
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in list(folders):
            if any((Path(top, name) / store).exists() for store in stores):
                folders.remove(name)
                yield Path(top, name)
        for name in sorted(names):
            if not name.startswith(".") and any(Path(name).match(pattern) for pattern in patterns):
                yield Path(top, name)


def _first_features(
    root: str, surveys: Mapping[str, Sequence[SourceFile]], kind: FileKind, faults: list[str]
) -> dict[str, Feature]:
    """Return the features of the first episode that can be read."""
    for file in (file for files in surveys.values() for file in files):
        try:
            with kind.open(Path(root, file.name)) as reader:
                for _, found in reader.episodes(
                    None if file.episodes is None else [each.number for each in file.episodes]
                ):
                    if isinstance(found, DamagedEpisode):
                        faults.append(f"{file.name}: {found}")
                        continue
                    return infer_features(found._replace(episode={**found.episode, FILE: file.name}))
        except DamagedEpisode as error:
            faults.append(f"{file.name}: {error}")
    reason = faults[0] if faults else "no file has an episode"
    raise SourceError(f"{root}: no episode can be read, so its features are not known; {reason}")


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
    first, last = (name.name.replace("/", "__") for name in (unit[0], unit[-1]))
    name = first if len(unit) == 1 else f"{first}--{last}"
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 18]}--{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    return path.stat().st_size


def digest_path(path: Path) -> str:
    """Return a SHA-256 in hex of a file or of all files of a folder: of large ones of their size and samples."""
    found = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    stamps = [_stamp(each) for each in found]
    # Of a large folder, the content of evenly spaced files, and the size of all.
    every = max(1, sum(size for size, _ in stamps) // _HASHED)
    parts = [
        f"{each.relative_to(path)} {_digest(each, *stamp) if number % every == 0 else stamp[0]}"
        for number, (each, stamp) in enumerate(zip(found, stamps, strict=True))
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=1024)
def _digest(path: Path, size: int, _changed: int) -> str:
    """Return the SHA-256 of a file, of a large one of evenly spaced samples; each process reads a file once."""
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        if size <= _HASHED:
            digest.update(file.read())
        else:
            step = 1 << 20
            for start in range(0, size, max(size // (_HASHED // step), step)):
                file.seek(start)
                digest.update(file.read(step))
            file.seek(size - step)
            digest.update(file.read(step))
    return digest.hexdigest()
