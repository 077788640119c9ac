"""The plan of a conversion: the registry's entry joined with the features of the source and the user's options."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from convert.errors import SourceError, UsageError
from convert.index.derived import vector_inputs
from convert.journal.journal import Journal
from convert.registry.dataset import Camera, DatasetSpec, Part, Vector
from convert.registry.registry import Selected
from convert.registry.space import Term
from convert.shard.images import FramePolicy
from convert.shard.pairs import check_frames, frame_offsets, is_seconds, offset_in_steps
from convert.shard.success import SUCCESS
from convert.source.features import Feature
from convert.source.protocol import Source, SourceShard, Span, Wanted
from stream.format.episode_list import EpisodeList
from stream.format.manifest import ShardEntry
from stream.format.names import FORMAT_VERSION, DerivedName, Layout
from stream.storage.errors import closest


def shard_stem(split: str, index: int, count: int) -> str:
    """Return the name of a shard.

    >>> shard_stem("train", 7, 1024)
    'train-00007-of-01024'
    """
    return f"{split}-{index:05d}-of-{count:05d}"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The user's choices for all datasets; None means the registry's or mixture's own value.

    Attributes:
        cameras: Roles, names or ``all``, for the layout ``frames``.
        image_sizes: (height, width) by role or name of a camera, or None for its own size.
        episodes: Episodes in TFDS's grammar.
        episode_lists: Episodes to keep or to leave out, by dataset.
        leave_out: Patterns in the registry's notation that replace the patterns of the registry.
    """

    layout: Layout = "pairs"
    cameras: tuple[str, ...] = ("primary",)
    image_sizes: Mapping[str, tuple[int, int] | None] = field(default_factory=dict)
    splits: tuple[str, ...] | None = None
    episodes: str | None = None
    episode_lists: Mapping[str, EpisodeList] = field(default_factory=dict)
    camera: str | None = None
    policy: FramePolicy = field(default_factory=FramePolicy)
    offset: str | None = None
    frames: str = "endpoints"
    leave_out: tuple[str, ...] | None = None
    on_error: Literal["quarantine", "fail"] = "quarantine"
    staging: str | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedCamera:
    """A camera whose frames are stored.

    Attributes:
        name: Name in the registry; in the layout ``pairs`` the name of the feature.
        channels: Real order of the source's colours.
    """

    name: str
    feature: Feature
    channels: Literal["rgb", "bgr"]
    policy: FramePolicy


