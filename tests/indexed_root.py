"""A converted dataset with two splits and an index of every kind of column, made without converting anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from convert.dataset import DatasetSpec
from convert.durable import describe_file
from convert.index_file import merge_index
from convert.registry import load_registry
from convert.statistics import split_statistics
from stream.format import FORMAT_VERSION, MANIFEST_NAME, shard_file, shard_stem
from stream.manifest import Manifest, ShardEntry, Source, SplitEntry, encode_manifest
from tests.index_parts import ACTION, OFFSET, STATE, shard_tables, write_parts

DATASET, VERSION = "demo", "1.0.0"
_EPISODES = {"train": (3, 0, 5), "val": (4,)}


def write_registry(path: Path, **changed: Any) -> Path:
    """Write a registry with the dataset; ``changed`` are keys of its entry."""
    entry = {
        "tfds_name": DATASET,
        "version": VERSION,
        "description": "Made for a test.",
        "cameras": {"image": {"path": "image", "role": "primary", "storage": "jpeg", "shape": [8, 8, 3]}},
        "action": [part.model_dump(mode="json", exclude_none=True) for part in ACTION],
        "state": [part.model_dump(mode="json", exclude_none=True) for part in STATE],
        **changed,
    }
    path.write_text(yaml.safe_dump({"datasets": {DATASET: entry}}))
    return path


def make_indexed_root(root: Path, registry: Path) -> Path:
    """Make the dataset below a new root; returns its folder."""
    spec = load_registry(config=[registry]).dataset(DATASET)
    folder = root / DATASET / VERSION
    splits, statistics = {}, {}
    for split, counts in _EPISODES.items():
        shards = [shard_tables(count, number) for number, count in enumerate(counts)]
        parts = write_parts(root.with_name(f"{root.name}-{split}"), shards)
        (folder / split).mkdir(parents=True)
        index = merge_index(folder / split, parts, action=spec.action, state=spec.state)
        entries = tuple(_shard(folder, split, number, tables) for number, tables in enumerate(shards))
        sums = {key: sum(getattr(entry, key) for entry in entries) for key in ("episodes", "steps", "records")}
        splits[split] = SplitEntry(shards=entries, index=index, **sums)
        statistics[split] = split_statistics(folder / split, action=spec.action, state=spec.state)
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(_manifest(spec, splits, statistics)))
    return folder


def _shard(folder: Path, split: str, number: int, tables: dict[Any, Any]) -> ShardEntry:
    stem = shard_stem(split, number, len(_EPISODES[split]))
    path = folder / split / shard_file(stem)
    path.write_bytes(b"records")
    return ShardEntry(
        name=stem,
        source_file=f"{stem}.tfrecord",
        source_bytes=1,
        source_digest="",
        **{kind: table.num_rows for kind, table in tables.items()},
        paired_episodes=sum(count > 0 for count in tables["episodes"]["num_records"].to_pylist()),
        left_out={},
        file=describe_file(path),
    )


def _manifest(spec: DatasetSpec, splits: dict[str, SplitEntry], statistics: dict[str, Any]) -> Manifest:
    return Manifest(
        format_version=FORMAT_VERSION,
        layout="pairs",
        dataset=DATASET,
        version=VERSION,
        source=Source(tfds_name=DATASET, version=VERSION, path="", fingerprint="0" * 64),
        parameters={"camera": "image", "offset": OFFSET, "frames": "endpoints", "frame_offsets": [0, OFFSET]},
        spec=spec.model_dump(mode="json"),
        image={"encoding": "jpeg", "sizes": {}, "passed": 0, "transcoded": 0},
        **{key: sum(getattr(split, key) for split in splits.values()) for key in ("episodes", "steps", "records")},
        left_out={},
        quarantine=None,
        splits=splits,
        statistics=statistics,
        versions={},
    )
