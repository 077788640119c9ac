"""Datasets of a converted root: their locations, features and registry entries."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from convert.errors import SourceError, UsageError
from convert.source.features import STEPS, SUCCESS, Feature
from convert.source.locations import JOIN, candidates, refuse_layout
from convert.source.root.join import join_sources
from convert.source.root.source import RootShard, RootSource, SplitTables, open_split
from stream.base.errors import ArgumentError, FormatError
from stream.format.catalog import Catalog, Dataset
from stream.format.manifest import read_manifest
from stream.format.names import DERIVED, MANIFEST_NAME, TableKind, shard_file
from stream.format.schema import FIRST_FIELDS, feature_column
from stream.storage.remote import is_remote

LANGUAGE = Feature(path=f"{STEPS}/language", kind="tensor", level="step", shape=(), dtype="string")
"""The instruction of each step, of datasets whose index does not keep the feature that it came from."""


def find(location: str, roots: Sequence[str], layout: Mapping[str, Any]) -> RootSource:
    """Find a converted dataset by its folder, that of a version, or its name below one of ``roots``.

    Several locations with ``+root:`` between them become one dataset.

    Raises:
        SourceError: There is no complete conversion, or a table of it is damaged.
        UsageError: The root is in a bucket, or datasets that are to become one differ.
    """
    refuse_layout("root", layout)
    sources = [_open(dataset) for dataset in open_datasets(location, roots)]
    return join_sources(sources) if len(sources) > 1 else sources[0]


def open_datasets(location: str, roots: Sequence[str]) -> list[Dataset]:
    """Return the datasets of a location; raises as ``find`` does."""
    return [_open_dataset(dataset_location, roots) for dataset_location in location.split(JOIN)]


def expand(location: str, roots: Sequence[str]) -> list[str]:
    """Return the location of each dataset of complete roots; datasets of several roots with one name become one.

    A location as for ``find`` stays. Either all or none of several locations are roots.

    Raises:
        SourceError: A conversion of a root is not complete.
    """
    locations_by_name: dict[str, list[str]] = {}
    for root_location in location.split(JOIN):
        paths = candidates(root_location, roots) or [os.path.abspath(root_location)]
        folders = [path for path in paths if os.path.isdir(path)]
        catalog = Catalog(folders[0]) if folders else None
        # A dataset's own folder has versions, which have no versions.
        if catalog is None or not catalog.complete:
            return [location]
        for dataset_name in catalog.versions:
            if dataset_name not in catalog.complete:
                fault = f"the conversion of {dataset_name} is not complete; finish it with the same"
                advice = f"or name the datasets that you want (root:{root_location}/{catalog.complete[0]})"
                raise SourceError(f"root:{root_location}: {fault} `python -m convert.run` command, {advice}")
            locations_by_name.setdefault(dataset_name, []).append(os.path.join(folders[0], dataset_name))
    return [JOIN.join(locations) for locations in locations_by_name.values()]


def _open_dataset(location: str, roots: Sequence[str]) -> Dataset:
    messages = []
    for candidate in candidates(location, roots) or [os.path.abspath(location)]:
        if is_remote(candidate):
            raise UsageError(f"root:{location}: a bucket is not a source; download it with `pairstream fetch` first")
        parent, dataset_name = os.path.split(candidate)
        version = ""
        if os.path.isfile(os.path.join(candidate, MANIFEST_NAME)):
            parent, dataset_name, version = *os.path.split(parent), f":{dataset_name}"
        try:
            catalog = Catalog(parent)
            if not os.path.isdir(candidate) and not catalog.complete:
                raise ArgumentError(f"{candidate}: no such folder; give that of a converted dataset, ROOT/<dataset>")
            return catalog.open(dataset_name + version)
        except (ArgumentError, FormatError) as error:
            messages.append(str(error))
    raise SourceError(f"root:{location}: {messages[0]}")


def _open(dataset: Dataset) -> RootSource:
    dataset_folder = str(dataset.folder)
    if dataset.fetched is not None:
        raise SourceError(f"{dataset_folder}: was fetched in part; fetch all of it first")
    # The catalog leaves the entries of the shards out.
    manifest = read_manifest(dataset_folder)
    try:
        split_tables = {name: open_split(dataset_folder, name, entry) for name, entry in manifest.splits.items()}
    except (FormatError, OSError) as error:
        raise SourceError(f"{dataset_folder}: {error}; check it with `pairstream verify`") from None
    stored_cameras = dataset.fields.stored_cameras
    entry = copy.deepcopy(manifest.spec)
    # Splits may have different labels.
    features: dict[str, Feature] = {}
    for tables in split_tables.values():
        features |= _features(tables)
    cameras = _cameras(entry, stored_cameras, pairs_path=manifest.parameters.get("camera"))
    for camera_entry in cameras.values():
        path, is_depth = f"{STEPS}/{camera_entry['path']}", camera_entry.get("kind") == "depth"
        shape, dtype = ((None, None, 1), "uint16") if is_depth else ((None, None, 3), "uint8")
        features[path] = Feature(path=path, kind="image", level="step", shape=shape, dtype=dtype)
    entry |= {"cameras": cameras, "offset": manifest.parameters["offset"]}
    _mend(entry, features)
    shards = {}
    for split_name, split in manifest.splits.items():
        episodes = _episodes(split_tables[split_name])
        end_episodes = np.cumsum([shard.episodes for shard in split.shards])
        shards[split_name] = tuple(
            RootShard(
                split=split_name,
                index=number,
                count=len(split.shards),
                path=f"{dataset_folder}/{split_name}/{shard_file(shard.name)}",
                name=shard.source_file,
                records=shard.episodes,
                bytes=shard.file.bytes,
                folder=dataset_folder,
                number=number,
                sha256=shard.file.sha256,
                episodes=episodes[end - shard.episodes : end],
            )
            for number, (shard, end) in enumerate(zip(split.shards, end_episodes.tolist(), strict=True))
        )
    label_tables = [table for split in manifest.splits.values() for table in split.labels.values()]
    labels = [f"{STEPS}/{column}" for table in label_tables for column in table.columns]
    codecs = ", ".join(f"{camera.name} ({camera.codec})" for camera in stored_cameras if not camera.is_depth)
    return RootSource(
        path=dataset_folder,
        fingerprint=manifest.checksum,
        metadata=(MANIFEST_NAME,),
        features=features,
        splits={name: tuple(shard.episodes for shard in entry.shards) for name, entry in manifest.splits.items()},
        entry=entry,
        remarks=(f"source format: layout {manifest.layout}, {codecs}",),
        shards_of=shards,
        layout=f"{manifest.layout} {manifest.parameters.get('frame_offsets', '')}".strip(),
        labels=frozenset(labels),
        tables=split_tables,
    )


def _episodes(split: SplitTables) -> tuple[tuple[int, int, str, int], ...]:
    """Return the ``RootShard.episodes`` of a split."""
    step_counts = split.episodes.column("num_steps").to_numpy().tolist()
    first_records, record_counts = (split.episodes.column(name).to_numpy() for name in ("first_record", "num_records"))
    first_records = np.where(record_counts > 0, first_records, 0)
    byte_ends = np.append(0, np.cumsum(split.records.column("num_bytes").to_numpy(), dtype=np.int64))
    episode_bytes = (byte_ends[first_records + record_counts] - byte_ends[first_records]).tolist()
    source_files = map(sys.intern, split.episodes.column("source_file").to_pylist())
    positions = split.episodes.column("source_position").to_numpy().tolist()
    return tuple(zip(step_counts, episode_bytes, source_files, positions, strict=True))


def _features(split: SplitTables) -> dict[str, Feature]:
    """Return the features of a split's tables: the columns that are neither of the format nor derived."""
    features = {}
    levels: dict[TableKind, tuple[Any, str]] = {"steps": (split.steps, f"{STEPS}/"), "episodes": (split.episodes, "")}
    for table_kind, (table, prefix) in levels.items():
        format_columns = {field.name for field in FIRST_FIELDS[table_kind]}
        format_columns |= set(DERIVED) if table_kind == "steps" else set()
        for column in table.schema:
            # A column whose name the format uses has a trailing underscore, which the name of its feature lacks.
            name = column.name.removesuffix("_")
            if feature_column(table_kind, name) != column.name:
                name = column.name
            if column.name not in format_columns:
                features[prefix + name] = _feature(prefix + name, "step" if prefix else "episode", column)
    return features


