"""The plan of a conversion: the registry's entry joined with the features of the source and the user's options."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from convert.chosen_features import FeatureFinder, notation
from convert.errors import CorruptFrame, UsageError
from convert.index.derived import vector_inputs
from convert.jobs import ShardJob, cut_jobs
from convert.journal.journal import Journal
from convert.registry.dataset import Camera, DatasetSpec, Vector
from convert.registry.registry import Selected
from convert.shard.depth import convert_depth
from convert.shard.images import EncodedFrame, FramePolicy, convert_frame
from convert.shard.pairs import check_frames, frame_offsets, offset_in_steps
from convert.shard.video import CRF
from convert.source.episode import EPISODE_IDS, SourceFrame
from convert.source.features import Feature
from convert.source.protocol import ReadRequest, Source
from stream.format.episode_list import EpisodeList
from stream.format.frame import Codec
from stream.format.names import FORMAT_VERSION, DerivedName, Layout
from stream.format.video import VIDEO_CODECS, ChunkFrame

_NO_UNIT = "nobody says its unit; write unit: m or mm, or scale, into the registry"


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """The user's choices for all datasets; None means the registry's or mixture's own value.

    Attributes:
        cameras: Roles and names, also ``all`` and ``depth``; in the layout ``pairs`` one role, name or path.
        image_sizes: (height, width) by role or name of a camera, or None for its own size.
        codecs: Codec by role or name of a camera.
        gop: Frames of a chunk of video.
        crf: Quality of video, None for the default of its codec.
        splits: Complete splits, None for all that have episodes.
        episodes: Ranges of splits in TFDS's grammar, in place of ``splits``.
        episode_lists: Episodes to keep or to leave out, by dataset.
        leave_out: Patterns in the registry's notation that replace the patterns of the registry.
    """

    layout: Layout = "pairs"
    cameras: tuple[str, ...] = ("primary",)
    image_sizes: Mapping[str, tuple[int, int] | None] = field(default_factory=dict)
    codecs: Mapping[str, Codec] = field(default_factory=dict)
    gop: int = 8
    crf: int | None = None
    splits: tuple[str, ...] | None = None
    episodes: str | None = None
    episode_lists: Mapping[str, EpisodeList] = field(default_factory=dict)
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
        channels: Real order of the source's colours; rgb where it is not known.
        is_depth: Whether it measures depth.
        millimetres: Of depth, the millimetres of a stored 1; None where nobody knows.
    """

    name: str
    feature: Feature
    channels: Literal["rgb", "bgr"]
    policy: FramePolicy
    is_depth: bool = False
    millimetres: float | None = None

    def convert(self, source_frame: SourceFrame | CorruptFrame) -> EncodedFrame:
        """Return a frame of the source as it is stored; raise CorruptFrame if it cannot be decoded."""
        if self.is_depth:
            if isinstance(source_frame, ChunkFrame):
                raise CorruptFrame("is video, and no depth")
            is_float = self.feature.dtype == "float32"
            return convert_depth(source_frame, self.policy, scale=self.millimetres, is_float=is_float)
        return convert_frame(source_frame, self.policy, channels=self.channels)


