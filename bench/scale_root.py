"""Synthetic roots of any size in the real formats, made in seconds.

Each dataset has one shard that is really written, of tiny frames; all others are hard links to its files under their
own names, each with its own entry in the manifest. So opening, planning, sidecars and reading are those of a root of
that size; only the disk is not filled, and the page cache holds what a real root would not.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import simplejpeg

from convert.record_file import RecordWriter
from convert.sidecars import write_sidecar
from stream.format import (
    EPISODE_FIELDS,
    FILE_KINDS,
    FORMAT_VERSION,
    MANIFEST_NAME,
    RECORDS_SCHEMA,
    STEP_FIELDS,
    encode_record,
    shard_file,
    shard_stem,
)
from stream.manifest import (
    Manifest,
    ShardEntry,
    Source,
    SplitEntry,
    Statistics,
    describe_file,
    encode_manifest,
)

DATASETS = 29
EPISODE_PAIRS = 60
OFFSET = 5
_SIZE = 16
_FRAMES = 64
_ACTION, _STATE = 7, 8


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
        entry = _write_shard(split, shard_stem("train", 0, count), scale.records // scale.shards, seed=number)
        shards = [entry]
        for index in range(1, count):
            stem = shard_stem("train", index, count)
            for kind in FILE_KINDS:
                os.link(split / shard_file(entry.name, kind), split / shard_file(stem, kind))
            shards.append(entry.model_copy(update={"name": stem, "source_file": f"{stem}.tfrecord"}))
        temporary = place / f"{MANIFEST_NAME}.tmp"
        temporary.write_bytes(encode_manifest(_manifest(name, tuple(shards))))
        temporary.replace(place / MANIFEST_NAME)


def _write_shard(folder: Path, stem: str, records: int, *, seed: int) -> ShardEntry:
    random = np.random.default_rng(seed)
    pictures = random.integers(0, 255, (_FRAMES, _SIZE, _SIZE, 3), np.uint8)
    frames = [simplejpeg.encode_jpeg(picture, quality=50) for picture in pictures]
    episodes, steps = records // EPISODE_PAIRS, EPISODE_PAIRS + OFFSET
    with RecordWriter(folder / shard_file(stem, "arrayrecord"), output=folder) as writer:
        for record in range(records):
            writer.write(encode_record([frames[record % _FRAMES], frames[(record + OFFSET) % _FRAMES]]))
    episode = np.repeat(np.arange(episodes, dtype=np.int32), EPISODE_PAIRS)
    step = np.tile(np.arange(EPISODE_PAIRS, dtype=np.int32), episodes)
    columns = [episode, step, np.full(records, OFFSET, np.int32), episode.astype(np.int64) * steps + step]
    arrays = [pa.array(values) for values in (*columns, np.full(records, 2, np.int32), *writer.places().values())]
    write_sidecar(folder / shard_file(stem, "records"), pa.Table.from_arrays(arrays, schema=RECORDS_SCHEMA))
    write_sidecar(folder / shard_file(stem, "steps"), _steps(episodes, steps, random))
    write_sidecar(folder / shard_file(stem, "episodes"), _episodes(stem, episodes, steps))
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
        files={kind: describe_file(folder / shard_file(stem, kind), kind) for kind in FILE_KINDS},
    )


def _steps(episodes: int, steps: int, random: np.random.Generator) -> pa.Table:
    rows = episodes * steps
    texts = pa.array(["pick up the cup", "open the drawer"])
    language = pa.DictionaryArray.from_arrays(pa.array(np.arange(rows, dtype=np.int32) % 2), texts)

    def vector(size: int) -> pa.Array:
        return pa.FixedSizeListArray.from_arrays(pa.array(random.standard_normal(rows * size, np.float32)), size)

    action, state = vector(_ACTION), vector(_STATE)
    more = [pa.field("action", action.type), pa.field("observation/state", state.type)]
    number = np.repeat(np.arange(episodes, dtype=np.int32), steps)
    step = np.tile(np.arange(steps, dtype=np.int32), episodes)
    arrays = [pa.array(number), pa.array(step), language, action, state]
    return pa.Table.from_arrays(arrays, schema=pa.schema([*STEP_FIELDS, *more]))


def _episodes(stem: str, episodes: int, steps: int) -> pa.Table:
    numbers = np.arange(episodes, dtype=np.int64)
    values = {
        "episode_id": [f"{stem}__{number}" for number in range(episodes)],
        "source_file": [f"{stem}.tfrecord"] * episodes,
        "source_position": numbers,
        "status": ["ok"] * episodes,
        "num_steps": np.full(episodes, steps, np.int32),
        "first_steps_row": numbers * steps,
        "num_records": np.full(episodes, EPISODE_PAIRS, np.int32),
        "first_record": numbers * EPISODE_PAIRS,
        "language": ["pick up the cup"] * episodes,
        "robot": ["arm"] * episodes,
    }
    arrays = [pa.array(values[entry.name], entry.type) for entry in EPISODE_FIELDS]
    return pa.Table.from_arrays(arrays, schema=pa.schema(EPISODE_FIELDS))


def _manifest(name: str, shards: tuple[ShardEntry, ...]) -> Manifest:
    counts = {
        "episodes": sum(shard.episodes for shard in shards),
        "steps": sum(shard.steps for shard in shards),
        "records": sum(shard.records for shard in shards),
    }
    signature = hashlib.sha256(name.encode()).hexdigest()
    vectors = {"action": ("action", _ACTION), "state": ("observation/state", _STATE)}
    spec = {key: [{"path": path, "dims": dims, "mode": "absolute"}] for key, (path, dims) in vectors.items()}
    statistics = {key: _statistics(path, dims, counts["steps"]) for key, (path, dims) in vectors.items()}
    return Manifest(
        format_version=FORMAT_VERSION,
        layout="pairs",
        dataset=name,
        version="1.0.0",
        source=Source(tfds_name=name, version="1.0.0", path="", fingerprint=signature),
        parameters={"columns": ["action", "observation/state"], "offset": OFFSET, "frames": "endpoints"},
        spec={**spec, "offset": OFFSET},
        image={"encoding": "jpeg", "sizes": {f"{_SIZE}x{_SIZE}": 2 * counts["records"]}},
        left_out={},
        quarantine=None,
        splits={"train": SplitEntry(shards=shards, **counts)},
        statistics={"train": statistics},
        versions={},
        **counts,
    )


def _statistics(path: str, dims: int, steps: int) -> Statistics:
    numbers = {key: (value,) * dims for key, value in (("mean", 0.0), ("std", 1.0), ("min", -5.0), ("max", 5.0))}
    names = tuple(f"{path}[{number}]" for number in range(dims))
    return Statistics(names=names, count=steps, nonfinite=(0,) * dims, q01=(-2.3,) * dims, q99=(2.3,) * dims, **numbers)
