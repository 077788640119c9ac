"""Sources that are files of episodes: their shards, and the reader that all such kinds share.

A kind determines the files, the episodes of a file where that needs no reading, and how an open file yields its
episodes as plain values.
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
_MIN_UNIT_FRAMES = 20_000
"""Frames of a shard of several files."""
_SPLITS = ("train", "val", "valid", "validation", "test")
"""Names of folders that are splits."""
_Item = TypeVar("_Item")


class FileEpisode(NamedTuple):
    """An episode of a file: its number in the file, and its count of steps, None if unknown before reading."""

    number: int
    length: int | None


NumberedEpisode = tuple[int, PlainEpisode | DamagedEpisode]
"""Number of an episode in its file, and the episode or the reason why it cannot be read."""


class FileKind(ABC):
    """How to read the files of a dataset; goes to the workers, so it can be pickled."""

    sampled_episodes = 1
    """Count of episodes, from all over the dataset, whose features become those of the dataset."""

    @abstractmethod
    def survey(self, path: Path) -> Mapping[str, Sequence[FileEpisode]] | None:
        """Return the episodes of a file by split, ``""`` for the split of its folder; None if unknown before reading.

        A file that cannot be read raises DamagedEpisode.
        """

    @abstractmethod
    def open(self, path: Path) -> AbstractContextManager[FileReader]:
        """Open a file. Raises DamagedEpisode if it cannot be read."""

    @property
    @abstractmethod
    def recipe(self) -> Any:
        """All that the content of episodes depends on in addition to the files, for JSON."""


class FileReader(ABC):
    """An open file."""

    @abstractmethod
    def episodes(self, numbers: Sequence[int] | None) -> Iterator[NumberedEpisode]:
        """Yield the episodes of these numbers, all for None; in order.

        Values may be read lazily, until the next episode. A file that cannot be read further raises DamagedEpisode.
        """


class SourceFile(NamedTuple):
    """A file of a shard: its path in the source, its episodes (None if unknown before reading), its size in bytes."""

    name: str
    episodes: tuple[FileEpisode, ...] | None
    bytes: int

    @property
    def title(self) -> str:
        """Its name as text: bytes that are not UTF-8 are escaped."""
        return self.name.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, kw_only=True)
class FilesShard(SourceShard):
    """Consecutive files of a split below ``root``, and the paths of all features of the dataset."""

    root: str
    files: tuple[SourceFile, ...] = field(repr=False)
    kind: FileKind = field(repr=False)
    feature_paths: frozenset[str] = field(repr=False)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Count of the steps of each episode, empty if unknown before reading."""
        episodes = [episode for file in self.files for episode in file.episodes or ()]
        known_lengths = tuple(episode.length for episode in episodes if episode.length is not None)
        return known_lengths if len(known_lengths) == len(episodes) else ()

    @contextlib.contextmanager
    def open(self, request: ReadRequest, spans: Sequence[Span]) -> Iterator[FilesReader]:
        """Open the shard; its files are opened one after the other."""
        yield FilesReader(self, request, spans)


@dataclass(frozen=True)
class FilesReader:
    """A reader of some episodes, see ``convert.source.protocol.EpisodeReader``."""

    shard: FilesShard
    request: ReadRequest
    spans: Sequence[Span]

    @property
    def digests(self) -> dict[str, str]:
        """Digest of each file in hex by name."""
        paths = {file.title: Path(self.shard.root, file.name) for file in self.shard.files}
        return {name: digest_path(path) if path.exists() else "missing" for name, path in paths.items()}

    def __iter__(self) -> Iterator[SourceEpisode]:
        first_position = 0
        for file in self.shard.files:
            requested_numbers = None
            if file.episodes is not None:
                numbered = enumerate(file.episodes, first_position)
                requested_numbers = [episode.number for position, episode in numbered if covers(self.spans, position)]
                first_position += len(file.episodes)
            if requested_numbers != []:
                yield from self._read(file, requested_numbers)

    def _read(self, file: SourceFile, requested_numbers: list[int] | None) -> Iterator[SourceEpisode]:
        """Yield the requested episodes of a file, all for None."""
        remaining_numbers = None if requested_numbers is None else list(requested_numbers)
        next_number, end_position = 0, max(stop for _, stop in self.spans)
        episode_bytes = file.bytes // len(file.episodes) if file.episodes else 0
        try:
            with self.shard.kind.open(Path(self.shard.root, file.name)) as reader:
                for episode_number, file_episode in reader.episodes(requested_numbers):
                    next_number = episode_number + 1
                    if remaining_numbers is None and episode_number >= end_position:
                        break
                    if remaining_numbers is not None:
                        remaining_numbers.remove(episode_number)
                    yield SourceEpisode(file.title, episode_number, episode_bytes, self._content(file, file_episode))
            if remaining_numbers:
                raise DamagedEpisode(f"ends before episode {remaining_numbers[0]}", reason="unreadable")
        except DamagedEpisode as error:
            damage = DamagedEpisode(f"{file.title}: {error}", reason=error.reason)
            for episode_number in [next_number] if remaining_numbers is None else remaining_numbers:
                yield SourceEpisode(file.title, episode_number, 0, damage)

    def _content(self, file: SourceFile, file_episode: PlainEpisode | DamagedEpisode) -> Any:
        try:
            return read_plain(_named(file_episode, file), self.request, known_paths=self.shard.feature_paths)
        except DamagedEpisode as error:
            return DamagedEpisode(f"{file.title}: {error}", reason=error.reason)


