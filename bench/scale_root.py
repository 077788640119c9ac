"""Synthetic roots of any size in the real formats, made in seconds.

Each dataset has one shard that is really written, of tiny frames; all others are hard links to its ArrayRecord file
under their own names, each with its own entry in the manifest. The index of the dataset is merged from the part of the
one shard, taken once for each shard. So opening, planning, index and reading are those of a root of that size; only
records do not fill the disk, and the page cache holds what a real root would not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import simplejpeg

from convert.dataset import Part
from convert.index_file import merge_index, write_part
from convert.record_file import RecordWriter
from stream.format import (
    FIRST_FIELDS,
    FORMAT_VERSION,
    MANIFEST_NAME,
    TABLE_KINDS,
    TableKind,
    encode_record,
    feature_column,
    shard_file,
    shard_stem,
    table_file,
)
from stream.manifest import (
    Manifest,
    ShardEntry,
    Source,
    SplitEntry,
    Statistics,
    TableEntry,
    describe_file,
    encode_manifest,
)

DATASETS = 29
EPISODE_PAIRS = 60
OFFSET = 5
_SIZE = 16
_FRAMES = 64
_ACTION = Part(path="action", dims=7, quantity="other", mode="absolute")
_STATE = Part(path="observation/state", dims=8, quantity="other", mode="absolute")


@dataclass(frozen=True)
class Scale:
    """How large a root is: records and shards of all datasets together."""

    records: int
    shards: int

    @classmethod
    def of(cls, records: int) -> Scale:
        """About ``records`` records in shards of 3,000, at least one a dataset, as OXE's 6*10^7 in 20,000."""
        shards = max(DATASETS, records // 3000 // DATASETS * DATASETS)
        pairs = max(EPISODE_PAIRS, records // shards // EPISODE_PAIRS * EPISODE_PAIRS)
        return cls(pairs * shards, shards)


def make_root(folder: Path, scale: Scale) -> None:
    """Write a root of 29 datasets, ``synthetic_00`` and on.

    Raises:
        OSError: the folder cannot be written to, or its file system has no hard links.
    """
    for number in range(DATASETS):
        name = f"synthetic_{number:02}"
        place = folder / name / "1.0.0"
        split = place / "train"
        split.mkdir(parents=True)
        count = scale.shards // DATASETS
        with TemporaryDirectory(dir=place) as journal:
            part = {kind: Path(journal, table_file(kind)) for kind in TABLE_KINDS}
            records = scale.records // scale.shards
            entry = _write_shard(split, shard_stem("train", 0, count), records, part, seed=number)
            index = merge_index(split, [part] * count, action=(_ACTION,), state=(_STATE,))
        shards = [entry]
        for shard in range(1, count):
            stem = shard_stem("train", shard, count)
            os.link(split / shard_file(entry.name), split / shard_file(stem))
            shards.append(entry.model_copy(update={"name": stem, "source_file": f"{stem}.tfrecord"}))
        temporary = place / f"{MANIFEST_NAME}.tmp"
        temporary.write_bytes(encode_manifest(_manifest(name, tuple(shards), index)))
        temporary.replace(place / MANIFEST_NAME)


def _write_shard(
    folder: Path, stem: str, records: int, part: Mapping[TableKind, Path], *, seed: int
) -> ShardEntry:
    """Write a shard, and its part of the index to the files of ``part``."""
    random = np.random.default_rng(seed)
    pictures = random.integers(0, 255, (_FRAMES, _SIZE, _SIZE, 3), np.uint8)
    frames = [simplejpeg.encode_jpeg(picture, quality=50) for picture in pictures]
    episodes, steps = records // EPISODE_PAIRS, EPISODE_PAIRS + OFFSET
    with RecordWriter(folder / shard_file(stem), output=folder) as writer:
        for record in range(records):
            writer.write(encode_record([frames[record % _FRAMES], frames[(record + OFFSET) % _FRAMES]]))
    write_part(part["records"], _records(episodes, steps, writer.places()))
    write_part(part["steps"], _steps(episodes, steps, random))
    write_part(part["episodes"], _episodes(stem, episodes, steps))
    return ShardEntry(
        name=stem,
        source_file=f"{stem}.tfrecord",
        source_bytes=1,
        source_digest="",
        episodes=episodes,
        steps=episodes * steps,
        records=records,
        paired_episodes=episodes,
        left_out={},
        file=describe_file(folder / shard_file(stem)),
    )


def _table(kind: TableKind, values: Mapping[str, Any], more: Mapping[str, pa.Array] | None = None) -> pa.Table:
    fields = FIRST_FIELDS[kind]
    more = more or {}
    arrays = [*(pa.array(values[field.name], field.type) for field in fields), *more.values()]
    return pa.Table.from_arrays(
        arrays, schema=pa.schema([*fields, *(pa.field(name, array.type) for name, array in more.items())])
    )


def _records(episodes: int, steps: int, places: Mapping[str, np.ndarray]) -> pa.Table:
    episode = np.repeat(np.arange(episodes), EPISODE_PAIRS)
    step = np.tile(np.arange(EPISODE_PAIRS), episodes)
    zeros = np.zeros(len(step), np.int64)
    numbers = {"shard": zeros, "episode": episode, "step": step, "camera": zeros, "offset": zeros + OFFSET}
    return _table("records", {**numbers, "steps_row": episode * steps + step, **places})


def _steps(episodes: int, steps: int, random: np.random.Generator) -> pa.Table:
    rows = episodes * steps
    texts = ["pick up the cup", "open the drawer"]
    values = {
        "episode": np.repeat(np.arange(episodes), steps),
        "step": np.tile(np.arange(steps), episodes),
        "language": [texts[row % 2] for row in range(rows)],
    }
    vectors = {
        feature_column("steps", part.path): pa.FixedSizeListArray.from_arrays(
            pa.array(random.standard_normal(rows * part.dims, np.float32)), part.dims
        )
        for part in (_ACTION, _STATE)
    }
    return _table("steps", values, vectors)


def _episodes(stem: str, episodes: int, steps: int) -> pa.Table:
    numbers = np.arange(episodes)
    values = {
        "episode": numbers,
        "shard": np.zeros(episodes, np.int64),
        "episode_id": [f"{stem}__{number}" for number in range(episodes)],
        "source_file": [f"{stem}.tfrecord"] * episodes,
        "source_position": numbers,
        "status": ["ok"] * episodes,
        "num_steps": np.full(episodes, steps),
        "first_steps_row": numbers * steps,
        "num_records": np.full(episodes, EPISODE_PAIRS),
        "first_record": numbers * EPISODE_PAIRS,
        "language": ["pick up the cup"] * episodes,
        "robot": ["arm"] * episodes,
    }
    return _table("episodes", values)


def _manifest(name: str, shards: tuple[ShardEntry, ...], index: dict[TableKind, TableEntry]) -> Manifest:
    counts = {
        "episodes": sum(shard.episodes for shard in shards),
        "steps": sum(shard.steps for shard in shards),
        "records": sum(shard.records for shard in shards),
    }
    signature = hashlib.sha256(name.encode()).hexdigest()
    vectors = {"action": _ACTION, "state": _STATE}
    spec = {key: [{"path": part.path, "dims": part.dims, "mode": part.mode}] for key, part in vectors.items()}
    statistics = {key: _statistics(part.path, part.dims, counts["steps"]) for key, part in vectors.items()}
    return Manifest(
        format_version=FORMAT_VERSION,
        layout="pairs",
        dataset=name,
        version="1.0.0",
        source=Source(tfds_name=name, version="1.0.0", path="", fingerprint=signature),
        parameters={"columns": ["action", "observation/state"], "offset": OFFSET, "frame_offsets": [0, OFFSET]},
        spec={**spec, "offset": OFFSET},
        image={"encoding": "jpeg", "sizes": {f"{_SIZE}x{_SIZE}": 2 * counts["records"]}},
        left_out={},
        quarantine=None,
        splits={"train": SplitEntry(shards=shards, index=index, **counts)},
        statistics={"train": statistics},
        versions={},
        **counts,
    )


def _statistics(path: str, dims: int, steps: int) -> Statistics:
    numbers = {key: (value,) * dims for key, value in (("mean", 0.0), ("std", 1.0), ("min", -5.0), ("max", 5.0))}
    names = tuple(f"{path}[{number}]" for number in range(dims))
    return Statistics(names=names, count=steps, nonfinite=(0,) * dims, q01=(-2.3,) * dims, q99=(2.3,) * dims, **numbers)
