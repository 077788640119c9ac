"""LeRobot datasets: their locations, their metadata, their units of work, and their registry entries."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from convert.errors import SourceError, UsageError
from convert.source.describe import describe_cameras, describe_features, describe_parts
from convert.source.episode import episode_id
from convert.source.features import Feature
from convert.source.lerobot.episodes import (
    EpisodeFiles,
    cut_units,
    episode_files,
    no_episodes,
    read_episodes,
    read_tasks,
    tasks_file,
)
from convert.source.lerobot.files import (
    HUB_DATASET,
    Folder,
    HubFolder,
    LocalFiles,
    find_dataset,
    measure_folders,
    open_files,
    read_files,
)
from convert.source.lerobot.info import ANNOTATION, INFO, TASK, Info, parse_info
from convert.source.lerobot.reader import LeRobotReader, file_names
from convert.source.locations import candidates, refuse_layout
from convert.source.picture_names import describe_parquet
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
    def open(self, request: ReadRequest, spans: Sequence[Span]) -> Iterator[LeRobotReader]:
        """Open the shard; files are opened when the first episode in them is read."""
        folder = open_files(self.path)
        info = _read_info(folder)
        tasks = read_tasks(read_files(folder, tasks_file(info)), context=self.path)
        with ExitStack() as stack:
            reader = LeRobotReader(
                episodes=[episode for position, episode in enumerate(self.episodes) if covers(spans, position)],
                request=request,
                files=LocalFiles(self.path, stack, staging=request.staging),
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
        """Return the units of a split; a missing file counts no bytes."""
        units = self.units[split]
        return tuple(
            LeRobotShard(
                split=split,
                index=number,
                count=len(units),
                path=self.path,
                name=f"episodes-{unit[0].number:06d}-{unit[-1].number:06d}",
                records=len(unit),
                bytes=sum(self.sizes.get(name, 0) for name in file_names(unit, _all_cameras(self.features))),
                episodes=tuple(unit),
            )
            for number, unit in enumerate(units)
        )


def _all_cameras(features: Mapping[str, Feature]) -> ReadRequest:
    return ReadRequest(cameras=tuple(feature for feature in features.values() if feature.kind == "image"))


def find(location: str, roots: Sequence[str], layout: Mapping[str, Any]) -> LeRobotSource:
    """Find a dataset below the first root that has it, or on the Hub where there are no roots.

    Args:
        location: ``ORG/NAME``, on the Hub also ``ORG/NAME@REVISION``, or the path of the dataset itself.
        roots: Folders that contain ``ORG/NAME``: local, ``gs://`` or ``s3://``.
        layout: Empty, as LeRobot's files have one layout.

    Raises:
        SourceError: No root has the dataset, its metadata are damaged, or its format has another version.
        UsageError: PyAV is not installed, or ``location`` is not a location.
        stream.storage.remote.RemoteError: A bucket or the Hub cannot be read.
    """
    refuse_layout("lerobot", layout)
    location = location.rstrip("/")
    if (not roots or location.startswith(SCHEME)) and (hub_match := HUB_DATASET.fullmatch(location)):
        dataset = find_dataset(hub_match["name"], hub_match["revision"])
        if dataset.size(INFO) is None:
            raise SourceError(f"{dataset}: has no {INFO}, so it is not a LeRobot dataset")
        return _open(dataset, dataset_name=hub_match["name"].rpartition("/")[2])
    candidate_paths = candidates(location, roots)
    for candidate in candidate_paths:
        folder = open_files(candidate)
        if folder.size(INFO) is not None:
            # The description is the same for each path to the dataset, and for its copy on the Hub.
            return _open(folder, dataset_name=candidate.rpartition("/")[2])
    if not candidate_paths:
        raise UsageError(f"lerobot:{location}: expected ORG/NAME of the Hub, a path, or a folder below --source")
    parent, _, dataset_name = candidate_paths[0].rstrip("/").rpartition("/")
    parent = parent or ("/" if candidate_paths[0].startswith("/") else ".")
    sibling_folders = open_files(parent).folders()
    hint = closest(dataset_name, sibling_folders, noun="folders") if sibling_folders else f"{parent} has no folders"
    raise SourceError(f"lerobot:{location}: no {INFO} in {', '.join(candidate_paths)}; {hint}")


def _open(folder: Folder, *, dataset_name: str) -> LeRobotSource:
    path = str(folder)
    info = _read_info(folder)
    if all(map(info.is_depth, info.cameras)):
        names_note = describe_parquet(folder.path) if isinstance(folder, LocalFolder) else ""
        raise SourceError(f"{path}: has no colour camera, so no frame to convert{names_note}")
    if info.videos and importlib.util.find_spec("av") is None:
        raise UsageError(missing("av", "lerobot", by=f"lerobot:{path}"))
    metadata_files = read_files(folder, (*episode_files(folder, info), *tasks_file(info)))
    if not (episodes := read_episodes(metadata_files, info, context=path)):
        raise SourceError(no_episodes(folder))
    tasks = read_tasks(metadata_files, context=path)
    features, not_converted = info.split_features()
    total_episodes = max(info.total_episodes, episodes[-1].number + 1)
    split_ranges = info.split_ranges(total_episodes)
    units = {}
    for split, (start, stop) in (split_ranges or {"train": (0, total_episodes)}).items():
        units[split] = tuple(cut_units([episode for episode in episodes if start <= episode.number < stop], info))
    lengths = {split: [episode.length for unit in units[split] for episode in unit] for split in units}
    data_files = file_names(episodes, _all_cameras(features))
    size_by_file = measure_folders(folder, sorted({name.rpartition("/")[0] for name in data_files}))
    splits_misfit = bool(info.splits) and not split_ranges
    codecs = sorted({str(info.features[camera_name].about.get("video.codec", "?")) for camera_name in info.videos})
    storage = f"video ({', '.join(codecs)})" if codecs else "images in parquet"
    digests = [hashlib.sha256(content).digest() for content in (folder.read(INFO), *metadata_files.values())]
    remarks = {
        "commit": path if isinstance(folder, HubFolder) else "",
        "format": f"{info.codebase_version}, {sum(map(sum, lengths.values())):,} steps, {storage}",
        "tasks": _list_few([repr(task) for task in tasks.values()]) or "none",
        "splits": f"{info.splits!r:.200} does not fit, so all are train" if splits_misfit else "",
        "not converted": _list_few([f"{name} ({reason})" for name, reason in not_converted.items()]),
        "episodes without their data": _list_few([episode.fault for episode in episodes if episode.fault]),
    }
    if missing_files := [name for name in data_files if name not in size_by_file]:
        remarks["files missing"] = f"{len(missing_files):,} of {len(data_files):,}: {_list_few(missing_files)}"
    return LeRobotSource(
        path=path,
        fingerprint=hashlib.sha256(b"".join(digests)).hexdigest(),
        metadata=("meta/episodes", "meta/tasks", INFO),
        features=features,
        splits={split: tuple(map(len, units[split])) for split in units},
        entry=describe(info, features, dataset_name=dataset_name, lengths_by_split=lengths),
        remarks=tuple(f"{topic}: {remark}" for topic, remark in remarks.items() if remark),
        libraries=("av",) if info.videos else (),
        units=units,
        sizes=size_by_file,
    )


def _read_info(folder: Folder) -> Info:
    return parse_info(read_files(folder, (INFO,))[INFO], context=str(folder))


def _list_few(items: Sequence[str]) -> str:
    return ", ".join(items[:3]) + (f" and {len(items) - 3:,} more" if len(items) > 3 else "")


_VECTORS = {"action": ("action", "actions"), "state": ("observation.state", "observation.states", "state")}
"""Features of each vector, as LeRobot, AgiBot and openpi's converters name them; most preferred first."""
_INSTRUCTION_ANNOTATIONS = ("task_description", "language_instruction", "instruction", "coarse_action")
"""Last parts of the names of annotations that are instructions; other annotations have other facts."""
_INDEX_COUNTERS = ("index", "frame_index", "episode_index")
"""Counters that the index has as steps and episodes."""


