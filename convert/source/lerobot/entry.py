"""The registry entry that a LeRobot dataset makes of itself: cameras with roles, rate, robot, action and state."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from convert.source.features import Feature
from convert.source.lerobot.info import TASK, Info

_WRIST = re.compile(r"wrist|hand|gripper")
_VECTORS = {"action": ("action", "actions"), "state": ("observation.state", "state")}
"""Features of each vector, the second as openpi's own converters name it; the first that exists is taken."""
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
    steps = [length for split in lengths.values() for length in split]
    counters = [key for key in _KEPT_BY_INDEX if key in info.features]
    entry: dict[str, Any] = {
        "version": f"{info.codebase_version.removeprefix('v')}.0",
        "description": f"LeRobot dataset {name}, format {info.codebase_version}.",
        "cameras": {
            camera: {
                "path": path,
                "role": role,
                "storage": "raw" if info.features[path].dtype == "video" else "undeclared",
                "shape": list(info.features[path].size),
                **({"kind": "depth", "unit": info.depth_unit(path)} if info.is_depth(path) else {}),
            }
            for (camera, path), role in zip(camera_names(info).items(), camera_roles(info), strict=True)
        },
        **{
            vector: next(filter(None, (list(_parts(features, info, key)) for key in keys)), [])
            for vector, keys in _VECTORS.items()
        },
        "control_frequency": info.fps,
        "splits": {split: len(found) for split, found in lengths.items()},
        "leave_out": ["*language_embedding", *counters],
    }
    if f"steps/{TASK}" in features:
        entry["instruction"] = {"path": TASK}
    if info.robot_type:
        entry["robot"] = info.robot_type
    if any(steps):
        entry["steps_per_episode"] = round(sum(steps) / len(steps), 2)
    return entry


def camera_names(info: Info) -> dict[str, str]:
    """Return the feature of each camera by its name.

    The name is the last part of the feature's name, or all of it where two cameras share the last part. Where both are
    shared, because other characters than those of names are replaced, a number follows the last part.
    """
    short = [valid_name(path.rsplit(".", 1)[-1], default="camera") for path in info.cameras]
    long = [valid_name(path, default="camera") for path in info.cameras]
    found: dict[str, str] = {}
    for path, last, full in zip(info.cameras, short, long, strict=True):
        name = base = full if short.count(last) > 1 and long.count(full) == 1 else last
        number = 1
        while name in found:
            number += 1
            name = f"{base}{number}"
        found[name] = path
    return found


def valid_name(text: str, *, default: str) -> str:
    """Return a text as a name of the registry: it begins with a letter or digit, or is ``default`` where it has none.

    >>> valid_name("_front cam", default="camera"), valid_name("観", default="camera")
    ('front_cam', 'camera')
    """
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text).lstrip("_.-") or default


def camera_roles(info: Info) -> list[str]:
    """Return the role of each camera, in order.

    A camera with wrist, hand or gripper in its name has the role ``wrist``. Of the others the first is ``primary``, the
    second ``secondary`` and the rest ``other``. Where all are of the wrist, the first is ``primary``.

    A depth camera has the role of the colour camera of the same name but for ``depth``, or else ``wrist`` or ``other``.
    """
    colour = [path for path in info.cameras if not info.is_depth(path)]
    wrist = [bool(_WRIST.search(path.lower())) for path in colour]
    if all(wrist) and wrist:
        wrist[0] = False
    free = iter(["primary", "secondary"])
    roles = {path: "wrist" if each else next(free, "other") for path, each in zip(colour, wrist, strict=True)}
    views = {_view(path): role for path, role in roles.items()}
    return [
        roles.get(path) or views.get(_view(path), "wrist" if _WRIST.search(path.lower()) else "other")
        for path in info.cameras
    ]


def _view(path: str) -> str:
    """Return what a camera and its depth have in common.

    >>> _view("observation.images.top_depth") == _view("observation.images.top")
    True
    """
    return re.sub("depth|[^a-z0-9]", "", path.lower())


def _parts(features: Mapping[str, Feature], info: Info, key: str) -> Iterator[dict[str, Any]]:
    """Yield the parts of a vector: the feature of that name, or those whose names begin with it and a dot."""
    paths = [key] if f"steps/{key}" in features else [path for path in info.features if path.startswith(f"{key}.")]
    for path in paths:
        feature = features.get(f"steps/{path}")
        if feature is None or feature.kind == "image" or feature.dtype == "string" or not feature.size:
            continue
        part: dict[str, Any] = {"path": path, "dims": feature.size, "quantity": "other", "kind": "absolute"}
        if names := info.features[path].value_names:
            part["names"] = list(names)
        yield part
