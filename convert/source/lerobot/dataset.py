"""LeRobot datasets: where they are, their metadata, and their units of work."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from convert.errors import SourceError, UsageError
from convert.source.episode import episode_id
from convert.source.features import Feature
from convert.source.lerobot.entry import describe
from convert.source.lerobot.episodes import (
    EpisodeFiles,
    cut_units,
    episode_files,
    no_episodes,
    read_episodes,
    read_tasks,
    tasks_file,
)
from convert.source.lerobot.files import Folder, LocalFiles, open_files, read_files
from convert.source.lerobot.hub import PLACE, HubFolder, find_dataset
from convert.source.lerobot.info import INFO, Info, parse_info
from convert.source.lerobot.reader import LeRobotReader, file_names
from convert.source.picture_names import describe_parquet
from convert.source.places import candidates, refuse_layout
from convert.source.protocol import ReadRequest, Source, SourceShard, Span, covers
from stream.base.errors import closest
from stream.base.extras import missing
from stream.storage.hub import SCHEME
from stream.storage.remote import LocalFolder


@dataclass(frozen=True, kw_only=True)
class LeRobotShard(SourceShard):
    """Consecutive episodes of a split, see ``cut_units``."""

    episodes: tuple[EpisodeFiles, ...] = field(repr=False)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Count of the steps of each episode."""
        return tuple(episode.length for episode in self.episodes)

    @property
    def ids(self) -> tuple[str, ...]:
        """Id of each episode."""
        return tuple(episode_id(episode.data, episode.number) for episode in self.episodes)

    @property
    def is_fetched(self) -> bool:
        """True if its files come from the Hub."""
        return self.path.startswith(SCHEME)

    @contextlib.contextmanager
    def open(self, wanted: ReadRequest, spans: Sequence[Span]) -> Iterator[LeRobotReader]:
        """Open the shard; files are opened when the first episode in them is read."""
        folder = open_files(self.path)
        info = _read_info(folder)
        tasks = read_tasks(read_files(folder, tasks_file(info)), where=self.path)
        with ExitStack() as stack:
            reader = LeRobotReader(
                episodes=[episode for number, episode in enumerate(self.episodes) if covers(spans, number)],
                wanted=wanted,
                files=LocalFiles(self.path, stack, staging=wanted.staging),
                tasks=tasks,
                info=info,
                bytes_per_step=self.bytes / max(sum(self.lengths), 1),
            )
            stack.callback(reader.close)
            yield reader


@dataclass(frozen=True, kw_only=True)
class LeRobotSource(Source):
    """A LeRobot dataset: a folder with ``meta/info.json``."""

    units: Mapping[str, Sequence[Sequence[EpisodeFiles]]] = field(repr=False)
    sizes: Mapping[str, int] = field(repr=False)

    def shards(self, split: str) -> tuple[LeRobotShard, ...]:
        """Return the units of a split; a file that is missing counts no bytes."""
        units = self.units[split]
        return tuple(
            LeRobotShard(
                split=split,
                index=index,
                count=len(units),
                path=self.path,
                name=f"episodes-{unit[0].number:06d}-{unit[-1].number:06d}",
                records=len(unit),
                bytes=sum(self.sizes.get(name, 0) for name in file_names(unit, _all_cameras(self.features))),
                episodes=tuple(unit),
            )
            for index, unit in enumerate(units)
        )


def _all_cameras(features: Mapping[str, Feature]) -> ReadRequest:
    return ReadRequest(cameras=tuple(feature for feature in features.values() if feature.kind == "image"))


