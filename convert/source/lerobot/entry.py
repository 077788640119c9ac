"""The registry entry that a LeRobot dataset makes of itself: cameras with roles, rate, robot, action and state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from convert.source.describe import describe_cameras, describe_features, describe_parts
from convert.source.features import Feature
from convert.source.lerobot.info import ANNOTATION, TASK, Info

_VECTORS = {"action": ("action", "actions"), "state": ("observation.state", "observation.states", "state")}
"""Features of each vector, as LeRobot, AgiBot and openpi's converters name them; the first that exists is taken."""
_DESCRIPTIONS = ("task_description", "language_instruction", "instruction", "coarse_action")
"""Last parts of the names of annotations that are instructions; others say such as whether a step is valid."""
_KEPT_BY_INDEX = ("index", "frame_index", "episode_index")
"""Counters that the index has as steps and episodes."""


def describe(
    info: Info, features: Mapping[str, Feature], *, name: str, lengths: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Return the fields of a registry entry, as YAML would have them.

    The meaning of numbers stays open: every part of action and state has quantity ``other``, to be declared in a file
    for ``--config``.

    Args:
        name: Name of the dataset for people.
        lengths: Count of the steps of each episode, by split.
    """
    depth = {path: info.depth_unit(path) for path in info.cameras if info.is_depth(path)}
    cameras = describe_cameras({path: info.features[path].size for path in info.cameras}, depth)
    for camera in cameras.values():
        camera["storage"] = "raw" if info.features[camera["path"]].dtype == "video" else "undeclared"
    steps = [length for split in lengths.values() for length in split]
    entry = describe_features(features, name=name, splits={}, lengths=steps) | {
        "version": f"{info.codebase_version.removeprefix('v')}.0",
        "description": f"LeRobot dataset {name}, format {info.codebase_version}.",
        "cameras": cameras,
        **{
            vector: next(filter(None, (list(_parts(features, info, key)) for key in keys)), [])
            for vector, keys in _VECTORS.items()
        },
        "control_frequency": info.fps,
        "splits": {split: len(found) for split, found in lengths.items()},
        "leave_out": ["*language_embedding", *(key for key in _KEPT_BY_INDEX if key in info.features)],
    }
    entry.pop("instruction", None)
    by_last = {name.rpartition(".")[2]: name for name in reversed(info.features) if name.startswith(ANNOTATION)}
    described = [by_last[last] for last in _DESCRIPTIONS if last in by_last]
    for path in (*described, TASK):
        if f"steps/{path}" in features and features[f"steps/{path}"].dtype == "string":
            entry["instruction"] = {"path": path}
            break
    if info.robot_type:
        entry["robot"] = info.robot_type
    return entry


def _parts(features: Mapping[str, Feature], info: Info, key: str) -> Iterator[dict[str, Any]]:
    """Yield the parts of a vector: the feature of that name, or those whose names begin with it and a dot."""
    paths = [key] if f"steps/{key}" in features else [path for path in info.features if path.startswith(f"{key}.")]
    for part in describe_parts({each.name: each for each in features.values()}, paths):
        if names := info.features[part["path"]].value_names:
            part["names"] = list(names)
        yield part
