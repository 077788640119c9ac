"""Random arguments of ``make_loader``, the same for the same number."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stream import Frames, Select, Vector
from tests.reference.samples import Member, of_split
from tests.reference.source import CODEC_ROOTS, Source

_FRAMES: list[int | str] = [*range(-3, 4), "offset", "goal", "last", "0..2", "-2..1", "1..1", "0.2s", "-0.4s", "0.1s"]
_TWO_KEYS: dict[str, str] = {"large": "primary", "small": "primary"}
_CAMERAS = (
    *(None, None, "primary", ["primary"], ["primary", "wrist"], ["wrist", "primary"], ["hand", "side", "primary"]),
    *("depth/primary", ["primary", "depth/primary"], ["far", "hand", "image"]),
    *(_TWO_KEYS, ["image", "primary"], {"one": "hand", "other": "wrist", "third": "primary"}),
    {"near": "depth/primary", "again": "far", "colour": "primary"},
)
_SIZES = ((8, 8), (16, 16), (6, 4), (31, 17), (12, 21))
_SPLITS = ("train", "train", "train[:50%]", "train[40%:]", "train[1:-1]", "train[1shard:]", "train[:2]+train[3:]")
_CONDITIONS: list[tuple[str, str, Any]] = [
    *(("step", ">=", 2), ("step", "not in", [0, 3]), ("steps.step", "in", [1, 2, 4]), ("num_steps", "<=", 7)),
    *(("reward", ">", 0.1), ("reward", "==", 0.1), ("reward", "!=", 0.1), ("reward", "not in", [0.1, -0.2])),
    *(("reward", "<=", 0.2), ("count", "==", (1 << 53) + 1), ("count", "in", [1 << 53, (1 << 53) + 3])),
    *(("is_last", "==", False), ("success", "==", True), ("success", "!=", True)),
    *(("language", "contains", "drawer"), ("language", "==", "wipe the table"), ("language", "!=", "")),
    ("language", "not in", ["open the drawer", "wipe the table"]),
    *(("language", "matches", "^(open|close)|é"), ("note", "in", ["open the drawer", ""])),
    *(("note", "!=", "close the drawer"), ("note", "matches", "e$")),
    ("episode_metadata/file_path", "contains", "failure"),
    *(("source_file", "matches", "00000-of"), ("offset", ">=", 2)),
    ("episode_metadata/recording_folderpath", "contains", "success"),
]
_COLUMNS = (
    *("reward", "count", "is_last", "note", "three", "success", "num_steps", "observation/state"),
    *("episode_metadata/file_path", "records.camera", "records.offset", "steps.step"),
    "episode_metadata/recording_folderpath",
)
_PATTERNS = ("*-train*", "alpha-*__1", "*__0", "*00001-of-00002__*", "*-tra_n*", "gs://*--*", "*success*--*")


_CLIPS: Sequence[Any] = (
    *([0, 1, 2], [-2, 0, 1], [0, 1, 4], [1, 2, 3], [-3, -1], [0, "offset"], [-1, 0, "offset"], None),
    *(["-0.2s", "0s", "0.2s", "0.6s"], ["0s", "0.4s"], ["0.2s", "0.8s"], [-1, "0.4s"]),
    *([2, 0], [0, 0, 1], [1], [0, "goal"], ["0..2", 3]),
)
"""Frames of which the last ones have no intervals."""
_FRAME_FIELDS = ("cameras", "size", "fit", "filter", "edges", "times", "history_dropout")
_SELECT_FIELDS = ("where", "episodes", "keep_ranges", "min_future_actions", "on_missing_column")
_VECTOR_FIELDS = ("steps", "start", "stride", "edges", "space", "columns")
PLAIN: dict[str, Any] = {
    **{"seed": 0, "shuffle": "global", "samples_per_episode": 0, "num_epochs": None, "sample_weights": None},
    **{"steps": None, "cameras": None, "size": None, "fit": "stretch", "filter": "area", "edges": "drop"},
    **{"times": False, "vectors": ("action", "state"), "reduce": None, "between": None, "on_unmapped": "mask"},
    **{"action_steps": None, "action_start": 0, "action_space": None, "action_columns": None},
    **{"state_steps": 1, "state_start": 0, "state_space": None, "state_columns": None},
    **{"action_stride": 1, "state_stride": 1, "action_edges": "mask", "state_edges": "mask"},
    **{"where": None, "episodes": None, "keep_ranges": None, "min_future_actions": 1, "on_missing_column": "error"},
    **{"columns": [], "language": "language"},
    **{"history_dropout": 0.0, "state_dropout": 0.0, "min_delay": 0, "max_delay": 0},
}
"""The arguments of a loader by default, and the fields of its objects, all side by side."""


@dataclass(frozen=True)
class Configuration:
    """Arguments of a loader, and the members that its mixture has."""

    number: int
    root: str
    members: tuple[Member, ...]
    phases: tuple[int, ...]
    case: dict[str, Any]
    batch_size: int
    ranks: int = 2

    @property
    def early(self) -> list[str]:
        """The members of the first phase; the last one comes later."""
        return [member.name for member in self.members][: max(1, len(self.members) - 1)]

    def mixture(self, folder: Path) -> Any:
        entries: dict[str, Any] = {}
        for member in self.members:
            fields: dict[str, Any] = {"dataset": member.source.name, "weight": member.weight, "split": member.split}
            if select := {name: value for name in _SELECT_FIELDS if (value := getattr(member, name))}:
                fields["select"] = Select(**select) if self.number % 2 else select
            for name, value in member.own.items():
                key, _, field = ("frames_" * (name == "steps") + name).partition("_")
                fields.setdefault(key, {})[field] = value
            if member.root != self.root:
                fields["root"] = str(folder / member.root)
            entries[member.name] = fields
        if not self.phases:
            return entries
        early = {name: entry for name, entry in entries.items() if name in self.early}
        late = {name: {"weight": 1} | (entry if name not in early else {}) for name, entry in entries.items()}
        return [(self.phases[0], early), (None, late)]

    def arguments(self, folder: Path) -> dict[str, Any]:
        case = self.case
        taken = ("seed", "shuffle", "samples_per_episode", "num_epochs", "sample_weights", "columns", "language")
        arguments: dict[str, Any] = {name: case[name] for name in taken}
        for name in ("action", "state"):
            fields = {field: case[f"{name}_{field}"] for field in _VECTOR_FIELDS} | {"on_unmapped": case["on_unmapped"]}
            if name == "action":
                fields |= {name: case[name] for name in ("reduce", "between", "min_delay", "max_delay")}
            else:
                fields["dropout"] = case["state_dropout"]
            arguments[name] = Vector(**fields) if name in case["vectors"] else None
        return {
            **{"root": folder / self.root, "mixture": self.mixture(folder), "batch_size": self.batch_size},
            **arguments,
            "frames": Frames(case["steps"], **{name: case[name] for name in _FRAME_FIELDS}),
            "select": Select(**{name: case[name] for name in _SELECT_FIELDS}),
        }


def configuration(number: int, sources: Mapping[str, Source]) -> Configuration:
    draw = random.Random(number)
    root = draw.choice(("frames", "frames", "frames", "pairs", "clips", *CODEC_ROOTS))
    repeats = root not in ("pairs", "clips") and draw.random() < 0.4
    members = [
        _member(draw, member_number, sources, root, repeats) for member_number in range(draw.choice((1, 2, 2, 3)))
    ]
    has_rates = all(member.source.rate for member in members)
    has_frames = all(not member.is_pairs for member in members)
    cameras = draw.choice(_CAMERAS if has_frames else (None, None, "primary", ["primary"], _TWO_KEYS))
    vectors = draw.choice((("action", "state"),) * 8 + (("state",), ()))
    has_all = len(vectors) == 2
    reduce = draw.choice((None,) * 6 + ("first", "mean", "sum"))
    case: dict[str, Any] = PLAIN | {
        "seed": draw.randrange(1 << 40),
        "shuffle": draw.choice(("global", "global", "global", "block:3", "block:4", "none")),
        "samples_per_episode": draw.choice((0, 0, 0, 1, 2, 3)),
        "cameras": cameras,
        "steps": _frames(draw, has_frames, has_rates or draw.random() < 0.03),
        "edges": "repeat" if repeats else "drop",
        "vectors": vectors,
        "reduce": reduce,
        "action_start": draw.choice((0, 0, -2, -1, 1, 3)) if reduce is None else 0,
        "action_steps": draw.choice((None, None, 1, 2, 4, 12)),
        "state_start": draw.choice((0, 0, -2, 1)),
        "state_steps": draw.choice((1, 1, 2, 3)),
        "action_space": "joint" if reduce != "sum" and draw.random() < 0.2 else None,
        "state_space": "joint" if draw.random() < 0.2 else None,
        "num_epochs": draw.choice((None, None, None, 1, 2)),
        "min_future_actions": draw.choice((1, 1, 1, 2, 3)),
        "on_missing_column": draw.choice(("error", "keep", "drop")),
        "columns": draw.sample(_COLUMNS, draw.randrange(4)) if has_all else [],
        "where": _conditions(draw, members, everywhere=True),
        "episodes": _by_member(draw, members, _episodes),
        "keep_ranges": _by_member(draw, members, _ranges),
    }
    _add_rare_arguments(draw, case, members, has_rates=has_rates)
    phases = (draw.randrange(1, 5),) if draw.random() < 0.15 and (not case["num_epochs"] or draw.random() < 0.1) else ()
    case |= _sizes(draw, cameras, is_needed=any(member.source.name == "delta" for member in members))
    batch_size = draw.choice((4, 6, 12))
    ranks = draw.choice([ranks for ranks in (2, 2, 3, 4) if batch_size % ranks == 0])
    # What follows came later: the draws above stay those of before.
    _add_clips(draw, case, has_frames=has_frames, has_rates=has_rates)
    members = [_with_own(draw, member, case) for member in members]
    _add_dropout(draw, case, members)
    members = _add_strides(draw, case, members, has_rates=has_rates)
    return Configuration(number, root, tuple(members), phases, case, batch_size, ranks)


def _add_rare_arguments(draw: random.Random, case: dict[str, Any], members: list[Member], *, has_rates: bool) -> None:
    """Add columns, weights and times in seconds to some cases."""
    if draw.random() < 0.2:
        case["action_columns"] = {members[0].name: [("action", [1, 0]), "count"]}
    if draw.random() < 0.2:
        case["state_columns"] = {members[-1].name: draw.choice((["reward"], [("action", [1]), "is_last"]))}
    case |= _drawn(draw, members, case)
    times_by_name = {"action_start": ("-0.2s", "0.4s"), "action_steps": ("0.6s", "0.01s"), "state_start": ("-0.4s",)}
    for name, times in times_by_name.items():
        if (has_rates or draw.random() < 0.03) and draw.random() < 0.1 and case["reduce"] is None:
            case[name] = draw.choice(times)


def _add_clips(draw: random.Random, case: dict[str, Any], *, has_frames: bool, has_rates: bool) -> None:
    """Add times of frames, actions between frames, and edges that pairs do not have, to some cases."""
    case["times"] = draw.random() < 0.3
    if not has_frames and draw.random() < 0.2:
        case["edges"] = "repeat"
    if "action" not in case["vectors"] or draw.random() > 0.3:
        return
    clips = [clip for clip in _CLIPS if has_rates or not any(str(frame).endswith("s") for frame in clip or ())]
    case["steps"] = draw.choice(clips if has_frames else (None, [0, "offset"], [0, "offset"], ["offset", 0]))
    case |= {"between": "frames", "action_steps": None, "action_start": 0}
    case["reduce"] = draw.choice((None, None, "first", "mean", "sum"))
    if case["reduce"] == "sum":
        case["action_space"] = None


def _with_own(draw: random.Random, member: Member, case: Mapping[str, Any]) -> Member:
    """Return a member that has some choices, frames and vectors of its own."""
    if draw.random() < 0.2:
        member = replace(member, min_future_actions=draw.choice((1, 2, 4)))
    if draw.random() < 0.3:
        member = replace(member, on_missing_column=draw.choice(("keep", "drop")))
    own: dict[str, Any] = {}
    if draw.random() < 0.1 and not case["between"]:
        own["steps"] = _frames(draw, not member.is_pairs, member.source.rate is not None) or [0]
    for name in case["vectors"]:
        if draw.random() < 0.1 and not case["between"]:
            own[f"{name}_steps"] = draw.choice((2, 3, 5))
        if draw.random() < 0.1 and not case["between"] and case["reduce"] is None:
            own[f"{name}_start"] = draw.choice((-3, 2))
        if draw.random() < 0.1:
            own[f"{name}_columns"] = draw.choice((["count", "reward"], [("action", [1])]))
    return replace(member, own=own)


def _add_dropout(draw: random.Random, case: dict[str, Any], members: Sequence[Member]) -> None:
    """Add dropout and delays to some cases."""
    if "state" in case["vectors"] and draw.random() < 0.3:
        case["state_dropout"] = draw.choice((0.2, 0.5, 1.0))
    has_history = any(str(frame).startswith("-") for frame in case["steps"] or ())
    if draw.random() < (0.5 if has_history else 0.03):
        case["history_dropout"] = draw.choice((0.2, 0.5, 1.0))
    starts = [case["action_start"], *(member.own.get("action_start") for member in members)]
    if "action" in case["vectors"] and not (case["reduce"] or case["between"] or any(starts)) and draw.random() < 0.8:
        case["min_delay"], case["max_delay"] = draw.choice(((0, 1), (0, 2), (1, 3), (2, 2), (0, "0.3s")))


def _add_strides(
    draw: random.Random, case: dict[str, Any], members: Sequence[Member], *, has_rates: bool
) -> list[Member]:
    """Add strides and repeated edges to vectors of some cases, and return members with some strides of their own."""
    strides = (2, 3, 5, *(("0.2s", "0.4s", "0.01s") if has_rates or draw.random() < 0.03 else ()))
    strided = []
    for name in case["vectors"]:
        if name == "action" and (case["reduce"] or case["between"]):
            continue
        if draw.random() < 0.4:
            case[f"{name}_stride"] = draw.choice(strides)
        if draw.random() < 0.2:
            case[f"{name}_edges"] = "repeat"
        strided.append(name)
    with_own = []
    for member in members:
        own = {f"{name}_stride": draw.choice((2, 4)) for name in strided if draw.random() < 0.1}
        with_own.append(replace(member, own={**member.own, **own}))
    return with_own


def _sizes(draw: random.Random, cameras: Any, *, is_needed: bool) -> dict[str, Any]:
    """Return the sizes of all cameras, or of some; mostly where frames of one camera have several sizes."""
    if draw.random() > (0.9 if is_needed else 0.3):
        return {}
    keys = [cameras or "primary"] if cameras is None or isinstance(cameras, str) else list(cameras)
    chosen = draw.sample(keys, draw.randrange(1, len(keys) + 1))
    by_key = {key: draw.choice(_SIZES) for key in chosen}
    return {
        "size": draw.choice((by_key, draw.choice(_SIZES))),
        "fit": draw.choice(("stretch", "stretch", "pad")),
        "filter": draw.choice(("area", "area", "lanczos", "bilinear")),
    }


def _drawn(draw: random.Random, members: Sequence[Member], case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for weights, language and columns that samples are drawn by."""
    case_values: dict[str, Any] = {"sample_weights": None, "language": "language"}
    if draw.random() < 0.35:
        column = draw.choice(("weight",) * 6 + ("steps.weight", "num_steps", "step", "reward"))
        case_values["sample_weights"] = draw.choice((column, {members[-1].name: column}))
        if draw.random() < 0.9:
            case_values["samples_per_episode"] = 0
    if len(case["vectors"]) == 2:
        case_values["language"] = draw.choice(("language", "language", "note", ["note", "language"]))
    if not case["vectors"]:
        case_values["language"] = None
    if case["steps"] and "goal" in case["steps"] and draw.random() < 0.5:
        case_values["steps"] = ["goal:geometric:0.7" if frame == "goal" else frame for frame in case["steps"]]
    return case_values


