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
from convert.shard.pairs import check_frames, frame_offsets, is_seconds, offset_in_steps
from convert.shard.video import CRF
from convert.source.episode import EPISODE_IDS, SourceFrame
from convert.source.features import Feature
from convert.source.protocol import ReadRequest, Source
from stream.base.errors import closest
from stream.format.episode_list import EpisodeList
from stream.format.frame import Codec
from stream.format.names import FORMAT_VERSION, DerivedName, Layout
from stream.format.video import VIDEO_CODECS, ChunkFrame

_NO_UNIT = "nobody says its unit; write unit: m or mm, or scale, into the registry"


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """The user's choices for all datasets; None means the registry's or mixture's own value.

    Attributes:
        cameras: Roles and names, ``all`` for those of colour and ``depth``, for the layout ``frames``.
        image_sizes: (height, width) by role or name of a camera, or None for its own size.
        codecs: Codec by role or name of a camera.
        gop: Frames of a chunk of video.
        crf: Quality of video, None for the default of its codec.
        episodes: Episodes in TFDS's grammar.
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

    def convert(self, frame: SourceFrame | CorruptFrame) -> EncodedFrame:
        """Return a frame of the source as it is stored; raise CorruptFrame if it cannot be decoded."""
        if self.is_depth:
            if isinstance(frame, ChunkFrame):
                raise CorruptFrame("is video, and no depth")
            is_float = self.feature.dtype == "float32"
            return convert_depth(frame, self.policy, scale=self.millimetres, is_float=is_float)
        return convert_frame(frame, self.policy, channels=self.channels)


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
    def wanted(self) -> ReadRequest:
        """The parts of an episode that the conversion takes."""
        extra = (*self.language, *(feature for feature in (self.robot_feature, self.success) if feature))
        return ReadRequest(
            cameras=tuple(camera.feature for camera in self.cameras),
            features=tuple(dict.fromkeys((*self.features, *extra))),
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
        found = [self.spec.warning] if self.spec.warning else []
        plan, count = self.plan, len(self.plan.offsets)
        stored = {camera.feature.name for camera in plan.cameras}
        unsure = [
            name for name, each in self.spec.cameras.items() if each.channels == "unknown" and each.path in stored
        ]
        if unsure:
            found.append(
                f"red and blue of {', '.join(unsure)} may be swapped, nobody says, and frames stay as they are; look "
                "at some with pairstream.replay, and write channels: rgb or bgr into the registry"
            )
        if unsure := [camera.name for camera in plan.cameras if camera.is_depth and camera.millimetres is None]:
            found.append(
                f"nobody says the unit of depth in {', '.join(unsure)}, so its numbers stay as they are; write "
                "unit: mm or m, or scale, into the registry"
            )
        if self.without_unit:
            found.append(f"depth of {', '.join(self.without_unit)} is left out: {_NO_UNIT}")
        if len(set(plan.offsets)) < count:
            found.append(
                f"--frames {plan.frames} at offset {plan.offset} stores some frames of a record twice: {count} frames "
                f"of {plan.offset + 1} steps"
            )
        if plan.layout == "pairs" and (self.spec.steps_per_episode or math.inf) <= plan.offset:
            found.append(
                f"offset {plan.offset} is long: episodes have {self.spec.steps_per_episode:g} steps on average, a pair "
                f"takes {plan.offset + 1}; where none has so many, the conversion fails at its end"
            )
        return found

    @property
    def libraries(self) -> tuple[str, ...]:
        """Libraries that the output depends on, beside those of every conversion."""
        is_video = any(camera.policy.codec in VIDEO_CODECS for camera in self.plan.cameras)
        return tuple(dict.fromkeys((*self.source.libraries, *(("av",) if is_video else ()))))

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


def plan_conversion(
    selected: Selected, source: Source, options: ConvertConfig, *, output: str, target: str = ""
) -> Conversion:
    """Plan the conversion of one dataset, to the folder ``output``, from metadata and file sizes.

    The complete conversion is moved to the folder ``target``, if one is given.

    Raises:
        UsageError: Options, registry entry and features do not fit together; names the key, and the closest feature.
    """
    spec = selected.spec
    if options.leave_out is not None:
        spec = spec.model_copy(update={"leave_out": options.leave_out})
    finder = FeatureFinder(spec, source)
    cameras, without_unit = _planned_cameras(spec, finder, options)
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
        offset=offset_in_steps(offset, spec.control_frequency, dataset_name=spec.name),
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
    if plan.episode_list is not None:
        source.check_listed(plan.episode_list, dataset=spec.name)
    jobs = list(_jobs(spec.name, source, options))
    if options.layout == "pairs":
        _check_lengths(spec.name, jobs, plan.offset)
    return Conversion(
        spec=selected.spec,
        source=source,
        plan=plan,
        parameters=_parameters(plan, options) | ({"described_by": "source"} if source.entry else {}),
        jobs=cut_jobs(jobs, frames_per_step=len(cameras)),
        target=target or output,
        without_unit=without_unit,
    )


def _planned_cameras(
    spec: DatasetSpec, finder: FeatureFinder, options: ConvertConfig
) -> tuple[tuple[PlannedCamera, ...], tuple[str, ...]]:
    """Return the camera of the layout ``pairs``, or the chosen ones of ``frames``: those of colour, then depth.

    The second item has the names of depth cameras that lack a unit and were not chosen by their names.
    """
    if options.layout == "pairs":
        camera = spec.camera(options.camera) if options.camera else spec.primary
        if camera.is_depth:
            raise UsageError(f"{spec.name}: {options.camera} is depth, and pairs are of colour; take --layout frames")
        feature = finder.camera(camera)
        return (PlannedCamera(name=feature.name, feature=feature, channels=_order(camera), policy=options.policy),), ()
    wanted = set(options.cameras)
    found, without_unit = [], []
    for name, camera in spec.cameras.items():
        keys = camera.keys(name)
        if wanted.isdisjoint(keys):
            continue
        feature = finder.camera(camera)
        if camera.is_depth and camera.millimetres is None and feature.dtype.startswith("float"):
            if name in wanted:
                raise UsageError(f"{spec.name}: depth of {name} is {feature.dtype}, and {_NO_UNIT}")
            without_unit.append(name)
            continue
        sizes = [options.image_sizes[key] for key in keys if key in options.image_sizes]
        codecs = [options.codecs[key] for key in keys if key in options.codecs]
        policy = replace(options.policy, size=sizes[0]) if sizes else options.policy
        if camera.is_depth and codecs:
            raise UsageError(f"{spec.name}: --codec {codecs[0]} is for cameras of colour, and {name} is depth")
        policy = replace(policy, codec="jpeg") if camera.is_depth else _coded(policy, codecs, options)
        found.append(
            PlannedCamera(
                name=name,
                feature=feature,
                channels=_order(camera),
                policy=policy,
                is_depth=camera.is_depth,
                millimetres=camera.millimetres,
            )
        )
    if without_unit and not found:
        raise UsageError(f"{spec.name}: depth of {', '.join(without_unit)}: {_NO_UNIT}")
    if not found:
        chosen = ", ".join(options.cameras)
        raise UsageError(f"{spec.name}: has none of the cameras {chosen}; it has {spec.listed_cameras}")
    return tuple(sorted(found, key=lambda camera: camera.is_depth)), tuple(without_unit)


def _coded(policy: FramePolicy, codecs: Sequence[Codec], options: ConvertConfig) -> FramePolicy:
    """Return the policy with the codec of a camera, and how it is encoded."""
    policy = replace(policy, codec=codecs[0]) if codecs else policy
    if policy.codec not in VIDEO_CODECS:
        return policy
    return replace(policy, gop=options.gop, crf=CRF[policy.codec] if options.crf is None else options.crf)


def _order(camera: Camera) -> Literal["rgb", "bgr"]:
    return "rgb" if camera.channels == "unknown" else camera.channels


def check_cameras(selection: Sequence[Selected], options: ConvertConfig) -> None:
    """Raise UsageError for the first camera that no dataset has."""
    known = {key for selected in selection for name, each in selected.spec.cameras.items() for key in each.keys(name)}
    chosen = {"cameras": options.cameras, "image-size": options.image_sizes, "codec": options.codecs}
    for option, cameras in chosen.items():
        for camera in cameras:
            if camera not in known:
                raise UsageError(f"--{option}: no dataset has {camera!r}; {closest(camera, known, noun='cameras')}")


def _jobs(dataset: str, source: Source, options: ConvertConfig) -> Iterator[ShardJob]:
    chosen = {} if options.episodes is None else source.select_episodes(options.episodes)
    for split in chosen or source.select_splits(options.splits):
        for shard in source.shards(split):
            spans = chosen[split].get(shard.index) if chosen else (shard.every,)
            if spans is not None:
                yield ShardJob(dataset=dataset, shard=shard, spans=spans)


def _check_lengths(dataset: str, jobs: Sequence[ShardJob], offset: int) -> None:
    """Raise UsageError if the metadata tell that a split gives no pair."""
    for split in dict.fromkeys(job.shard.split for job in jobs):
        mine = [job for job in jobs if job.shard.split == split]
        if all(job.shard.lengths for job in mine):
            longest = max((max(job.shard.lengths[start:stop]) for job in mine for start, stop in job.spans), default=0)
            if longest <= offset:
                raise UsageError(no_pair(dataset, split, offset, longest))


def no_pair(dataset: str, split: str, offset: int, longest: int, *, how: str = "") -> str:
    """Return the error about a split whose longest episode is too short; ``how`` is said of a smaller offset."""
    return (
        f"{dataset}: split {split} gives no pair at offset {offset}: its longest episode has {longest} steps, a pair "
        f"takes {offset + 1}; give a smaller --offset{how}, or leave the split out with --splits"
    )


def _parameters(plan: DatasetPlan, options: ConvertConfig) -> dict[str, Any]:
    channels = {camera.name: camera.channels for camera in plan.cameras if not camera.is_depth}
    depth = {camera.name: camera.millimetres for camera in plan.cameras if camera.is_depth}
    sizes = {camera.name: "x".join(map(str, camera.policy.size or ("native",))) for camera in plan.cameras}
    codecs = {c.name: c.policy.codec for c in plan.cameras if not c.is_depth and c.policy.codec != "jpeg"}
    video = [camera for camera in plan.cameras if camera.policy.codec in VIDEO_CODECS]
    pictures: dict[str, Any]
    if plan.layout == "frames":
        pictures = {"layout": "frames", "cameras": list(sizes), "channels": channels, "image_size": sizes}
        pictures |= {"depth": depth} if depth else {}
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
        **({"subsampling": options.policy.subsampling} if options.policy.subsampling != "420" else {}),
        **({"codec": codecs} if codecs else {}),
        **({"gop": {camera.name: camera.policy.gop for camera in video}} if video else {}),
        **({"crf": {camera.name: camera.policy.crf for camera in video}} if video else {}),
        "offset": plan.offset,
        "episode_ids": EPISODE_IDS,
        "episodes": plan.episode_list.describe() if plan.episode_list else options.episodes,
        "columns": [notation(feature) for feature in plan.features],
        "language": [notation(feature) for feature in plan.language],
        "robot": plan.robot_feature.name if plan.robot_feature else plan.robot,
        **({"success": notation(plan.success)} if plan.success else {}),
    }