def describe(
    info: Info, features: Mapping[str, Feature], *, dataset_name: str, lengths_by_split: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Return the fields of a registry entry, as YAML would have them; the meaning of numbers stays open.

    Args:
        dataset_name: Name of the dataset for people.
        lengths_by_split: Count of the steps of each episode, by split.
    """
    depth_units = {path: info.depth_unit(path) for path in info.cameras if info.is_depth(path)}
    cameras = describe_cameras({path: info.features[path].size for path in info.cameras}, depth_units)
    for camera in cameras.values():
        camera["storage"] = "raw" if info.features[camera["path"]].dtype == "video" else "undeclared"
    all_lengths = [length for split in lengths_by_split.values() for length in split]
    entry = describe_features(features, dataset_name=dataset_name, splits={}, lengths=all_lengths) | {
        "version": f"{info.codebase_version.removeprefix('v')}.0",
        "description": f"LeRobot dataset {dataset_name}, format {info.codebase_version}.",
        "cameras": cameras,
        **{vector: _describe_vector(features, info, names) for vector, names in _VECTORS.items()},
        "control_frequency": info.fps,
        "splits": {split: len(episode_lengths) for split, episode_lengths in lengths_by_split.items()},
        "leave_out": ["*language_embedding", *(name for name in _INDEX_COUNTERS if name in info.features)],
    }
    entry.pop("instruction", None)
    annotation_names = [name for name in reversed(info.features) if name.startswith(ANNOTATION)]
    feature_by_label = {name.rpartition(".")[2]: name for name in annotation_names}
    annotations = [feature_by_label[label] for label in _INSTRUCTION_ANNOTATIONS if label in feature_by_label]
    texts = [feature.name for feature in features.values() if feature.dtype == "string"]
    if instructions := [name for name in (*annotations, TASK) if name in texts]:
        entry["instruction"] = {"path": instructions[0]}
    if info.robot_type:
        entry["robot"] = info.robot_type
    return entry


def _describe_vector(features: Mapping[str, Feature], info: Info, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the parts of a vector: the feature of that name, or those whose names begin with it and a dot."""
    feature_by_name = {feature.name: feature for feature in features.values()}
    for vector_name in names:
        part_names = [path for path in info.features if path.startswith(f"{vector_name}.")]
        paths = [vector_name] if f"steps/{vector_name}" in features else part_names
        if parts := list(describe_parts(feature_by_name, paths)):
            for part in parts:
                if value_names := info.features[part["path"]].value_names:
                    part["names"] = list(value_names)
            return parts
    return []
