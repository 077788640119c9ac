"""Datasets of a converted root: where they are, and what they say of themselves."""

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
from convert.source.places import JOIN, candidates, refuse_layout
from convert.source.root.join import join_sources
from convert.source.root.reader import SplitTables, open_split
from convert.source.root.source import RootShard, RootSource
from stream.base.errors import ArgumentError, FormatError
from stream.format.catalog import Catalog, Dataset
from stream.format.manifest import read_manifest
from stream.format.names import DERIVED, MANIFEST_NAME, TableKind, shard_file
from stream.format.schema import FIRST_FIELDS, feature_column
from stream.storage.remote import is_remote

LANGUAGE = Feature(path=f"{STEPS}/language", kind="tensor", level="step", shape=(), dtype="string")
"""The instruction of each step, of datasets whose index does not keep the feature that it came from."""
_COLOUR, _DEPTH = (None, None, 3), (None, None, 1)


def find(place: str, roots: Sequence[str], layout: Mapping[str, Any]) -> RootSource:
    """Find a converted dataset, or several that become one.

    Args:
        place: Folder ``ROOT/<dataset>``, or that of one of its versions; or a name below one of ``roots``. Several have
            ``+root:`` between them.
        roots: Converted roots.
        layout: Empty.

    Raises:
        SourceError: There is no complete conversion, or a table of it is damaged.
        UsageError: The root lies in a bucket, or datasets that are to become one differ.
    """
    refuse_layout("root", layout)
    first, *others = [_open(each) for each in open_datasets(place, roots)]
    return join_sources([first, *others]) if others else first


def open_datasets(place: str, roots: Sequence[str]) -> list[Dataset]:
    """Return the datasets of a place; raises as ``find`` does."""
    return [_open_dataset(each, roots) for each in place.split(JOIN)]


def expand(place: str, roots: Sequence[str]) -> list[str]:
    """Return the place of each dataset of whole roots, by name; of several roots, what has one name becomes one.

    Args:
        place: As for ``find``, or the folder of a root. Of several, all or none are roots.
        roots: Converted roots.

    Raises:
        SourceError: A conversion of a root is not complete.
    """
    found: dict[str, list[str]] = {}
    for each in place.split(JOIN):
        folders = [path for path in candidates(each, roots) or [os.path.abspath(each)] if os.path.isdir(path)]
        catalog = Catalog(folders[0]) if folders else None
        # A dataset's own folder has versions, which have no versions.
        if catalog is None or not catalog.complete:
            return [place]
        for name in catalog.versions:
            if name not in catalog.complete:
                raise SourceError(
                    f"root:{each}: the conversion of {name} is not complete; finish it with the same `python -m "
                    f"convert.run` command, or name the datasets that you want (root:{each}/{catalog.complete[0]})"
                )
            found.setdefault(name, []).append(os.path.join(folders[0], name))
    return [JOIN.join(places) for places in found.values()]


def _open_dataset(place: str, roots: Sequence[str]) -> Dataset:
    tried = candidates(place, roots) or [os.path.abspath(place)]
    faults = []
    for path in tried:
        if is_remote(path):
            raise UsageError(f"root:{place}: a bucket is no source; bring it with `pairstream fetch` first")
        parent, name = os.path.split(path)
        version = ""
        if os.path.isfile(os.path.join(path, MANIFEST_NAME)):
            parent, name, version = *os.path.split(parent), f":{name}"
        try:
            catalog = Catalog(parent)
            if not os.path.isdir(path) and not catalog.complete:
                raise ArgumentError(f"{path}: no such folder; give that of a converted dataset, ROOT/<dataset>")
            return catalog.open(name + version)
        except (ArgumentError, FormatError) as error:
            faults.append(str(error))
    raise SourceError(f"root:{place}: {faults[0]}")


def _open(dataset: Dataset) -> RootSource:
    path = str(dataset.folder)
    if dataset.fetched is not None:
        raise SourceError(f"{path}: was fetched in part; fetch all of it first")
    # The catalog leaves the entries of the shards out.
    manifest = read_manifest(path)
    try:
        splits = {name: open_split(path, name, entry) for name, entry in manifest.splits.items()}
    except (FormatError, OSError) as error:
        raise SourceError(f"{path}: {error}; check it with `pairstream verify`") from None
    stored = dataset.fields.stored_cameras
    entry = copy.deepcopy(manifest.spec)
    # Splits may have different labels.
    features = {path: each for split in splits.values() for path, each in _features(split).items()}
    cameras = _cameras(entry, stored, pairs=manifest.parameters.get("camera"))
    for each in cameras.values():
        is_depth = each.get("kind") == "depth"
        feature_path = f"{STEPS}/{each['path']}"
        features[feature_path] = Feature(
            path=feature_path,
            kind="image",
            level="step",
            shape=_DEPTH if is_depth else _COLOUR,
            dtype="uint16" if is_depth else "uint8",
        )
    entry |= {"cameras": cameras, "offset": manifest.parameters["offset"]}
    _mend(entry, features)
    shards = {}
    for name, split in manifest.splits.items():
        episodes = _episodes(splits[name])
        ends = np.cumsum([shard.episodes for shard in split.shards])
        shards[name] = tuple(
            RootShard(
                split=name,
                index=index,
                count=len(split.shards),
                path=f"{path}/{name}/{shard_file(shard.name)}",
                name=shard.source_file,
                records=shard.episodes,
                bytes=shard.file.bytes,
                folder=path,
                number=index,
                sha256=shard.file.sha256,
                episodes=episodes[end - shard.episodes : end],
            )
            for index, (shard, end) in enumerate(zip(split.shards, ends.tolist(), strict=True))
        )
    codecs = ", ".join(f"{camera.name} ({camera.codec})" for camera in stored if not camera.is_depth)
    return RootSource(
        path=path,
        fingerprint=manifest.checksum,
        metadata=(MANIFEST_NAME,),
        features=features,
        splits={name: tuple(shard.episodes for shard in entry.shards) for name, entry in manifest.splits.items()},
        entry=entry,
        remarks=(f"source format: layout {manifest.layout}, {codecs}",),
        shards_of=shards,
        layout=f"{manifest.layout} {manifest.parameters.get('frame_offsets', '')}".strip(),
        labels=frozenset(
            f"{STEPS}/{column}"
            for entry in manifest.splits.values()
            for table in entry.labels.values()
            for column in table.columns
        ),
        tables=splits,
    )