@dataclass(frozen=True, kw_only=True)
class FilesSource(Source):
    """A dataset of files."""

    kind: FileKind = field(repr=False)
    feature_paths: frozenset[str] = field(repr=False)
    units: Mapping[str, Sequence[Sequence[SourceFile]]] = field(repr=False)

    def shards(self, split: str) -> tuple[FilesShard, ...]:
        """Return the shards of a split: one for each file, or for each run of small files."""
        units = self.units[split]
        return tuple(
            FilesShard(
                split=split,
                index=number,
                count=len(units),
                path=f"{self.path}/{_unit_name(unit)}",
                name=_unit_name(unit),
                records=_count(unit),
                bytes=sum(file.bytes for file in unit),
                root=self.path,
                files=tuple(unit),
                kind=self.kind,
                feature_paths=self.feature_paths,
            )
            for number, unit in enumerate(units)
        )


def open_files(
    root: str,
    file_paths: Sequence[Path],
    kind: FileKind,
    *,
    dataset_name: str,
    entry_facts: Mapping[str, Any],
    libraries: tuple[str, ...] = (),
) -> FilesSource:
    """Return the source of files below the folder ``root``; SourceError if no episode can be read.

    Args:
        dataset_name: Name of the dataset for people.
        entry_facts: Fields of the entry that override those from the features.
    """
    faults: list[str] = []
    surveys = _survey_files(root, file_paths, kind, faults)
    all_files = [file for files in surveys.values() for file in files]
    all_features, remarks = _sample_features(root, all_files, kind, faults)
    features = {path: feature for path, feature in all_features.items() if feature.size != 0}
    num_cameras = sum(feature.kind == "image" for feature in features.values())
    units = {split: list(_cut(files, max(num_cameras, 1))) for split, files in surveys.items()}
    lengths = [episode.length or 0 for file in all_files for episode in file.episodes or ()]
    splits = {split: tuple(map(_count, split_units)) for split, split_units in units.items()}
    entry = describe_features(features, dataset_name=dataset_name, splits=splits, lengths=lengths) | dict(entry_facts)
    names = sorted({file.name for file in all_files})
    identity = json.dumps([kind.recipe, names, list(map(repr, features.values()))], sort_keys=True)
    listed_names = f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
    if faults:
        remarks.insert(0, f"cannot be read: {'; '.join(faults[:3])}{' ...' if len(faults) > 3 else ''}")
    return FilesSource(
        path=root,
        fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
        metadata=("files",),
        features=features,
        splits=splits,
        entry=entry,
        remarks=(f"files: {len(names):,}, {listed_names}", *remarks),
        libraries=libraries,
        kind=kind,
        feature_paths=frozenset(all_features),
        units=units,
    )


