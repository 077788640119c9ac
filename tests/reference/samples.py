"""The samples of an epoch, by slow loops over the episodes of the sources: windows, holes, splits and choices."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from tests.reference.source import Episode, Source


class Refused(Exception):
    """A loader with these arguments has to be refused."""


class Sample(NamedTuple):
    """A sample of a member: t of an episode, which counts in its split."""

    split: str
    episode: int
    step: int


class Reach(NamedTuple):
    """Steps that a frame may be of, as distances from t; or the name of another frame, ``goal`` or ``last``."""

    low: int
    high: int
    name: str = ""


@dataclass(frozen=True)
class Member:
    """A member of a mixture: a source as it lies in a root, with its split and choices.

    where: its own conditions; of a settled member all that it has to fulfil. own: entries of a case that it replaces,
    its columns as a list.
    """

    name: str
    source: Source
    root: str
    split: str
    where: Sequence[tuple[str, str, Any]] = ()
    episodes: Any = None
    keep_ranges: Mapping[str, Any] | None = None
    min_future_actions: int = 1
    on_missing_column: str = "error"
    weight: Any = 1
    own: Mapping[str, Any] = field(default_factory=dict)

    def of(self, case: Mapping[str, Any], name: str) -> Any:
        """Return an entry of a case for this member."""
        if name.endswith("_columns") and name not in self.own:
            return (case[name] or {}).get(self.name)
        return self.own.get(name, case[name])

    @property
    def is_pairs(self) -> bool:
        return self.root in ("pairs", "clips")

    @property
    def tolerance(self) -> int:
        """Levels by which a frame may differ from its picture, for another decoder and for what the codec loses."""
        return 16 if self.root in ("h264", "av1", "raw_and_h264") else 2

    def find(self, sample: Sample) -> Episode:
        return self.source.episodes(sample.split)[sample.episode]

    def camera(self, requested: str | None) -> str | None:
        """Return the stored camera of a name or role; for None the primary one, or else the first."""
        stored = self.source.stored_cameras(self.root)
        if requested is None:
            return self.camera("primary") or stored[0]
        if requested in stored:
            return requested
        return next((camera for camera in stored if self.source.cameras[camera] == requested), None)


def reaches(case: Mapping[str, Any], member: Member) -> list[Reach]:
    source, frames = member.source, member.of(case, "steps")
    held = {"pairs": {0, source.offset}, "clips": set(range(source.offset + 1))}.get(member.root)
    if frames is None:
        return [Reach(step, step) for step in sorted(held or {0, source.offset})]
    frame_reaches = [_reach(frame, source) for frame in frames]
    times = {Fraction(0)} | {Fraction(frame[:-1]) for frame in frames if isinstance(frame, str) and frame.endswith("s")}
    if len(times) > 1 and len({at(f"{float(time)}s", source) for time in times}) < len(times):
        raise Refused("two times at one step")
    if held is not None:
        for low, high, name in frame_reaches:
            if name or not set(range(low, high + 1)) <= held:
                raise Refused(f"pairs hold {held}")
    return frame_reaches


def _reach(frame: int | str, source: Source) -> Reach:
    if isinstance(frame, int):
        return Reach(frame, frame)
    if frame == "offset":
        return Reach(source.offset, source.offset)
    if frame == "last" or frame.startswith("goal"):
        return Reach(0, 0, frame.partition(":")[0])
    if frame.endswith("s"):
        steps = at(frame, source)
        if steps == 0 and Fraction(frame[:-1]) != 0:
            raise Refused("seconds that are no step")
        return Reach(steps, steps)
    low, high = frame.split("..")
    return Reach(int(low), int(high))


def at(seconds: str, source: Source) -> int:
    """Return the nearest step of a time, by the source's rate."""
    if source.rate is None:
        raise Refused("seconds without a rate")
    return math.floor(Fraction(seconds[:-1]) * Fraction(source.rate) + Fraction(1, 2))


