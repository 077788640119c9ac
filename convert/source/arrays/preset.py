"""Presets: layouts of common formats, and the registry fields that a format implies; ``configs/layouts/*.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import Field

from convert.errors import ConfigError, DamagedEpisode, UnknownLayoutError
from convert.source.arrays.layout import Layout
from convert.source.arrays.opening import open_store
from convert.source.arrays.store import STORES, Store, is_hdf5, is_zarr
from convert.source.features import STEPS, Feature
from convert.source.locations import walk
from stream.base.configs import CONFIGS, Entry, read_yaml

_FOLDER = CONFIGS / "layouts"
_MAX_FILES = 1000
"""Files of a folder that are searched for one of a preset."""


class Preset(Entry):
    """A format.

    Attributes:
        description: One sentence.
        layout: Keys of ``convert.source.arrays.layout.Layout``.
        marks: Patterns of paths, all of which a file of the format has; none if a file does not show its format.
        entry: Fields of a registry entry. A part of action or state is left out if the dataset lacks its array, or if
            the array has another count of values than ``of``. Its ``dims`` are those of the array.
    """

    description: str
    layout: dict[str, Any]
    marks: tuple[str, ...] = ()
    entry: dict[str, Any] = Field(default={})


def preset_names() -> list[str]:
    """Return the names of all presets, each a kind of source."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


@cache
def load_preset(preset_name: str) -> Preset:
    """Return a preset."""
    return Preset.model_validate(read_yaml(_FOLDER / f"{preset_name}.yaml"))


def recognise_arrays(path: Path) -> str | None:
    """Return the preset of a file or of the files of a folder, None if it holds neither HDF5 nor Zarr.

    Raises:
        UnknownLayoutError: It holds them, but matches no preset.
        ConfigError: It matches several presets, or is damaged.
    """
    files = [path]
    if not is_hdf5(path) and not is_zarr(path):
        files = list(islice(walk(path, ("*.hdf5", "*.h5"), STORES), _MAX_FILES)) if path.is_dir() else []
    first_file = next((file for file in files if file.is_dir() or file.suffix == ".zip" or is_hdf5(file)), None)
    if first_file is None:
        return None
    try:
        with open_store(first_file) as store:
            matches = matching_presets(store)
    except DamagedEpisode as error:
        if path.suffix == ".zip":
            return None
        raise ConfigError(f"{first_file}: looks like a file of arrays, but {error}") from None
    if len(matches) == 1:
        return matches[0]
    format_name = "HDF5" if is_hdf5(first_file) else "Zarr"
    advice = f"write KIND:{path}, or describe it in YAML: `pairstream draft arrays:{path}` prints a beginning"
    if matches:
        raise ConfigError(f"{path}: holds {format_name}, and it may be {' or '.join(matches)}; {advice}")
    available = f"the layout of none of {', '.join(preset_names())}"
    raise UnknownLayoutError(f"{path}: holds {format_name} in {available}; {advice}")


def matching_presets(store: Store) -> list[str]:
    """Return the presets whose marks an open file has; only those with the most marks."""
    num_marks = {}
    for preset_name in preset_names():
        marks = load_preset(preset_name).marks
        if marks and all(store.first(mark) is not None for mark in marks):
            num_marks[preset_name] = len(marks)
    return [preset_name for preset_name, num_matched in num_marks.items() if num_matched == max(num_marks.values())]


def complete_entry(
    entry: Mapping[str, Any], preset_entry: Mapping[str, Any], features: Mapping[str, Feature], layout: Layout
) -> dict[str, Any]:
    """Return the entry of a dataset: that from its features with the fields of its preset and the layout's channels."""
    cameras = {name: dict(camera) for name, camera in entry["cameras"].items()}
    for camera in cameras.values():
        picture = layout.picture(camera["path"])
        if picture is not None:
            is_encoded = None in features[f"{STEPS}/{camera['path']}"].shape
            camera["channels"] = (is_encoded and picture.encoded_channels) or picture.channels
    vectors = {}
    for vector in ("action", "state"):
        parts = [_part(part, features) for part in preset_entry.get(vector, ())]
        vectors[vector] = list(filter(None, parts)) or entry[vector]
    return {**entry, **preset_entry, "cameras": cameras, **vectors}


def _part(declared_part: Mapping[str, Any], features: Mapping[str, Feature]) -> dict[str, Any] | None:
    feature = features.get(f"{STEPS}/{declared_part['path']}")
    if feature is None or feature.size is None or declared_part.get("of", feature.size) != feature.size:
        return None
    num_values = len(declared_part["select"]) if "select" in declared_part else feature.size
    return {"dims": num_values, **{key: value for key, value in declared_part.items() if key != "of"}}