@dataclass(frozen=True, kw_only=True)
class DatasetPlan:
    """Everything that a worker needs for any shard or split of one dataset.

    Attributes:
        output: Folder ``ROOT/<dataset>/<version>``.
        cameras: Cameras whose frames are stored, one in the layout ``pairs``.
        features: Features that the index gets.
        language: Features of the instruction; the first that is not empty wins.
        vectors: What each derived column of ``steps`` is made of.
        success: Text with the path that tells the success of the episode, or None.
        staging: Local folder for files on their way to an object store, None for the system's.
        episode_list: Episodes to keep or to leave out, or None.
    """

    output: str
    layout: Layout
    cameras: tuple[PlannedCamera, ...]
    offset: int
    frames: str
    features: tuple[Feature, ...]
    language: tuple[Feature, ...]
    language_encoding: Literal["text", "utf8_codes"]
    vectors: dict[DerivedName, Vector]
    robot: str
    robot_feature: Feature | None
    success: Feature | None
    on_error: Literal["quarantine", "fail"]
    staging: str | None
    episode_list: EpisodeList | None

    @property
    def journal(self) -> Journal:
        """Journal of the conversion."""
        return Journal(self.output, self.staging)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Distances from t of the frames of a record."""
        return (0,) if self.layout == "frames" else frame_offsets(self.frames, self.offset)

    @property
    def wanted(self) -> Wanted:
        """The parts of an episode that the conversion takes."""
        extra = (*self.language, *(feature for feature in (self.robot_feature, self.success) if feature))
        return Wanted(
            cameras=tuple(camera.feature for camera in self.cameras),
            features=tuple(dict.fromkeys((*self.features, *extra))),
            staging=self.staging,
        )


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """One source shard to convert.

    Attributes:
        spans: Wanted ranges [start, stop) of its episodes.
        entry: Entry of the manifest, if the shard of a complete dataset is converted again.
    """

    dataset: str
    shard: SourceShard
    spans: tuple[Span, ...]
    entry: ShardEntry | None = None

    @property
    def stem(self) -> str:
        """The beginning of the names of the output files."""
        return shard_stem(self.shard.split, self.shard.index, self.shard.count)

    name = stem
    """Name of the job in messages, like ``SplitJob.name``."""

    @property
    def episodes(self) -> int:
        """Count of wanted episodes."""
        return sum(stop - start for start, stop in self.spans)

    @property
    def size(self) -> int:
        """Estimated bytes of the wanted episodes."""
        return self.shard.bytes * self.episodes // max(self.shard.records, 1)


@dataclass(frozen=True, kw_only=True)
class SplitJob:
    """One split whose index is to be merged.

    Attributes:
        shards: Numbers of its converted shards, in order.
        count: Count of the source's shards.
    """

    dataset: str
    split: str
    shards: tuple[int, ...]
    count: int

    @property
    def stems(self) -> list[str]:
        """The stems of its converted shards, in order."""
        return [shard_stem(self.split, index, self.count) for index in self.shards]

    @property
    def name(self) -> str:
        """The name of the split."""
        return self.split

    @property
    def size(self) -> int:
        """Count of its shards."""
        return len(self.shards)


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """One dataset to convert.

    Attributes:
        parameters: Everything that changes the output; a folder with other parameters is not converted into.
    """

    spec: DatasetSpec
    source: Source
    plan: DatasetPlan
    parameters: Mapping[str, Any]
    jobs: tuple[ShardJob, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.spec.name

    @property
    def journal(self) -> Journal:
        """Journal of the conversion."""
        return self.plan.journal

    @property
    def journal_parameters(self) -> dict[str, Any]:
        """Parameters and source metadata, which have to be the same for an interrupted conversion to continue."""
        return {**self.parameters, "source": self.source.fingerprint}

    @property
    def warnings(self) -> list[str]:
        """Warnings to show before the conversion."""
        found = [self.spec.warning] if self.spec.warning else []
        plan, count = self.plan, len(self.plan.offsets)
        if len(set(plan.offsets)) < count:
            found.append(
                f"--frames {plan.frames} at offset {plan.offset} stores some frames of a record twice: {count} frames "
                f"of {plan.offset + 1} steps"
            )
        return found

    @property
    def splits(self) -> list[str]:
        """The splits to convert, in the order of their jobs."""
        return list(dict.fromkeys(job.shard.split for job in self.jobs))

    def split_jobs(self, split: str) -> list[ShardJob]:
        """Return the shards of a split, in the order of the source."""
        return [job for job in self.jobs if job.shard.split == split]


def check_rates(selection: Sequence[Selected], offset: str | None) -> None:
    """Raise UsageError if an offset for all datasets is in seconds and some have no fixed rate; names all of them."""
    without = [selected.spec.name for selected in selection if selected.spec.control_frequency is None]
    if offset is not None and is_seconds(offset) and without:
        names = ",".join(without)
        raise UsageError(
            f"--offset {offset} is in seconds, but these have no fixed rate: {names}; give --offset in steps, or "
            f"convert them apart (--datasets {names} --offset STEPS) and the others by their names"
        )


def plan_conversion(selected: Selected, source: Source, options: Options, *, output: str) -> Conversion:
    """Plan the conversion of one dataset, to the folder ``output``, from metadata and file sizes.

    Raises:
        UsageError: Options, registry entry and features do not fit together; names the key, and the closest feature.
    """
    spec = selected.spec
    if options.leave_out is not None:
        spec = spec.model_copy(update={"leave_out": options.leave_out})
    finder = _Finder(spec, source)
    cameras = _planned_cameras(spec, finder, options)
    language = finder.language()
    for part in [part for vector in spec.vectors.values() for part in vector_inputs(vector)]:
        finder.check_part(part, part.path or "")
    if spec.action_text:
        finder.find(spec.action_text, "action_text")
    offset = selected.offset if options.offset is None else options.offset
    plan = DatasetPlan(
        output=output,
        layout=options.layout,
        cameras=cameras,
        offset=offset_in_steps(offset, spec.control_frequency, dataset=spec.name),
        frames=check_frames(options.frames),
        features=finder.columns(language),
        language=language,
        language_encoding=spec.instruction.encoding if spec.instruction else "text",
        vectors=spec.vectors,
        robot=spec.robot or "",
        robot_feature=finder.find(spec.robot_path, "robot_path") if spec.robot_path else None,
        success=finder.success(),
        on_error=options.on_error,
        staging=options.staging,
        episode_list=options.episode_lists.get(spec.name),
    )
    return Conversion(
        spec=selected.spec,
        source=source,
        plan=plan,
        parameters=_parameters(plan, options) | ({"described_by": "source"} if source.entry else {}),
        jobs=tuple(_jobs(spec.name, source, options)),
    )


def _planned_cameras(spec: DatasetSpec, finder: _Finder, options: Options) -> tuple[PlannedCamera, ...]:
    """Return the camera of the layout ``pairs``, or the chosen ones of ``frames`` in the order of the registry."""
    if options.layout == "pairs":
        camera = spec.camera(options.camera) if options.camera else spec.primary
        feature = finder.camera(camera)
        return (PlannedCamera(name=feature.name, feature=feature, channels=camera.channels, policy=options.policy),)
    wanted = set(options.cameras)
    found = []
    for name, camera in spec.cameras.items():
        if not wanted & {"all", name, camera.role}:
            continue
        sizes = [options.image_sizes[key] for key in (name, camera.role) if key in options.image_sizes]
        policy = replace(options.policy, size=sizes[0]) if sizes else options.policy
        feature = finder.camera(camera)
        found.append(PlannedCamera(name=name, feature=feature, channels=camera.channels, policy=policy))
    if not found:
        known = ", ".join(f"{name} ({camera.role})" for name, camera in spec.cameras.items())
        raise UsageError(f"{spec.name}: has none of the cameras {', '.join(options.cameras)}; it has {known}")
    return tuple(found)


def check_cameras(selection: Sequence[Selected], cameras: Sequence[str]) -> None:
    """Raise UsageError for the first camera that no dataset has."""
    known = {key for selected in selection for name, each in selected.spec.cameras.items() for key in (name, each.role)}
    for camera in cameras:
        if camera != "all" and camera not in known:
            raise UsageError(f"--cameras: no dataset has {camera!r}; {closest(camera, known, noun='cameras')}, or all")


def _jobs(dataset: str, source: Source, options: Options) -> Iterator[ShardJob]:
    chosen = {} if options.episodes is None else source.select_episodes(options.episodes)
    for split in chosen or source.select_splits(options.splits):
        for shard in source.shards(split):
            spans = chosen[split].get(shard.index) if chosen else ((0, shard.records),)
            if spans is not None:
                yield ShardJob(dataset=dataset, shard=shard, spans=spans)


def _parameters(plan: DatasetPlan, options: Options) -> dict[str, Any]:
    channels = {camera.name: camera.channels for camera in plan.cameras}
    sizes = {camera.name: "x".join(map(str, camera.policy.size or ("native",))) for camera in plan.cameras}
    pictures: dict[str, Any]
    if plan.layout == "frames":
        pictures = {"layout": "frames", "cameras": list(sizes), "channels": channels, "image_size": sizes}
    else:
        (name,) = sizes
        pictures = {
            "camera": name,
            "channels": channels[name],
            "image_size": sizes[name],
            "frames": plan.frames,
            "frame_offsets": list(plan.offsets),
        }
    return {
        "format_version": FORMAT_VERSION,
        **pictures,
        "resize": options.policy.resize,
        "quality": options.policy.quality,
        "offset": plan.offset,
        "episodes": plan.episode_list.describe() if plan.episode_list else options.episodes,
        "columns": [_notation(feature) for feature in plan.features],
        "language": [_notation(feature) for feature in plan.language],
        "robot": plan.robot_feature.name if plan.robot_feature else plan.robot,
        **({"success": _notation(plan.success)} if plan.success else {}),
    }


def _notation(feature: Feature) -> str:
    """Return the path of a feature in the registry's notation: a leading slash marks episode features."""
    return feature.name if feature.level == "step" else f"/{feature.path}"