def _member(draw: random.Random, member_number: int, sources: Mapping[str, Source], root: str, repeats: bool) -> Member:
    source = sources[draw.choice(sorted(sources))]
    roots = [root] * 6 + (["frames"] if repeats else ["frames", "pairs"])
    if root not in ("pairs", "clips"):
        roots += draw.sample(CODEC_ROOTS, 2)
    if source.name != "beta" and root == "frames" and draw.random() < 0.3:
        roots.append("wrists")
    has_choices = draw.random() < 0.3
    member = Member(
        f"{source.name}_{'abc'[member_number]}",
        source,
        draw.choice(roots),
        draw.choice((*_SPLITS, "val", "train+val") if "val" in source.splits else _SPLITS),
        weight=draw.choice((1, 1, 2.5, 0.3, "size", {"size_power": 0.5, "factor": 2})),
    )
    if not has_choices:
        return member
    return replace(
        member,
        where=_conditions(draw, [member], everywhere=False),
        episodes=_episodes(draw, member) if draw.random() < 0.3 else None,
        keep_ranges=_ranges(draw, member) if draw.random() < 0.3 else None,
    )


def _frames(draw: random.Random, has_frames: bool, has_rates: bool) -> list[int | str] | None:
    if draw.random() < 0.25:
        return None
    if not has_frames:
        held = (0, 0, "offset", "offset", "0..0", *(("0..1", 1, "0.2s") if draw.random() < 0.15 else ()))
        return [draw.choice(held) for _ in range(draw.randrange(1, 3))]
    chosen = _FRAMES if has_rates else [frame for frame in _FRAMES if not str(frame).endswith("s")]
    return [draw.choice(chosen) for _ in range(draw.randrange(1, 5))]


