"""What is to be done to one dataset: the registry's entry meets the features of the source and the user's options."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from convert.errors import SourceError, UsageError
from convert.registry.registry import Camera, DatasetSpec, Instruction, Part, Selected
from convert.shard.images import FramePolicy
from convert.shard.pairs import check_frames, frame_offsets, is_seconds, offset_in_steps
from convert.source.features import Feature
from convert.source.source import SourceDataset, SourceShard, Span
from stream.format.manifest import ShardEntry
from stream.format.names import FORMAT_VERSION, shard_stem
from stream.storage.errors import closest


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user chose for all datasets; None means the registry's or mixture's own value.

    leave_out: patterns in the registry's notation that replace those of the registry.
    """

    splits: tuple[str, ...] | None = None
    episodes: str | None = None
    camera: str | None = None
    policy: FramePolicy = field(default_factory=FramePolicy)
    offset: str | None = None
    frames: str = "endpoints"
    leave_out: tuple[str, ...] | None = None
    on_error: Literal["quarantine", "fail"] = "quarantine"
    staging: str | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetPlan:
    """Everything that a worker needs for any shard or split of one dataset; small, and the same for all of them.

    Attributes:
        output: Folder ``ROOT/<dataset>/<version>``.
        camera: Feature whose frames are stored.
        features: Features that the index gets.
        language: Features that the instruction is read from; the first that is not empty wins.
        action: Parts of the derived column ``action``.
        state: Parts of the derived column ``state``.
        staging: Local folder for files on their way to an object store, None for the system's.
    """

    dataset: str
    version: str
    output: str
    camera: Feature
    channels: Literal["rgb", "bgr"]
    policy: FramePolicy
    offset: int
    frames: str
    features: tuple[Feature, ...]
    language: tuple[Feature, ...]
    language_encoding: Literal["text", "utf8_codes"]
    action: tuple[Part, ...]
    state: tuple[Part, ...]
    robot: str
    robot_feature: Feature | None
    on_error: Literal["quarantine", "fail"]
    staging: str | None = None


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """One source shard to convert.

    Attributes:
        spans: Ranges [start, stop) of record numbers that are wanted.
        entry: Entry of the manifest, if the shard of a complete dataset is converted again.
    """

    dataset: str
    shard: SourceShard
    spans: tuple[Span, ...]
    entry: ShardEntry | None = None

    @property
    def stem(self) -> str:
        """What the names of the output files start with."""
        return shard_stem(self.shard.split, self.shard.index, self.shard.count)

    @property
    def name(self) -> str:
        """The stem."""
        return self.stem

    @property
    def episodes(self) -> int:
        """Number of records that are wanted."""
        return sum(stop - start for start, stop in self.spans)

    @property
    def size(self) -> int:
        """Estimated bytes of the source that they take."""
        return self.shard.bytes * self.episodes // max(self.shard.records, 1)


@dataclass(frozen=True, kw_only=True)
class SplitJob:
    """One split whose index is to be merged.

    Attributes:
        shards: Numbers of its converted shards, in order.
        count: Number of the source's shards.
    """

    dataset: str
    split: str
    shards: tuple[int, ...]
    count: int

    @property
    def stems(self) -> list[str]:
        """Return the stems of its converted shards, in order."""
        return [shard_stem(self.split, index, self.count) for index in self.shards]

    @property
    def name(self) -> str:
        """The name of the split."""
        return self.split

    @property
    def size(self) -> int:
        """Number of its shards."""
        return len(self.shards)


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """One dataset to convert: the plan, its shards, and what the manifest will say of them.

    parameters: all that changes the output; a conversion into a place with other parameters is refused.
    """

    spec: DatasetSpec
    source: SourceDataset
    plan: DatasetPlan
    parameters: Mapping[str, Any]
    jobs: tuple[ShardJob, ...] = field(repr=False)

    @property
    def warnings(self) -> list[str]:
        """What the user should know before it is converted."""
        plan = self.plan
        found = [self.spec.warning] if self.spec.warning else []
        offsets = frame_offsets(plan.frames, plan.offset)
        if len(set(offsets)) < len(offsets):
            found.append(
                f"--frames {plan.frames} at offset {plan.offset} stores some frames of a record twice: {len(offsets)} "
                f"frames of {plan.offset + 1} steps"
            )
        return found

    @property
    def splits(self) -> list[str]:
        """The splits that are converted, in the order of their jobs."""
        return list(dict.fromkeys(job.shard.split for job in self.jobs))

    def split_jobs(self, split: str) -> list[ShardJob]:
        """Return the shards of a split, in the order of the source."""
        return [job for job in self.jobs if job.shard.split == split]


