"""Presets: layouts of formats that many share, and what the format says of a dataset; ``configs/layouts/*.yaml``."""

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
from convert.source.places import walk
from stream.base.configs import CONFIGS, Entry, list_faults, read_yaml

_FOLDER = CONFIGS / "layouts"
_LOOKED = 1000
"""Files of a folder that are looked at for one of a format."""


class Preset(Entry):
    """A format.

    Attributes:
        description: One sentence.
        layout: Keys of ``convert.source.arrays.layout.Layout``.
        marks: Patterns of paths, all of which a file of the format has; none if a file does not tell.
        entry: Fields of a registry entry. A part of action or state is left out where the dataset lacks its array, or
            where that has another count of values than ``of`` says; its ``dims`` are those of the array.
    """

    description: str
    layout: dict[str, Any]
    marks: tuple[str, ...] = ()
    entry: dict[str, Any] = Field(default={})


def preset_names() -> list[str]:
    """Return the names of all presets, each a kind of source."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


@cache
def load_preset(name: str) -> Preset:
    """Return a preset; raises ConfigError if its file is not valid."""
    where = f"configs/layouts/{name}.yaml"
    try:
        return Preset.model_validate(read_yaml(_FOLDER / f"{name}.yaml"))
    except ValidationError as error:
        raise ConfigError(list_faults(error, context=where)) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from None


def recognise_arrays(path: Path) -> str | None:
    """Return the preset of a file or of the files of a folder, None if it holds neither HDF5 nor Zarr.

    Raises:
        ConfigError: It does, but is of no preset.
    """
    is_one = is_hdf5(path) or is_zarr(path)
    file = path if is_one else _first_file(path) if path.is_dir() else None
    if file is None:
        return None
    try:
        with open_store(file) as store:
            found = matching_presets(store)
    except DamagedEpisode as error:
        if path.suffix == ".zip":
            return None
        raise ConfigError(f"{file}: looks like a file of arrays, but {error}") from None
    if len(found) == 1:
        return found[0]
    kind = "HDF5" if is_hdf5(file) else "Zarr"
    told = f"it may be {' or '.join(found)}" if found else f"it is none of {', '.join(preset_names())}"
    raise ConfigError(
        f"{path}: holds {kind}, and {told}; write KIND:{path}, or describe it in YAML: `pairstream draft "
        f"arrays:{path}` prints a beginning"
    )


def matching_presets(store: Store) -> list[str]:
    """Return the presets whose marks an open file has; of two, one with more marks goes before."""
    found = {}
    for name in preset_names():
        marks = load_preset(name).marks
        if marks and all(store.first(mark) is not None for mark in marks):
            found[name] = len(marks)
    return [name for name, count in found.items() if count == max(found.values())]


def _first_file(folder: Path) -> Path | None:
    """Return the first file of arrays in a folder and those below it."""
    files = islice(walk(folder, ("*.hdf5", "*.h5"), STORES), _LOOKED)
    return next((path for path in files if path.is_dir() or is_hdf5(path)), None)


def complete_entry(
    entry: Mapping[str, Any], own: Mapping[str, Any], features: Mapping[str, Feature], layout: Layout
) -> dict[str, Any]:
    """Return the entry of a dataset.

    Args:
        entry: Entry that its features tell.
        own: Fields of its preset.
        features: Its features by path.
        layout: Its layout, which tells the channels of its cameras.
    """
    cameras = {name: dict(camera) for name, camera in entry["cameras"].items()}
    for camera in cameras.values():
        picture = layout.picture(camera["path"])
        if picture is not None:
            is_encoded = None in features[f"{STEPS}/{camera['path']}"].shape
            camera["channels"] = (is_encoded and picture.encoded_channels) or picture.channels
    vectors = {}
    for vector in ("action", "state"):
        parts = [found for part in own.get(vector, ()) if (found := _part(part, features))]
        if parts:
            vectors[vector] = parts
    return {**entry, **own, "cameras": cameras, "action": entry["action"], "state": entry["state"], **vectors}


def _part(part: Mapping[str, Any], features: Mapping[str, Feature]) -> dict[str, Any] | None:
    feature = features.get(f"{STEPS}/{part['path']}")
    if feature is None or feature.size is None or part.get("of", feature.size) != feature.size:
        return None
    dims = len(part["select"]) if "select" in part else feature.size
    return {"dims": dims, **{key: value for key, value in part.items() if key != "of"}}


def layout_of(preset: Preset | None, content: Mapping[str, Any]) -> Layout:
    """Return the layout of a preset, with the keys of an entry's own before it; raises ConfigError if not valid."""
    return read_layout({**(preset.layout if preset else {}), **content})