def _survey_files(root: str, paths: Sequence[Path], kind: FileKind, faults: list[str]) -> dict[str, list[SourceFile]]:
    """Return the files with episodes by split, and add a fault for each file that cannot be read."""
    surveys: dict[str, list[SourceFile]] = {}
    for file_path in sorted(paths):
        name, num_bytes = str(file_path.relative_to(root)), path_size(file_path) if file_path.exists() else 0
        folder, slash, _ = name.partition("/")
        folder_split = folder if slash and folder in _SPLITS else "train"
        try:
            episodes_by_split = kind.survey(file_path)
        except DamagedEpisode as error:
            # One episode that cannot be read, so that the damage is reported.
            faults.append(f"{name}: {error}")
            episodes_by_split = {"": (FileEpisode(0, 0),)}
        if episodes_by_split is None:
            surveys.setdefault(folder_split, []).append(SourceFile(name, None, num_bytes))
            continue
        for split, episodes in episodes_by_split.items():
            if episodes:
                surveys.setdefault(split or folder_split, []).append(SourceFile(name, tuple(episodes), num_bytes))
    return surveys


def _sample_features(
    folder: str, files: Sequence[SourceFile], kind: FileKind, faults: list[str]
) -> tuple[dict[str, Feature], list[str]]:
    """Return the features of episodes from all over the dataset, at least of one with steps, and remarks on them."""
    sampled_files = spread(files, kind.sampled_episodes)
    max_episodes = max(1, kind.sampled_episodes // max(1, len(files)))
    samples: list[dict[str, Feature]] = []
    for file in [*sampled_files, *(file for file in files if file not in sampled_files)]:
        if samples and file not in sampled_files:
            break
        attempts: list[list[int] | None] = [None]
        if file.episodes is not None:
            numbers = [episode.number for episode in file.episodes if episode.length != 0]
            attempts = [spread(numbers, max_episodes), numbers]
        for episode_numbers in attempts:
            samples += islice(_features_of(folder, file, kind, episode_numbers, faults), max_episodes)
            if samples:
                break
    if not samples:
        reason = faults[0] if faults else "no file has an episode with steps"
        raise SourceError(f"{folder}: no episode can be read, so its features are not known; {reason}")
    faults[:] = dict.fromkeys(faults)
    return merge_features(samples)


def _features_of(
    folder: str, file: SourceFile, kind: FileKind, episode_numbers: Sequence[int] | None, faults: list[str]
) -> Iterator[dict[str, Feature]]:
    """Yield the features of each readable episode of a file that has steps, and add the faults of other episodes."""
    try:
        with kind.open(Path(folder, file.name)) as reader:
            for _, file_episode in reader.episodes(episode_numbers):
                try:
                    if features := infer_features(_named(file_episode, file)):
                        yield features
                except DamagedEpisode as error:
                    faults.append(f"{file.title}: {error}")
    except DamagedEpisode as error:
        faults.append(f"{file.title}: {error}")


def _named(file_episode: PlainEpisode | DamagedEpisode, file: SourceFile) -> PlainEpisode:
    """Return an episode with the name of its file; raises DamagedEpisode if it cannot be read."""
    if isinstance(file_episode, DamagedEpisode):
        raise file_episode
    return file_episode._replace(episode={**file_episode.episode, FILE: file.title})


def spread(items: Sequence[_Item], max_items: int) -> list[_Item]:
    """Return at most ``max_items`` items, evenly spread, the first among them.

    >>> spread(range(10), 4)
    [0, 2, 5, 7]
    """
    num_items = min(len(items), max_items)
    return [items[item_number * len(items) // num_items] for item_number in range(num_items)]


def _cut(files: Sequence[SourceFile], num_cameras: int) -> Iterator[list[SourceFile]]:
    """Yield runs of consecutive files of at least ``_MIN_UNIT_FRAMES`` frames; single files if frames are unknown."""
    for is_counted, file_group in groupby(files, key=lambda file: file.episodes is not None):
        unit: list[SourceFile] = []
        num_frames = 0
        for file in file_group:
            unit.append(file)
            lengths = [episode.length for episode in file.episodes or ()]
            num_frames += sum(_MIN_UNIT_FRAMES if length is None else length for length in lengths) * num_cameras
            if not is_counted or num_frames >= _MIN_UNIT_FRAMES:
                yield unit
                unit, num_frames = [], 0
        if unit:
            yield unit


def _count(unit: Sequence[SourceFile]) -> int | None:
    counts = [len(file.episodes) for file in unit if file.episodes is not None]
    return sum(counts) if len(counts) == len(unit) else None


def _unit_name(unit: Sequence[SourceFile]) -> str:
    return unit[0].title + (f" and {len(unit) - 1:,} more" if len(unit) > 1 else "")