def check_rates(selection: Sequence[Selected], offset: str | None) -> None:
    """Raise UsageError if an offset for all datasets is in seconds and some have no fixed rate; names all of them."""
    if offset is None or not is_seconds(offset):
        return
    without = [selected.spec.name for selected in selection if selected.spec.control_frequency is None]
    if without:
        names = ",".join(without)
        raise UsageError(
            f"--offset {offset} is in seconds, but these have no fixed rate: {names}; give --offset in steps, or "
            f"convert them apart (--datasets {names} --offset STEPS) and the others by their names"
        )


def plan_conversion(selected: Selected, source: SourceDataset, options: Options, *, output: str) -> Conversion:
    """Plan the conversion of one dataset; reads metadata and file sizes only.

    Args:
        output: the folder ``ROOT/<dataset>/<version>``.

    Raises:
        UsageError: options, registry entry and features do not fit together; says which key, and the closest.
    """
    spec = selected.spec
    by_name = {_notation(feature): feature for feature in source.features.values()}
    leave_out = spec.leave_out if options.leave_out is None else options.leave_out
    left = spec.model_copy(update={"leave_out": leave_out})
    camera = spec.camera(options.camera) if options.camera else spec.primary
    camera_feature = _camera_feature(spec, camera, by_name, source)
    language = _language_features(spec.instruction, spec, by_name, source)
    for part in (*spec.action, *spec.state):
        _check_part(part.path, part.dims, part.select, spec, by_name, source)
        if left.leaves_out(part.path):
            raise UsageError(
                f"{spec.name}: {part.path} is part of action or state, so it cannot be left out "
                f"({', '.join(leave_out)})"
            )
    if spec.action_text:
        _find(spec.action_text, "action_text", spec, by_name, source)
    if spec.success_path:
        _find(spec.success_path, "success_path", spec, by_name, source)
    robot_feature = _find(spec.robot_path, "robot_path", spec, by_name, source) if spec.robot_path else None
    codes = spec.instruction is not None and spec.instruction.encoding == "utf8_codes"
    cameras = {other.path for other in spec.cameras.values()}
    features = tuple(
        feature
        for name, feature in by_name.items()
        if feature.kind != "image"
        and name not in cameras
        and not left.leaves_out(name)
        and not (codes and feature in language)
    )
    _check_sizes((*features, *language), spec)
    offset = offset_in_steps(
        options.offset if options.offset is not None else selected.offset, spec.control_frequency, dataset=spec.name
    )
    plan = DatasetPlan(
        dataset=spec.name,
        version=spec.version,
        output=output,
        camera=camera_feature,
        channels=camera.channels,
        policy=options.policy,
        offset=offset,
        frames=check_frames(options.frames),
        features=features,
        language=language,
        language_encoding=spec.instruction.encoding if spec.instruction else "text",
        action=spec.action,
        state=spec.state,
        robot=spec.robot or "",
        robot_feature=robot_feature,
        on_error=options.on_error,
        staging=options.staging,
    )
    return Conversion(
        spec=spec,
        source=source,
        plan=plan,
        parameters=_parameters(plan, options),
        jobs=tuple(_jobs(spec.name, source, options)),
    )


def _jobs(dataset: str, source: SourceDataset, options: Options) -> Sequence[ShardJob]:
    if options.episodes is None:
        return [
            ShardJob(dataset=dataset, shard=shard, spans=((0, shard.records),))
            for split in source.select_splits(options.splits)
            for shard in source.shards(split)
        ]
    chosen = source.select_episodes(options.episodes)
    return [
        ShardJob(dataset=dataset, shard=shard, spans=spans[shard.index])
        for split, spans in chosen.items()
        for shard in source.shards(split)
        if shard.index in spans
    ]