def weights_of(member: Member, epoch: Sequence[Sample], case: Mapping[str, Any]) -> list[Fraction] | None:
    """Return the weight of each sample of an epoch, None if all are the same."""
    sample_weights = case["sample_weights"]
    column = sample_weights.get(member.name) if isinstance(sample_weights, Mapping) else sample_weights
    if sample_weights is not None and case["samples_per_episode"]:
        raise Refused("two rules of drawing")
    if column is None:
        return None
    weights = [value_of(member, member.find(sample), sample.step, column) for sample in epoch]
    if any(value is None or not 0 <= value < math.inf for value in weights) or not any(weights):
        raise Refused("weights that cannot be drawn by")
    return [Fraction(float(value)) for value in weights]


def settle(members: Sequence[Member], case: Mapping[str, Any]) -> list[Member]:
    """Return the members that stay, with the conditions of ``case`` but for those on columns that a member lacks."""
    where = case["where"] or ()
    settled, having, lacking, dropped = [], set(), set(), set()
    for member in members:
        conditions = [*(where.get(member.name, ()) if isinstance(where, Mapping) else where), *member.where]
        kept = [condition for condition in conditions if has_column(member, condition[0])]
        having |= {column for column, _, _ in kept}
        lacking |= (absent := {column for column, _, _ in conditions} - {column for column, _, _ in kept})
        policy = member.on_missing_column if case["on_missing_column"] == "error" else case["on_missing_column"]
        if absent and policy == "error":
            raise Refused(f"no column {absent}")
        if absent and policy == "drop":
            dropped.add(member.name)
        settled.append(replace(member, where=kept))
    if lacking - having:
        raise Refused(f"no column {lacking}")
    settled = [member for member in settled if member.name not in dropped]
    if not settled:
        raise Refused("each member lacks a column")
    return settled


def has_column(member: Member, column: str) -> bool:
    """Return whether a condition finds a column in the tables of a member."""
    if column == "offset":
        return member.is_pairs
    name, episode = column.removeprefix("steps."), member.source.splits["train"][0][0]
    return name in episode.steps or name in episode.facts


def of_split(expression: str, source: Source) -> list[tuple[str, int]]:
    """Return the episodes that a split expression names, in order: split and number."""
    episodes = []
    for term in expression.split("+"):
        name, _, slice_ = term.partition("[")
        if name not in source.splits:
            raise Refused(f"no split {name}")
        lengths = [len(shard) for shard in source.splits[name]]
        total = sum(lengths)
        start, stop = 0, total
        if slice_:
            first, _, last = slice_.rstrip("]").partition(":")
            start = _place(first, lengths) if first else 0
            stop = _place(last, lengths) if last else total
        if max(start, stop) > total or start > stop:
            raise Refused("a slice that TFDS misreads")
        episodes += [(name, episode) for episode in range(start, stop)]
    return episodes


def _place(text: str, lengths: list[int]) -> int:
    total = sum(lengths)
    if text.endswith("shard"):
        return sum(lengths[: int(text[:-5])])
    bound = round(float(text[:-1]) * total / 100) if text.endswith("%") else int(text)
    return bound + total if bound < 0 else bound


def of_epoch(member: Member, case: Mapping[str, Any]) -> list[Sample]:
    """Return the samples of an epoch of a member in storage order, each as often as its split names its episode."""
    window = reaches(case, member)
    cameras = loaded_cameras(member, case)
    samples = []
    for split, number in of_split(member.split, member.source):
        episode = member.source.episodes(split)[number]
        for t in range(stored_length(member, episode)):
            sample = Sample(split, number, t)
            is_whole = _is_whole(member, episode, t, window, cameras, case["edges"])
            if is_whole and _has_actions(member, episode, t, case) and _is_chosen(member, sample, case):
                samples.append(sample)
    return samples


class Request(NamedTuple):
    """A camera of a batch: the ending of its keys, its name or role, and its size if it is resized."""

    suffix: str
    camera: str | None
    size: tuple[int, int] | None

    @property
    def is_depth(self) -> bool:
        return self.camera in ("far", "depth/primary")


def requests(case: Mapping[str, Any]) -> list[Request]:
    cameras, sizes = case["cameras"], case["size"]
    if cameras is None or isinstance(cameras, str):
        size = sizes.get(cameras or "primary") if isinstance(sizes, Mapping) else sizes
        return [Request("", cameras, size)]
    by_key = cameras if isinstance(cameras, Mapping) else {camera: camera for camera in cameras}
    return [
        Request(f"/{key.removeprefix('depth/')}", camera, sizes.get(key) if isinstance(sizes, Mapping) else sizes)
        for key, camera in by_key.items()
    ]