def _conditions(draw: random.Random, members: Sequence[Member], *, everywhere: bool) -> Any:
    if draw.random() < (0.6 if everywhere else 0):
        return None
    conditions = draw.sample(_CONDITIONS, draw.choice((1, 1, 2)))
    if everywhere and draw.random() < 0.4:
        return {members[0].name: conditions}
    return conditions


def _by_member(draw: random.Random, members: Sequence[Member], make: Any) -> dict[str, Any] | None:
    return {member.name: make(draw, member) for member in members[:1]} if draw.random() < 0.12 else None


def _names(draw: random.Random, member: Member) -> list[str]:
    available = [
        member.source.episodes(split)[number].facts["episode_id"]
        for split, number in of_split(member.split, member.source)
    ]
    return draw.sample(available, 2) + draw.sample(_PATTERNS, draw.randrange(3))


def _episodes(draw: random.Random, member: Member) -> Any:
    names = _names(draw, member)
    return draw.choice((names, {"keep": names}, {"leave_out": names}))


def _ranges(draw: random.Random, member: Member) -> dict[str, list[list[int]]]:
    ranges = {}
    for name in [*_names(draw, member), *_names(draw, member)]:
        edges = sorted(draw.sample(range(12), 4))
        ranges[name] = [edges[:2], edges[2:]][: draw.randrange(1, 3)]
    return ranges