def _parameters(plan: DatasetPlan, options: Options) -> dict[str, Any]:
    size = plan.policy.size
    return {
        "format_version": FORMAT_VERSION,
        "camera": plan.camera.name,
        "channels": plan.channels,
        "image_size": f"{size[0]}x{size[1]}" if size else "native",
        "resize": plan.policy.resize,
        "quality": plan.policy.quality,
        "offset": plan.offset,
        "frames": plan.frames,
        "frame_offsets": list(frame_offsets(plan.frames, plan.offset)),
        "episodes": options.episodes,
        "columns": [_notation(feature) for feature in plan.features],
        "language": [_notation(feature) for feature in plan.language],
        "robot": plan.robot_feature.name if plan.robot_feature else plan.robot,
    }


def _notation(feature: Feature) -> str:
    """The registry's notation of a path: a leading slash marks episode features."""
    return feature.name if feature.level == "step" else f"/{feature.path}"


def _camera_feature(
    spec: DatasetSpec, camera: Camera, by_name: Mapping[str, Feature], source: SourceDataset
) -> Feature:
    feature = _find(camera.path, "camera", spec, by_name, source)
    if feature.kind == "image" and feature.dtype == "uint8" and not feature.sequences:
        return feature
    if feature.dtype == "uint8" and len(feature.shape) in (2, 3) and feature.encoding == "none":
        return feature
    raise UsageError(
        f"{spec.name}: camera {camera.path} is {feature.dtype} {feature.shape}, not a picture; "
        f"pictures are {', '.join(_pictures(by_name))}"
    )


def _pictures(by_name: Mapping[str, Feature]) -> list[str]:
    return [
        name
        for name, feature in by_name.items()
        if feature.kind == "image" and feature.dtype == "uint8" and feature.level == "step"
    ]


def _language_features(
    instruction: Instruction | None, spec: DatasetSpec, by_name: Mapping[str, Feature], source: SourceDataset
) -> tuple[Feature, ...]:
    if instruction is None:
        return ()
    found = tuple(
        _find(path, "instruction", spec, by_name, source) for path in (instruction.path, *instruction.alternatives)
    )
    for feature in found:
        is_text = feature.dtype == "string" and feature.size == 1 and not feature.sequences
        is_codes = feature.dtype.startswith(("int", "uint")) and len(feature.shape) == 1
        if not (is_text if instruction.encoding == "text" else is_codes):
            raise UsageError(
                f"{spec.name}: instruction {feature.name} is {feature.dtype} {feature.shape}, "
                f"which encoding {instruction.encoding} does not read"
            )
    return found


def _check_part(
    path: str,
    dims: int,
    select: tuple[int, ...] | None,
    spec: DatasetSpec,
    by_name: Mapping[str, Feature],
    source: SourceDataset,
) -> None:
    feature = _find(path, "action or state", spec, by_name, source)
    size = feature.size
    if feature.dtype == "string" or size is None or feature.sequences:
        raise UsageError(f"{spec.name}: {path} is {feature.dtype} {feature.shape}, not a vector of numbers")
    if (select is None and dims != size) or (select is not None and max(select) >= size):
        raise UsageError(
            f"{spec.name}: {path} has {size} values {feature.shape}; the registry takes "
            f"{f'values {list(select)}' if select else f'all {dims}'}"
        )


def _check_sizes(features: Iterable[Feature], spec: DatasetSpec) -> None:
    for feature in features:
        if not feature.size:
            raise UsageError(
                f"{spec.name}: {_notation(feature)} has the shape {feature.shape}; columns need a fixed size of 1 or "
                "more. Leave it out (--leave-out, or leave_out in the registry)"
            )


def _find(path: str, role: str, spec: DatasetSpec, by_name: Mapping[str, Feature], source: SourceDataset) -> Feature:
    if path in by_name:
        return by_name[path]
    last = path.rsplit("/", 1)[-1]
    same = [name for name in by_name if name.rsplit("/", 1)[-1] == last] or difflib.get_close_matches(path, by_name, 1)
    hint = f"did you mean {same[0]!r}?" if same else closest(path, by_name, noun="features")
    raise SourceError(f"{spec.name}: {role} {path!r} is not in {source.path}/features.json; {hint}")