def find(place: str, roots: Sequence[str], layout: Mapping[str, Any]) -> LeRobotSource:
    """Find a dataset below one of several roots, the first that has it wins, or on the Hub where there are no roots.

    Args:
        place: ``ORG/NAME``, on the Hub with ``@REVISION`` behind it, or the path of the dataset itself.
        roots: Folders, local, ``gs://`` or ``s3://``, with ``ORG/NAME`` below.
        layout: Empty, as the files are as LeRobot writes them.

    Raises:
        SourceError: No root has the dataset, its metadata are damaged, or it is of another version of the format.
        UsageError: PyAV is not installed, or the place is none.
        stream.storage.remote.RemoteError: A bucket or the Hub cannot be read.
    """
    refuse_layout("lerobot", layout)
    place = place.rstrip("/")
    if (not roots or place.startswith(SCHEME)) and (match := PLACE.fullmatch(place)):
        dataset = find_dataset(match["name"], match["revision"])
        if dataset.size(INFO) is None:
            raise SourceError(f"{dataset}: has no {INFO}, so it is no LeRobot dataset")
        return _open(dataset, name=match["name"])
    tried = candidates(place, roots)
    for path in tried:
        folder = open_files(path)
        if folder.size(INFO) is not None:
            return _open(folder, name=place)
    if not tried:
        raise UsageError(f"lerobot:{place}: expected ORG/NAME of the Hub, a path, or a folder below --source")
    parent, _, name = tried[0].rstrip("/").rpartition("/")
    parent = parent or ("/" if tried[0].startswith("/") else ".")
    there = open_files(parent).folders()
    hint = f"; {closest(name, there, noun='folders')}" if there else f"; {parent} has no folders"
    raise SourceError(f"lerobot:{place}: no {INFO} in {', '.join(tried)}{hint}")


def _open(folder: Folder, *, name: str) -> LeRobotSource:
    path = str(folder)
    info = _read_info(folder)
    if all(map(info.is_depth, info.cameras)):
        named = describe_parquet(folder.path) if isinstance(folder, LocalFolder) else ""
        raise SourceError(f"{path}: has no colour camera, so no frame to convert{named}")
    if info.videos and importlib.util.find_spec("av") is None:
        raise UsageError(missing("av", "lerobot", by=f"lerobot:{name}"))
    files = read_files(folder, (*episode_files(folder, info), *tasks_file(info)))
    if not (episodes := read_episodes(files, info, where=path)):
        raise SourceError(no_episodes(folder))
    tasks = read_tasks(files, where=path)
    features, others = info.split_features()
    total = max(info.total_episodes, episodes[-1].number + 1)
    ranges = info.split_ranges(total)
    units = {
        split: tuple(cut_units([each for each in episodes if start <= each.number < stop], info))
        for split, (start, stop) in (ranges or {"train": (0, total)}).items()
    }
    lengths = {split: [each.length for unit in found for each in unit] for split, found in units.items()}
    names = file_names(episodes, _all_cameras(features))
    sizes: dict[str, int] = {}
    for parent in sorted({name.rpartition("/")[0] for name in names}):
        sizes |= {f"{parent}/{name}": size for name, size in (folder / parent).sizes().items()}
    absent = [name for name in names if name not in sizes]
    contents = (folder.read(INFO), *files.values())
    digest = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents))
    codecs = sorted({str(info.features[camera].about.get("video.codec", "?")) for camera in info.videos})
    stored = f"video ({', '.join(codecs)})" if codecs else "images in parquet"
    return LeRobotSource(
        path=path,
        fingerprint=digest.hexdigest(),
        metadata=("meta/episodes", "meta/tasks", INFO),
        features=features,
        splits={split: tuple(map(len, found)) for split, found in units.items()},
        entry=describe(info, features, name=name, lengths=lengths),
        remarks=tuple(
            f"{what}: {text}"
            for what, text in (
                ("commit", path if isinstance(folder, HubFolder) else ""),
                ("format", f"{info.codebase_version}, {sum(map(sum, lengths.values())):,} steps, {stored}"),
                ("tasks", _few([repr(text) for text in tasks.values()]) or "none"),
                ("splits", "" if ranges or not info.splits else f"{info.splits!r:.200} does not fit, so all are train"),
                ("not converted", _few([f"{key} ({why})" for key, why in others.items()])),
                ("episodes without their data", _few([each.fault for each in episodes if each.fault])),
                ("files missing", f"{len(absent):,} of {len(names):,}: {_few(absent)}" if absent else ""),
            )
            if text
        ),
        libraries=("av",) if info.videos else (),
        units=units,
        sizes=sizes,
    )


def _read_info(folder: Folder) -> Info:
    return parse_info(read_files(folder, (INFO,))[INFO], where=str(folder))


def _few(items: Sequence[str]) -> str:
    return ", ".join(items[:3]) + (f" and {len(items) - 3:,} more" if len(items) > 3 else "")