def _episodes(split: SplitTables) -> tuple[tuple[int, int, str, int], ...]:
    """Return count of steps, bytes of the records, source file, and number in it, of each episode of a split."""
    names = ("num_steps", "source_position", "first_record", "num_records")
    steps, positions, first, count = (split.episodes.column(name).to_numpy() for name in names)
    ends = np.append(0, np.cumsum(split.records.column("num_bytes").to_numpy(), dtype=np.int64))
    first = np.where(count > 0, first, 0)
    sizes = ends[first + count] - ends[first]
    files = split.episodes.column("source_file").to_pylist()
    return tuple(zip(steps.tolist(), sizes.tolist(), map(sys.intern, files), positions.tolist(), strict=True))


def _features(split: SplitTables) -> dict[str, Feature]:
    """Return the features of a split's tables: the columns that are no columns of the format and not derived."""
    found = {}
    levels: tuple[tuple[TableKind, Any, str], ...] = (
        ("steps", split.steps, f"{STEPS}/"),
        ("episodes", split.episodes, ""),
    )
    for kind, table, prefix in levels:
        own = {each.name for each in FIRST_FIELDS[kind]} | (set(DERIVED) if kind == "steps" else set())
        for column in table.schema:
            if column.name in own:
                continue
            plain = column.name.removesuffix("_")
            name = plain if plain != column.name and feature_column(kind, plain) == column.name else column.name
            found[prefix + name] = _feature(prefix + name, "step" if prefix else "episode", column)
    return found


def _feature(path: str, level: Any, column: pa.Field) -> Feature:
    """Return the feature of a column, see ``convert.shard.columns.arrow_field``."""
    kind, about = column.type, column.metadata or {}
    sequences = 0
    while pa.types.is_large_list(kind) or pa.types.is_list(kind):
        kind, sequences = kind.value_type, sequences + 1
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
    kind = kind if size is None else kind.value_type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_large_string(kind) or pa.types.is_string(kind)
    shape = json.loads(about[b"shape"]) if b"shape" in about else [] if size is None else [size]
    return Feature(
        path=path,
        kind="tensor",
        level=level,
        shape=tuple(shape),
        dtype="string" if is_text else pa.array([], kind).to_numpy(zero_copy_only=False).dtype.name,
        sequences=(None,) * sequences,
    )


def _cameras(entry: Mapping[str, Any], stored: Sequence[Any], *, pairs: str | None) -> dict[str, dict[str, Any]]:
    """Return the registry's entries of the stored cameras, as they are stored: RGB, and millimetres."""
    found: dict[str, dict[str, Any]] = {}
    for camera in stored:
        about = dict(entry["cameras"].get(camera.name) or {"path": pairs, "role": "other"})
        about |= {"storage": "undeclared", "shape": None}
        if camera.is_depth:
            known = about.get("unit") != "unknown"
            about |= {"unit": "mm" if known else "unknown", "scale": None}
        elif about.get("channels") == "bgr":
            about["channels"] = "rgb"
        found[camera.name.rsplit("/", 1)[-1]] = about
    colour = [about for about in found.values() if about.get("kind") != "depth"]
    if not colour:
        raise SourceError("has no camera of colour, so no frame to convert")
    if all(about["role"] != "primary" for about in colour):
        colour[0]["role"] = "primary"
    return found


def _mend(entry: dict[str, Any], features: dict[str, Feature]) -> None:
    """Leave out of an entry what the index did not keep."""
    known = {each.name if each.level == "step" else f"/{each.path}" for each in features.values()}
    if instruction := entry.get("instruction"):
        instruction["alternatives"] = [path for path in instruction["alternatives"] if path in known]
        if instruction["path"] not in known:
            features[LANGUAGE.path] = LANGUAGE
            informative = instruction["informative"]
            entry["instruction"] = {"path": LANGUAGE.name, "informative": informative}
            entry["leave_out"] = [*entry["leave_out"], LANGUAGE.name]
    for key in ("robot_path", "success_path", "action_text"):
        if entry.get(key) is not None and entry[key] not in known:
            entry[key] = None
    if f"/{SUCCESS.path}" in known:
        entry["success_path"] = None
