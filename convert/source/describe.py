"""The registry entry that a dataset makes of itself by the names and shapes of its features."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from convert.source.features import Feature

_WRIST = re.compile(r"wrist|hand|gripper")
_VECTORS = {"action": ("action", "actions"), "state": ("state", "qpos", "proprio", "joint_positions")}
"""Last parts of the names of each vector's feature; the first that exists is taken."""
_INSTRUCTION = ("language_instruction", "natural_language_instruction", "instruction", "language", "task", "prompt")


def describe_features(
    features: Mapping[str, Feature], *, name: str, splits: Mapping[str, Sequence[int | None]], lengths: Sequence[int]
) -> dict[str, Any]:
    """Return the fields of a registry entry, as YAML would have them.

    The meaning of numbers stays open: every part of action and state has quantity ``other``.

    Args:
        features: Features of the dataset by path.
        name: Name of the dataset for people.
        splits: Count of the episodes of each shard, by split.
        lengths: Count of the steps of each episode, as far as they are known.
    """
    steps = {each.name: each for each in features.values() if each.level == "step"}
    pictures = {path: each for path, each in steps.items() if each.kind == "image" and each.dtype == "uint8"}
    entry: dict[str, Any] = {
        "version": "1.0.0",
        "description": f"Dataset {name}.",
        "cameras": describe_cameras({path: each.shape for path, each in pictures.items() if not each.sequences}),
        **{
            vector: next(filter(None, (list(_parts(steps, key)) for key in keys)), [])
            for vector, keys in _VECTORS.items()
        },
        "splits": {split: sum(filter(None, counts)) for split, counts in splits.items() if None not in counts},
    }
    texts = {(each.name if each.level == "step" else f"/{each.path}"): each for each in features.values()}
    named = {path.rsplit("/", 1)[-1]: path for path, each in texts.items() if each.dtype == "string"}
    if found := next((named[key] for key in _INSTRUCTION if key in named), None):
        entry["instruction"] = {"path": found}
    if any(lengths):
        entry["steps_per_episode"] = round(sum(lengths) / len(lengths), 2)
    return entry


def unlike_pictures(features: Mapping[str, Feature]) -> tuple[Feature, ...]:
    """Return the features of steps that may be pictures in another form: floats, or with the channels first."""
    return tuple(
        feature
        for feature in features.values()
        if feature.level == "step"
        and feature.kind == "tensor"
        and feature.dtype != "string"
        and len(feature.shape) == 3
        if {feature.shape[0], feature.shape[2]} & {1, 3, 4}
    )


def describe_cameras(
    sizes: Mapping[str, Sequence[int | None]], depth: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the entries of cameras by name, from their shapes by path and the units of those of depth."""
    depth = depth or {}
    found: dict[str, dict[str, Any]] = {}
    roles = camera_roles(list(sizes), depth)
    for (camera, path), role in zip(camera_names(list(sizes)).items(), roles, strict=True):
        found[camera] = {"path": path, "role": role}
        if path in depth:
            found[camera] |= {"kind": "depth", "unit": depth[path]}
        if len(sizes[path]) == 3 and None not in sizes[path]:
            found[camera]["shape"] = list(sizes[path])
    return found


def camera_names(paths: Sequence[str]) -> dict[str, str]:
    """Return the path of each camera by its name.

    The name is the last part of the path, or all of it where two cameras share the last part. Where both are shared,
    because other characters than those of names are replaced, a number follows the last part.
    """
    short = [valid_name(path.rsplit("/" if "/" in path else ".", 1)[-1], default="camera") for path in paths]
    long = [valid_name(path, default="camera") for path in paths]
    found: dict[str, str] = {}
    for path, last, full in zip(paths, short, long, strict=True):
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


def camera_roles(paths: Sequence[str], depth: Container[str] = ()) -> list[str]:
    """Return the role of each camera, in order.

    A camera with wrist, hand or gripper in its name has the role ``wrist``. Of the others the first is ``primary``, the
    second ``secondary`` and the rest ``other``. Where all are of the wrist, the first is ``primary``.

    A camera of ``depth`` has the role of the colour camera of the same name but for "depth", or else ``wrist`` or
    ``other``.
    """
    colour = [path for path in paths if path not in depth]
    wrist = [bool(_WRIST.search(path.lower())) for path in colour]
    if all(wrist) and wrist:
        wrist[0] = False
    free = iter(["primary", "secondary"])
    roles = {path: "wrist" if each else next(free, "other") for path, each in zip(colour, wrist, strict=True)}
    views = {_view(path): role for path, role in roles.items()}
    return [
        roles.get(path) or views.get(_view(path), "wrist" if _WRIST.search(path.lower()) else "other") for path in paths
    ]


def _view(path: str) -> str:
    """Return what a camera and its depth have in common.

    >>> _view("observation.images.top_depth") == _view("observation.images.top")
    True
    """
    return re.sub("depth|[^a-z0-9]", "", path.lower())


def describe_parts(features: Mapping[str, Feature], paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a vector from features of steps, passing over what are no numbers of a fixed size."""
    for path in paths:
        feature = features.get(path)
        if feature is None or feature.kind == "image" or feature.dtype == "string" or not feature.size:
            continue
        if not feature.sequences:
            yield {"path": path, "dims": feature.size, "quantity": "other", "kind": "absolute"}


def _parts(steps: Mapping[str, Feature], key: str) -> Iterator[dict[str, Any]]:
    """Yield the parts of a vector: the feature whose name ends so, or those of a folder of this name."""
    named = [path for path in steps if path.rsplit("/", 1)[-1] == key]
    yield from describe_parts(steps, named[:1] or [path for path in steps if path.startswith(f"{key}/")])