def _feature(feature_path: str, level: Any, column: pa.Field) -> Feature:
    """Return the feature of a column, see ``convert.shard.part_rows.arrow_field``."""
    value_type, field_metadata = column.type, column.metadata or {}
    num_sequences = 0
    while pa.types.is_large_list(value_type) or pa.types.is_list(value_type):
        value_type, num_sequences = value_type.value_type, num_sequences + 1
    list_size = value_type.list_size if pa.types.is_fixed_size_list(value_type) else None
    value_type = value_type if list_size is None else value_type.value_type
    value_type = value_type.value_type if pa.types.is_dictionary(value_type) else value_type
    is_text = pa.types.is_large_string(value_type) or pa.types.is_string(value_type)
    shape = json.loads(field_metadata.get(b"shape", "[]" if list_size is None else f"[{list_size}]"))
    return Feature(
        path=feature_path,
        kind="tensor",
        level=level,
        shape=tuple(shape),
        dtype="string" if is_text else pa.array([], value_type).to_numpy(zero_copy_only=False).dtype.name,
        sequences=(None,) * num_sequences,
    )


def _cameras(
    entry: Mapping[str, Any], stored_cameras: Sequence[Any], *, pairs_path: str | None
) -> dict[str, dict[str, Any]]:
    """Return the registry's entries of the stored cameras in their stored form: RGB, and millimetres."""
    camera_entries: dict[str, dict[str, Any]] = {}
    for camera in stored_cameras:
        camera_entry = dict(entry["cameras"].get(camera.name) or {"path": pairs_path, "role": "other"})
        camera_entry |= {"storage": "undeclared", "shape": None}
        if camera.is_depth:
            has_unit = camera_entry.get("unit") != "unknown"
            camera_entry |= {"unit": "mm" if has_unit else "unknown", "scale": None}
        elif camera_entry.get("channels") == "bgr":
            camera_entry["channels"] = "rgb"
        camera_entries[camera.name.rsplit("/", 1)[-1]] = camera_entry
    colour_entries = [camera_entry for camera_entry in camera_entries.values() if camera_entry.get("kind") != "depth"]
    if not colour_entries:
        raise SourceError("has no colour camera, so no frame to convert")
    if all(camera_entry["role"] != "primary" for camera_entry in colour_entries):
        colour_entries[0]["role"] = "primary"
    return camera_entries


def _mend(entry: dict[str, Any], features: dict[str, Feature]) -> None:
    """Leave out of an entry what the index did not keep."""
    known_paths = {feature.name if feature.level == "step" else f"/{feature.path}" for feature in features.values()}
    if instruction := entry.get("instruction"):
        instruction["alternatives"] = [path for path in instruction["alternatives"] if path in known_paths]
        if instruction["path"] not in known_paths:
            features[LANGUAGE.path] = LANGUAGE
            entry["instruction"] = {"path": LANGUAGE.name, "informative": instruction["informative"]}
            entry["leave_out"] = [*entry["leave_out"], LANGUAGE.name]
    for entry_key in ("robot_path", "success_path", "action_text"):
        if entry.get(entry_key) is not None and entry[entry_key] not in known_paths:
            entry[entry_key] = None
    if f"/{SUCCESS.path}" in known_paths:
        entry["success_path"] = None