def loaded_cameras(member: Member, case: Mapping[str, Any]) -> list[str]:
    cameras = [member.camera(request.camera) for request in requests(case)]
    return [camera for camera in cameras if camera is not None]


def stored_length(member: Member, episode: Episode) -> int:
    """Return the steps that a root has of an episode: none if no stored camera has a picture."""
    stored = member.source.stored_cameras(member.root)
    return episode.length if any(any(episode.pictures[camera]) for camera in stored) else 0


def _is_whole(member: Member, episode: Episode, t: int, window: list[Reach], cameras: list[str], edges: str) -> bool:
    last = episode.length - 1
    if member.is_pairs:
        (camera,) = member.source.stored_cameras(member.root)
        offset = member.source.offset
        held = range(offset + 1) if member.root == "clips" else (0, offset)
        return t + offset <= last and all(episode.pictures[camera][t + step] for step in held)
    if edges == "repeat":
        return True
    for low, high, name in window:
        if t + low < 0 or t + high > last or (name == "goal" and t == last):
            return False
        fixed = last if name == "last" else t + low if low == high and not name else None
        # A random frame may meet a hole.
        if fixed is not None and not all(episode.pictures[camera][fixed] for camera in cameras):
            return False
    return True


def _has_actions(member: Member, episode: Episode, t: int, case: Mapping[str, Any]) -> bool:
    has_space = "action" in case["vectors"] and case["action_space"] and member.of(case, "action_columns") is None
    first, last = member.source.without if has_space else (0, 0)
    num_actions = max(case["min_future_actions"], member.min_future_actions)
    stride = member.of(case, "action_stride") if "action" in case["vectors"] else 1
    if isinstance(stride, str):
        stride = at(stride, member.source)
    return t >= first and t + stride * (num_actions - 1) < episode.length - last


def _is_chosen(member: Member, sample: Sample, case: Mapping[str, Any]) -> bool:
    episode = member.find(sample)
    if not all(_holds(member, episode, sample.step, *condition) for condition in member.where):
        return False
    names = [episode.facts["episode_id"]]
    if "episode_metadata/recording_folderpath" in episode.facts:
        folder, path = (episode.facts[f"episode_metadata/{fact}"] for fact in ("recording_folderpath", "file_path"))
        names.append(f"{folder}--{path}")
    for listed in ((case["episodes"] or {}).get(member.name), member.episodes):
        if listed is not None:
            keeps = not (isinstance(listed, Mapping) and "leave_out" in listed)
            patterns = next(iter(listed.values())) if isinstance(listed, Mapping) else listed
            if any(_is_like(name, pattern) for name in names for pattern in patterns) != keeps:
                return False
    for ranges in ((case["keep_ranges"] or {}).get(member.name), member.keep_ranges):
        if ranges is not None:
            mine = [edges for pattern, edges in ranges.items() if any(_is_like(name, pattern) for name in names)]
            if not any(start <= sample.step < stop for edges in mine for start, stop in edges):
                return False
    return True


def _is_like(text: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "in": lambda a, b: any(a == item for item in b),
    "not in": lambda a, b: all(a != item for item in b),
    "contains": lambda a, b: b in a,
    "matches": lambda a, b: re.search(b, a) is not None,
}


def _holds(member: Member, episode: Episode, t: int, column: str, operator: str, value: Any) -> bool:
    stored = value_of(member, episode, t, column)
    if stored is None or stored != stored:
        return False
    if isinstance(stored, np.float32):
        value = [np.float32(item) for item in value] if isinstance(value, list) else np.float32(value)
    return bool(_HOLDS[operator](stored, value))


def value_of(member: Member, episode: Episode, t: int, column: str) -> Any:
    """Return the value of a column of the index at a step, None if it is missing."""
    table, _, column_name = column.partition(".")
    table, name = (table, column_name) if column_name else ("", column)
    if table == "records" or name in ("offset", "camera"):
        return {"offset": member.source.offset if member.is_pairs else 0, "camera": 0, "step": t}[name]
    if table != "steps" and name in episode.facts:
        return episode.facts[name]
    return episode.steps[name][t]