class _Finder:
    """The features of a source by the paths of a registry entry."""

    def __init__(self, spec: DatasetSpec, source: Source) -> None:
        self._spec = spec
        self._file = f"{source.path}/{source.metadata[-1]}"
        self._features = {_notation(feature): feature for feature in source.features.values()}

    def find(self, path: str, role: str) -> Feature:
        """Return a feature; raises SourceError with the closest ones if it does not exist."""
        if path in self._features:
            return self._features[path]
        last = path.rsplit("/", 1)[-1]
        same = [name for name in self._features if name.rsplit("/", 1)[-1] == last]
        same = same or difflib.get_close_matches(path, self._features, 1)
        hint = f"did you mean {same[0]!r}?" if same else closest(path, self._features, noun="features")
        raise SourceError(f"{self._spec.name}: {role} {path!r} is not in {self._file}; {hint}")

    def camera(self, camera: Camera) -> Feature:
        """Return the feature of a camera, which must hold pictures."""
        feature = self.find(camera.path, "camera")
        raw = feature.kind == "tensor" and len(feature.shape) in (2, 3) and feature.encoding == "none"
        if feature.dtype == "uint8" and (raw or (feature.kind == "image" and not feature.sequences)):
            return feature
        pictures = [
            name
            for name, other in self._features.items()
            if other.kind == "image" and other.dtype == "uint8" and other.level == "step"
        ]
        raise self._unfit(f"camera {camera.path}", feature, f"not a picture; pictures are {', '.join(pictures)}")

    def language(self) -> tuple[Feature, ...]:
        """Return the features of the instruction."""
        instruction = self._spec.instruction
        if instruction is None:
            return ()
        found = tuple(self.find(path, "instruction") for path in (instruction.path, *instruction.alternatives))
        for feature in found:
            is_text = feature.dtype == "string" and feature.size == 1 and not feature.sequences
            is_codes = feature.dtype.startswith(("int", "uint")) and len(feature.shape) == 1
            if not (is_text if instruction.encoding == "text" else is_codes):
                fault = f"which encoding {instruction.encoding} does not read"
                raise self._unfit(f"instruction {feature.name}", feature, fault)
        return found

    def success(self) -> Feature | None:
        """Return the text that tells the success; None if a number does, or nothing."""
        if self._spec.success_path is None:
            return None
        feature = self.find(self._spec.success_path, "success_path")
        return feature if feature.dtype == "string" and f"/{SUCCESS.name}" not in self._features else None

    def check_part(self, part: Part | Term, path: str) -> None:
        """Raise UsageError unless the feature of a part has its values and is not left out."""
        feature = self.find(path, "action or state")
        if feature.dtype == "string" or feature.size is None or feature.sequences:
            raise self._unfit(path, feature, "not a vector of numbers")
        if feature.size != part.dims if part.select is None else max(part.select) >= feature.size:
            wanted = f"values {list(part.select)}" if part.select else f"all {part.dims}"
            raise UsageError(
                f"{self._spec.name}: {path} has {feature.size} values {feature.shape}; the registry takes {wanted}"
            )
        if self._spec.leaves_out(path):
            raise UsageError(
                f"{self._spec.name}: {path} is part of action or state, so it cannot be left out "
                f"({', '.join(self._spec.leave_out)})"
            )

    def columns(self, language: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """Return the features that become columns: all but pictures, left out features and coded instructions."""
        cameras = {camera.path for camera in self._spec.cameras.values()}
        codes = self._spec.instruction is not None and self._spec.instruction.encoding == "utf8_codes"
        found = tuple(
            feature
            for name, feature in self._features.items()
            if feature.kind != "image"
            and name not in cameras
            and not self._spec.leaves_out(name)
            and not (codes and feature in language)
        )
        for feature in (*found, *language):
            if not feature.size:
                raise UsageError(
                    f"{self._spec.name}: {_notation(feature)} has the shape {feature.shape}; columns need a fixed size "
                    "of 1 or more. Leave it out (--leave-out, or leave_out in the registry)"
                )
        return found

    def _unfit(self, name: str, feature: Feature, fault: str) -> UsageError:
        return UsageError(f"{self._spec.name}: {name} is {feature.dtype} {feature.shape}, {fault}")
