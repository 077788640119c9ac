"""Presets: layouts of common formats, and the registry fields that a format implies; ``configs/layouts/*.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from convert.errors import ConfigError, DamagedEpisode
from convert.source.arrays.layout import Layout, read_layout
from convert.source.arrays.opening import open_store
from convert.source.arrays.store import STORES, Store, is_hdf5, is_zarr
from convert.source.features import STEPS, Feature
from convert.source.locations import walk
from stream.base.configs import CONFIGS, Entry, list_faults, read_yaml

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
    """Return a preset; raises ConfigError if its file is not valid."""
    context = f"configs/layouts/{preset_name}.yaml"
    try:
        return Preset.model_validate(read_yaml(_FOLDER / f"{preset_name}.yaml"))
    except ValidationError as error:
        raise ConfigError(list_faults(error, context=context)) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{context}: {error}") from None


def recognise_arrays(path: Path) -> str | None:
    """Return the preset of a file or of the files of a folder, None if it holds neither HDF5 nor Zarr.

    Raises:
        ConfigError: It holds them, but matches no preset or several.
    """
    is_file = is_hdf5(path) or is_zarr(path)
    first_file = path if is_file else _first_file(path) if path.is_dir() else None
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
    description = f"it may be {' or '.join(matches)}" if matches else f"it is none of {', '.join(preset_names())}"
    raise ConfigError(
        f"{path}: holds {format_name}, and {description}; write KIND:{path}, or describe it in YAML: `pairstream draft "
        f"arrays:{path}` prints a beginning"
    )


def matching_presets(store: Store) -> list[str]:
    """Return the presets whose marks an open file has; only those with the most marks."""
    num_marks = {}
    for preset_name in preset_names():
        marks = load_preset(preset_name).marks
        if marks and all(store.first(mark) is not None for mark in marks):
            num_marks[preset_name] = len(marks)
    return [preset_name for preset_name, num_matched in num_marks.items() if num_matched == max(num_marks.values())]


def _first_file(folder: Path) -> Path | None:
    """Return the first file of arrays in a folder and those below it."""
    files = islice(walk(folder, ("*.hdf5", "*.h5"), STORES), _MAX_FILES)
    return next((path for path in files if path.is_dir() or is_hdf5(path)), None)


def complete_entry(
    entry: Mapping[str, Any], preset_entry: Mapping[str, Any], features: Mapping[str, Feature], layout: Layout
) -> dict[str, Any]:
    """Return the entry of a dataset.

    Args:
        entry: Entry from its features.
        preset_entry: Fields of its preset.
        features: Its features by path.
        layout: Its layout, which has the channels of its cameras.
    """
    cameras = {name: dict(camera) for name, camera in entry["cameras"].items()}
    for camera in cameras.values():
        picture = layout.picture(camera["path"])
        if picture is not None:
            is_encoded = None in features[f"{STEPS}/{camera['path']}"].shape
            camera["channels"] = (is_encoded and picture.encoded_channels) or picture.channels
    vectors = {}
    for vector in ("action", "state"):
        parts = [adapted_part for part in preset_entry.get(vector, ()) if (adapted_part := _part(part, features))]
        if parts:
            vectors[vector] = parts
    return {**entry, **preset_entry, "cameras": cameras, "action": entry["action"], "state": entry["state"], **vectors}


def _part(declared_part: Mapping[str, Any], features: Mapping[str, Feature]) -> dict[str, Any] | None:
    feature = features.get(f"{STEPS}/{declared_part['path']}")
    if feature is None or feature.size is None or declared_part.get("of", feature.size) != feature.size:
        return None
    num_values = len(declared_part["select"]) if "select" in declared_part else feature.size
    return {"dims": num_values, **{key: value for key, value in declared_part.items() if key != "of"}}


def layout_of(preset: Preset | None, layout_keys: Mapping[str, Any]) -> Layout:
    """Return the layout of a preset, overridden by the keys of the entry; raises ConfigError if not valid."""
    return read_layout({**(preset.layout if preset else {}), **layout_keys})
