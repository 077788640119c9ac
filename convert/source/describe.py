"""Registry entry of a dataset, derived from the names and shapes of its features."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from convert.source.features import Feature

_WRIST = re.compile(r"wrist|hand|gripper")
_VECTORS = {"action": ("action", "actions"), "state": ("state", "qpos", "proprio", "joint_positions")}
"""Last parts of the feature names of each vector, most preferred first."""
_Counts = Sequence[int | None]
_INSTRUCTION = ("language_instruction", "natural_language_instruction", "instruction", "language", "task", "prompt")


def describe_features(
    features: Mapping[str, Feature], *, dataset_name: str, splits: Mapping[str, _Counts], lengths: Sequence[int]
) -> dict[str, Any]:
    """Return the fields of a registry entry, as YAML would have them.

    The meaning of numbers stays open: every part of action and state has quantity ``other``.

    Args:
        splits: Count of the episodes of each shard, by split.
        lengths: Count of the steps of each episode, as far as known.
    """
    step_features = {feature.name: feature for feature in features.values() if feature.level == "step"}
    images = {path: feature for path, feature in step_features.items() if feature.kind == "image"}
    pictures = [path for path, image in images.items() if image.dtype == "uint8" and not image.sequences]
    entry: dict[str, Any] = {
        "version": "1.0.0",
        "description": f"Dataset {dataset_name}.",
        "cameras": describe_cameras({path: images[path].shape for path in pictures}),
        **{vector: _describe_vector(step_features, names) for vector, names in _VECTORS.items()},
        "splits": {split: sum(filter(None, counts)) for split, counts in splits.items() if None not in counts},
    }
    text_paths: dict[str, str] = {}
    for feature in features.values():
        if feature.dtype == "string":
            path = feature.name if feature.level == "step" else f"/{feature.path}"
            text_paths[path.rsplit("/", 1)[-1]] = path
    if instruction_path := next((text_paths[name] for name in _INSTRUCTION if name in text_paths), None):
        entry["instruction"] = {"path": instruction_path}
    if any(lengths):
        entry["steps_per_episode"] = round(sum(lengths) / len(lengths), 2)
    return entry


def unlike_pictures(features: Mapping[str, Feature]) -> tuple[Feature, ...]:
    """Return the features of steps that may be pictures in another form: floats, or with the channels first."""
    tensors = [feature for feature in features.values() if feature.level == "step" and feature.kind == "tensor"]
    numbers = [feature for feature in tensors if feature.dtype != "string" and len(feature.shape) == 3]
    return tuple(feature for feature in numbers if {feature.shape[0], feature.shape[2]} & {1, 3, 4})


def describe_cameras(
    shapes: Mapping[str, Sequence[int | None]], depth_units: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the entries of cameras by name, from their shapes by path and the units of depth cameras."""
    depth_units = depth_units or {}
    camera_entries: dict[str, dict[str, Any]] = {}
    roles = camera_roles(list(shapes), depth_units)
    for (camera_name, path), role in zip(camera_names(list(shapes)).items(), roles, strict=True):
        camera_entries[camera_name] = {"path": path, "role": role}
        if path in depth_units:
            camera_entries[camera_name] |= {"kind": "depth", "unit": depth_units[path]}
        if len(shapes[path]) == 3 and None not in shapes[path]:
            camera_entries[camera_name]["shape"] = list(shapes[path])
    return camera_entries


def camera_names(paths: Sequence[str]) -> dict[str, str]:
    """Return the path of each camera by its name: the last part, or the complete path where two cameras share it.

    Names that are still equal, because characters were replaced, get a number.
    """
    short_names = [valid_name(path.rsplit("/" if "/" in path else ".", 1)[-1], default="camera") for path in paths]
    full_names = [valid_name(path, default="camera") for path in paths]
    path_by_name: dict[str, str] = {}
    for path, short_name, full_name in zip(paths, short_names, full_names, strict=True):
        is_ambiguous = short_names.count(short_name) > 1 and full_names.count(full_name) == 1
        camera_name = base_name = full_name if is_ambiguous else short_name
        number = 1
        while camera_name in path_by_name:
            number += 1
            camera_name = f"{base_name}{number}"
        path_by_name[camera_name] = path
    return path_by_name


def valid_name(text: str, *, default: str) -> str:
    """Return a text as a name of the registry: it starts with a letter or digit, or is ``default`` if it has none.

    >>> valid_name("_front cam", default="camera"), valid_name("観", default="camera")
    ('front_cam', 'camera')
    """
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text).lstrip("_.-") or default


def camera_roles(camera_paths: Sequence[str], depth_paths: Container[str] = ()) -> list[str]:
    """Return the role of each camera, in order: ``wrist`` by its name, or ``primary``, ``secondary`` and ``other``.

    Where all are of the wrist, the first is ``primary``. A camera of ``depth_paths`` has the role of the colour camera
    of the same name but for "depth", otherwise ``wrist`` or ``other``.
    """
    colour_paths = [path for path in camera_paths if path not in depth_paths]
    is_wrist = {path: bool(_WRIST.search(path.lower())) for path in camera_paths}
    if colour_paths and all(is_wrist[path] for path in colour_paths):
        is_wrist[colour_paths[0]] = False
    free_roles = iter(["primary", "secondary"])
    roles = {path: "wrist" if is_wrist[path] else next(free_roles, "other") for path in colour_paths}
    role_by_view = {_view(path): role for path, role in roles.items()}
    for path in camera_paths:
        if path in depth_paths:
            roles[path] = role_by_view.get(_view(path), "wrist" if is_wrist[path] else "other")
    return [roles[path] for path in camera_paths]


def _view(path: str) -> str:
    """Return what a camera and its depth have in common.

    >>> _view("observation.images.top_depth") == _view("observation.images.top")
    True
    """
    return re.sub("depth|[^a-z0-9]", "", path.lower())


def describe_parts(features: Mapping[str, Feature], feature_paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a vector from step features; features other than numbers of a fixed size are skipped."""
    for path in feature_paths:
        feature = features.get(path)
        if feature is None or feature.kind == "image" or feature.dtype == "string":
            continue
        if feature.size and not feature.sequences:
            yield {"path": path, "dims": feature.size, "quantity": "other", "kind": "absolute"}


def _describe_vector(step_features: Mapping[str, Feature], candidate_names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the parts of a vector: the feature whose name ends so, or the features of a folder of this name."""
    for vector_name in candidate_names:
        matching_paths = [path for path in step_features if path.rsplit("/", 1)[-1] == vector_name][:1]
        folder_paths = [path for path in step_features if path.startswith(f"{vector_name}/")]
        if parts := list(describe_parts(step_features, matching_paths or folder_paths)):
            return parts
    return []