@dataclass(frozen=True, kw_only=True)
class DatasetPlan:
    """Everything that a worker needs for any shard or split of one dataset.

    Attributes:
        output: Folder ``ROOT/<dataset>/<version>``.
        cameras: Cameras whose frames are stored, one in the layout ``pairs``.
        features: Features that the index gets.
        language: Features of the instruction; the first that is not empty wins.
        vectors: What each derived column of ``steps`` is made of.
        success: Feature that holds the success of the episode, or None.
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
    def wanted(self) -> ReadRequest:
        """The parts of an episode that the conversion takes."""
        further_features = (*self.language, *(feature for feature in (self.robot_feature, self.success) if feature))
        return ReadRequest(
            cameras=tuple(camera.feature for camera in self.cameras),
            features=tuple(dict.fromkeys((*self.features, *further_features))),
            staging=self.staging,
        )


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """One dataset to convert.

    Attributes:
        parameters: Everything that changes the output; a folder with other parameters is not converted into.
        target: Folder that the complete conversion is moved to; usually the output itself.
        without_unit: Depth cameras of floats that ``depth`` would choose, but nobody says their unit.
    """

    spec: DatasetSpec
    source: Source
    plan: DatasetPlan
    parameters: Mapping[str, Any]
    jobs: tuple[ShardJob, ...] = field(repr=False)
    target: str
    without_unit: tuple[str, ...] = ()

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
        messages = [self.spec.warning] if self.spec.warning else []
        plan, frames_per_record = self.plan, len(self.plan.offsets)
        stored_paths = {camera.feature.name for camera in plan.cameras}
        stored_cameras = [(name, camera) for name, camera in self.spec.cameras.items() if camera.path in stored_paths]
        if unsure_cameras := [name for name, camera in stored_cameras if camera.channels == "unknown"]:
            messages.append(
                f"red and blue of {', '.join(unsure_cameras)} may be swapped, nobody says, and frames stay as they "
                "are; look at some with pairstream replay, and write channels: rgb or bgr into the registry"
            )
        if unsure_cameras := [camera.name for camera in plan.cameras if camera.is_depth and camera.millimetres is None]:
            messages.append(
                f"nobody says the unit of depth in {', '.join(unsure_cameras)}, so its numbers stay as they are; write "
                "unit: mm or m, or scale, into the registry"
            )
        if self.without_unit:
            messages.append(f"depth of {', '.join(self.without_unit)} is left out: {_NO_UNIT}")
        if len(set(plan.offsets)) < frames_per_record:
            messages.append(
                f"--frames {plan.frames} at offset {plan.offset} stores some frames of a record twice: "
                f"{frames_per_record} frames of {plan.offset + 1} steps"
            )
        if plan.layout == "pairs" and (self.spec.steps_per_episode or math.inf) <= plan.offset:
            messages.append(
                f"offset {plan.offset} is long: episodes have {self.spec.steps_per_episode:g} steps on average, a pair "
                f"takes {plan.offset + 1}; where none has so many, the conversion fails at its end"
            )
        return messages

    @property
    def splits(self) -> list[str]:
        """The splits to convert, in the order of their jobs."""
        return list(dict.fromkeys(job.shard.split for job in self.jobs))

    def split_jobs(self, split: str) -> list[ShardJob]:
        """Return the shards of a split, in the order of the source."""
        return [job for job in self.jobs if job.shard.split == split]


def plan_conversion(
    selected: Selected, source: Source, config: ConvertConfig, *, output_folder: str, target: str = ""
) -> Conversion:
    """Plan the conversion of one dataset, to the folder ``output_folder``, from metadata and file sizes.

    The complete conversion is moved to the folder ``target``, if one is given. Raises UsageError if options, registry
    entry and features do not fit together.
    """
    spec = selected.spec
    if config.leave_out is not None:
        spec = spec.model_copy(update={"leave_out": config.leave_out})
    finder = FeatureFinder(spec, source)
    cameras, without_unit = _planned_cameras(spec, finder, config)
    language = finder.language()
    for part in [part for vector in spec.vectors.values() for part in vector_inputs(vector)]:
        finder.check_part(part, part.path or "")
    if spec.action_text:
        finder.find(spec.action_text, "action_text")
    offset = selected.offset if config.offset is None else config.offset
    plan = DatasetPlan(
        output=output_folder,
        layout=config.layout,
        cameras=cameras,
        offset=offset_in_steps(offset, spec.control_frequency, dataset_name=spec.name),
        frames=check_frames(config.frames),
        features=finder.columns(language),
        language=language,
        language_encoding=spec.instruction.encoding if spec.instruction else "text",
        vectors=spec.vectors,
        robot=spec.robot or "",
        robot_feature=finder.find(spec.robot_path, "robot_path") if spec.robot_path else None,
        success=finder.success(),
        on_error=config.on_error,
        staging=config.staging,
        episode_list=config.episode_lists.get(spec.name),
    )
    if plan.episode_list is not None:
        source.check_listed(plan.episode_list, dataset=spec.name)
    shard_jobs = list(_jobs(spec.name, source, config))
    if config.layout == "pairs":
        _check_lengths(spec.name, shard_jobs, plan.offset)
    return Conversion(
        spec=selected.spec,
        source=source,
        plan=plan,
        parameters=_parameters(plan, config) | ({"described_by": "source"} if source.entry else {}),
        jobs=cut_jobs(shard_jobs, frames_per_step=len(cameras)),
        target=target or output_folder,
        without_unit=without_unit,
    )


def _planned_cameras(
    spec: DatasetSpec, finder: FeatureFinder, config: ConvertConfig
) -> tuple[tuple[PlannedCamera, ...], tuple[str, ...]]:
    """Return the camera of the layout ``pairs``, or the chosen ones of ``frames``: those of colour, then depth.

    The second item has the names of depth cameras that lack a unit and were not chosen by their names.
    """
    if config.layout == "pairs":
        (name,) = config.cameras
        camera = spec.primary if name == "primary" else spec.camera(name)
        if camera.is_depth:
            raise UsageError(f"{spec.name}: {name} is depth, and pairs are of colour; take --layout frames")
        feature = finder.camera(camera)
        return (_planned_camera(feature.name, camera, feature, config.policy),), ()
    requested, planned_cameras, without_unit = set(config.cameras), list[PlannedCamera](), list[str]()
    for name, camera in spec.cameras.items():
        camera_keys = camera.keys(name)
        if requested.isdisjoint(camera_keys):
            continue
        feature = finder.camera(camera)
        if camera.is_depth and camera.millimetres is None and feature.dtype.startswith("float"):
            if name in requested:
                raise UsageError(f"{spec.name}: depth of {name} is {feature.dtype}, and {_NO_UNIT}")
            without_unit.append(name)
            continue
        image_sizes = [config.image_sizes[key] for key in camera_keys if key in config.image_sizes]
        codecs = [config.codecs[key] for key in camera_keys if key in config.codecs]
        policy = replace(config.policy, size=image_sizes[0]) if image_sizes else config.policy
        if camera.is_depth and codecs:
            raise UsageError(f"{spec.name}: --codec {codecs[0]} is for cameras of colour, and {name} is depth")
        policy = replace(policy, codec="jpeg" if camera.is_depth else [*codecs, policy.codec][0])
        if policy.codec in VIDEO_CODECS:
            policy = replace(policy, gop=config.gop, crf=CRF[policy.codec] if config.crf is None else config.crf)
        planned_cameras.append(_planned_camera(name, camera, feature, policy))
    if without_unit and not planned_cameras:
        raise UsageError(f"{spec.name}: depth of {', '.join(without_unit)}: {_NO_UNIT}")
    if not planned_cameras:
        requested_names = ", ".join(config.cameras)
        raise UsageError(f"{spec.name}: has none of the cameras {requested_names}; it has {spec.listed_cameras}")
    return tuple(sorted(planned_cameras, key=lambda camera: camera.is_depth)), tuple(without_unit)


def _planned_camera(name: str, camera: Camera, feature: Feature, policy: FramePolicy) -> PlannedCamera:
    return PlannedCamera(
        name=name,
        feature=feature,
        channels="rgb" if camera.channels == "unknown" else camera.channels,
        policy=policy,
        is_depth=camera.is_depth,
        millimetres=camera.millimetres,
    )


def _jobs(dataset_name: str, source: Source, config: ConvertConfig) -> Iterator[ShardJob]:
    chosen_episodes = {} if config.episodes is None else source.select_episodes(config.episodes)
    for split in chosen_episodes or source.select_splits(config.splits):
        for shard in source.shards(split):
            episode_spans = chosen_episodes[split].get(shard.index) if chosen_episodes else (shard.every,)
            if episode_spans is not None:
                yield ShardJob(dataset=dataset_name, shard=shard, spans=episode_spans)


def _check_lengths(dataset_name: str, shard_jobs: Sequence[ShardJob], offset: int) -> None:
    """Raise UsageError if a split gives no pair according to the metadata."""
    for split in dict.fromkeys(job.shard.split for job in shard_jobs):
        split_jobs = [job for job in shard_jobs if job.shard.split == split]
        if all(job.shard.lengths for job in split_jobs):
            lengths = [job.shard.lengths[start:stop] for job in split_jobs for start, stop in job.spans]
            longest = max(map(max, lengths), default=0)
            if longest <= offset:
                raise UsageError(no_pair(dataset_name, split, offset, longest))


def no_pair(dataset_name: str, split: str, offset: int, longest: int, *, remedy: str = "") -> str:
    """Return the error about a split whose longest episode is too short; ``remedy`` is said of a smaller offset."""
    return (
        f"{dataset_name}: split {split} gives no pair at offset {offset}: its longest episode has {longest} "
        f"steps, a pair takes {offset + 1}; give a smaller --offset{remedy}, or leave the split out with --episodes"
    )


def _parameters(plan: DatasetPlan, config: ConvertConfig) -> dict[str, Any]:
    channels = {camera.name: camera.channels for camera in plan.cameras if not camera.is_depth}
    sizes = {camera.name: "x".join(map(str, camera.policy.size or ("native",))) for camera in plan.cameras}
    video_cameras = [camera for camera in plan.cameras if camera.policy.codec in VIDEO_CODECS]
    of_layout: dict[str, Any]
    if plan.layout == "frames":
        of_layout = {"layout": "frames", "cameras": list(sizes), "channels": channels, "image_size": sizes}
    else:
        (name,) = sizes
        of_layout = {"camera": name, "channels": channels[name], "image_size": sizes[name]}
        of_layout |= {"frames": plan.frames, "frame_offsets": list(plan.offsets)}
    parameters = {
        "format_version": FORMAT_VERSION,
        **of_layout,
        "depth": {camera.name: camera.millimetres for camera in plan.cameras if camera.is_depth},
        "resize": config.policy.resize,
        "quality": config.policy.quality,
        "subsampling": None if config.policy.subsampling == "420" else config.policy.subsampling,
        "codec": {camera.name: camera.policy.codec for camera in plan.cameras if camera.policy.codec != "jpeg"},
        "gop": {camera.name: camera.policy.gop for camera in video_cameras},
        "crf": {camera.name: camera.policy.crf for camera in video_cameras},
        "offset": plan.offset,
        "episode_ids": EPISODE_IDS,
        "episodes": plan.episode_list.describe() if plan.episode_list else config.episodes,
        "columns": [notation(feature) for feature in plan.features],
        "language": [notation(feature) for feature in plan.language],
        "robot": plan.robot_feature.name if plan.robot_feature else plan.robot,
        "success": notation(plan.success) if plan.success else None,
    }
    optional = ("depth", "subsampling", "codec", "gop", "crf", "success")
    return {name: value for name, value in parameters.items() if value or name not in optional}
