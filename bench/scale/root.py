"""Synthetic roots and journals of any size in the real formats, made in seconds.

Each dataset has one real shard; all others are hard links to its file under their own names, each with its own entry in
the manifest. The index is complete. Opening, planning, lookups and reading cost as much as in a real root of the same
size, but the frames do not fill the disk, and fit in the page cache.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import simplejpeg

from convert.index.derived import part_names, vector_field
from convert.index.table_writer import one_batch, write_table
from convert.index.tables import write_part
from convert.plan import shard_stem
from convert.registry.dataset import Part
from convert.shard.record_file import RecordWriter, encode_record
from convert.storage.durable import describe_file
from stream.format.manifest import Manifest, ShardEntry, Source, SplitEntry, Statistics, encode_manifest
from stream.format.names import FORMAT_VERSION, MANIFEST_NAME, TABLE_KINDS, TableKind, shard_file, table_file
from stream.format.schema import EPISODE_FIELDS, RECORD_FIELDS, STEP_FIELDS, feature_column

DATASETS = 29
EPISODE_PAIRS = 60
OFFSET = 5
_SIZE = 256
_FRAMES = 64
_GROUP = 64
"""Number of shards whose rows are written at once."""
ACTION = (Part(path="action", dims=7, quantity="other", kind="absolute"),)
STATE = (Part(path="observation/state", dims=8, quantity="other", kind="absolute"),)


@dataclass(frozen=True)
class Scale:
    """Size of a root: records and shards of all datasets together."""

    records: int
    shards: int

    @classmethod
    def of(cls, records: int) -> Scale:
        """Return about ``records`` records in shards of 3,000, at least one a dataset, as OXE's 6*10^7 in 20,000."""
        shards = max(DATASETS, records // 3000 // DATASETS * DATASETS)
        pairs = max(EPISODE_PAIRS, records // shards // EPISODE_PAIRS * EPISODE_PAIRS)
        return cls(pairs * shards, shards)


def make_root(folder: Path, scale: Scale) -> None:
    """Write a root of 29 datasets, ``synthetic_00`` and on.

    Raises:
        OSError: The folder cannot be written to, or its file system has no hard links.
    """
    for number in range(DATASETS):
        name = f"synthetic_{number:02}"
        place = folder / name / "1.0.0"
        split = place / "train"
        split.mkdir(parents=True)
        entry, tables = _write_shard(split, scale, seed=number)
        shards = [entry]
        for other in range(1, scale.shards // DATASETS):
            stem = shard_stem("train", other, scale.shards // DATASETS)
            os.link(split / shard_file(entry.name), split / shard_file(stem))
            shards.append(entry.model_copy(update={"name": stem, "source_file": f"{stem}.tfrecord"}))
        index = {
            kind: write_table(split / table_file(kind), kind, partial(_repeat, kind, tables, len(shards)))
            for kind in TABLE_KINDS
        }
        counts = {kind: sum(getattr(shard, kind) for shard in shards) for kind in TABLE_KINDS}
        manifest = _manifest(name, SplitEntry(shards=tuple(shards), index=index, **counts))
        (place / MANIFEST_NAME).write_bytes(encode_manifest(manifest))


def make_parts(folder: Path, *, episodes: int, shards: int) -> None:
    """Write the parts of an index as a conversion leaves them, one real shard and the others as hard links.

    Args:
        folder: New folder.
        episodes: Episodes of a shard.
        shards: Number of shards.
    """
    folder.mkdir()
    random = np.random.default_rng(0)
    records = episodes * EPISODE_PAIRS
    places = {
        "position": np.arange(records) * 1000,
        "num_bytes": np.full(records, 1000, np.int32),
        "xxh3_64": random.integers(0, 1 << 64, records, np.uint64),
    }
    tables = _tables("train-00000", episodes, places, random, derived=False)
    for kind, table in tables.items():
        first, *others = (folder / f"{shard:05}.{table_file(kind)}" for shard in range(shards))
        write_part(first, table)
        for other in others:
            os.link(first, other)


def _write_shard(folder: Path, scale: Scale, *, seed: int) -> tuple[ShardEntry, dict[TableKind, pa.Table]]:
    stem, records = shard_stem("train", 0, scale.shards // DATASETS), scale.records // scale.shards
    random = np.random.default_rng(seed)
    pictures = random.integers(0, 255, (_FRAMES, _SIZE // 8, _SIZE // 8, 3), np.uint8).repeat(8, 1).repeat(8, 2)
    frames = [simplejpeg.encode_jpeg(picture, quality=50) for picture in pictures]
    with RecordWriter(folder / shard_file(stem), output=folder) as writer:
        for record in range(records):
            writer.write(encode_record([frames[record % _FRAMES], frames[(record + OFFSET) % _FRAMES]]))
    tables = _tables(stem, records // EPISODE_PAIRS, writer.places(), random, derived=True)
    entry = ShardEntry(
        name=stem,
        source_file=f"{stem}.tfrecord",
        source_bytes=1,
        source_digest="",
        **{kind: table.num_rows for kind, table in tables.items()},
        paired_episodes=tables["episodes"].num_rows,
        left_out={},
        file=describe_file(folder / shard_file(stem)),
    )
    return entry, tables


def _repeat(kind: TableKind, tables: dict[TableKind, pa.Table], shards: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table of the index, of equal shards."""
    episodes, steps, records = (tables[kind].num_rows for kind in ("episodes", "steps", "records"))
    grows: dict[TableKind, dict[str, int]] = {
        "episodes": {"episode": episodes, "shard": 1, "first_steps_row": steps, "first_record": records},
        "steps": {"episode": episodes},
        "records": {"shard": 1, "episode": episodes, "steps_row": steps},
    }
    rows = tables[kind].num_rows
    for first in range(0, shards, _GROUP):
        count = min(_GROUP, shards - first)
        batch = one_batch(pa.concat_tables([tables[kind]] * count))
        shard = np.repeat(np.arange(first, first + count), rows)
        for name, growth in grows[kind].items():
            place = batch.schema.get_field_index(name)
            field = batch.schema.field(place)
            values = batch.column(place).to_numpy() + growth * shard
            batch = batch.set_column(place, field, pa.array(values, field.type))
        yield batch


def _tables(
    stem: str, episodes: int, places: Mapping[str, object], random: np.random.Generator, *, derived: bool
) -> dict[TableKind, pa.Table]:
    """Return the tables of one shard; ``steps`` has its vectors as derived or as raw columns."""
    length = EPISODE_PAIRS + OFFSET
    number = np.arange(episodes)
    texts = ["pick up the cup", "open the drawer"]
    heads = {
        "episode": number,
        "shard": 0 * number,
        "episode_id": [f"{stem}__{episode}" for episode in number],
        "source_file": [f"{stem}.tfrecord"] * episodes,
        "source_position": number,
        "status": ["ok"] * episodes,
        "num_steps": np.full(episodes, length),
        "first_steps_row": number * length,
        "num_records": np.full(episodes, EPISODE_PAIRS),
        "first_record": number * EPISODE_PAIRS,
        "language": [texts[episode % 2] for episode in number],
        "robot": ["arm"] * episodes,
    }
    episode, step = np.repeat(number, EPISODE_PAIRS), np.tile(np.arange(EPISODE_PAIRS), episodes)
    records = {
        "shard": 0 * episode,
        "episode": episode,
        "step": step,
        "camera": 0 * episode,
        "offset": np.full(len(episode), OFFSET),
        "steps_row": episode * length + step,
        **places,
    }
    steps: dict[str, object] = {
        "episode": np.repeat(number, length),
        "step": np.tile(np.arange(length), episodes),
        "language": [texts[episode % 2] for episode in np.repeat(number, length)],
    }
    vectors = []
    for name, parts in (("action", ACTION), ("state", STATE)):
        vectors.append(vector_field(name if derived else feature_column("steps", parts[0].path), parts))
        values = pa.array(random.standard_normal(episodes * length * parts[0].dims, np.float32))
        steps[vectors[-1].name] = pa.FixedSizeListArray.from_arrays(values, type=vectors[-1].type)
    return {
        "episodes": pa.Table.from_pydict(heads, pa.schema(EPISODE_FIELDS)),
        "steps": pa.Table.from_pydict(steps, pa.schema([*STEP_FIELDS, *vectors])),
        "records": pa.Table.from_pydict(records, pa.schema(RECORD_FIELDS)),
    }


def _manifest(name: str, split: SplitEntry) -> Manifest:
    counts = {kind: getattr(split, kind) for kind in TABLE_KINDS}
    vectors, offset = {"action": ACTION, "state": STATE}, {"offset": OFFSET}
    return Manifest(
        format_version=FORMAT_VERSION,
        layout="pairs",
        dataset=name,
        version="1.0.0",
        source=Source(tfds_name=name, version="1.0.0", path="", fingerprint=hashlib.sha256(name.encode()).hexdigest()),
        parameters={"columns": [], "camera": "image", **offset, "frames": "endpoints", "frame_offsets": [0, OFFSET]},
        spec={**{name: [part.model_dump(mode="json") for part in parts] for name, parts in vectors.items()}, **offset},
        image={"encoding": "jpeg", "sizes": {f"{_SIZE}x{_SIZE}": 2 * split.records}},
        left_out={},
        quarantine=None,
        splits={"train": split},
        statistics={"train": {vector: _statistics(parts, split.steps) for vector, parts in vectors.items()}},
        versions={},
        **counts,
    )


def _statistics(parts: Sequence[Part], steps: int) -> Statistics:
    names = part_names(parts)
    known = {"mean": 0.0, "std": 1.0, "min": -5.0, "max": 5.0, "q01": -2.3, "q99": 2.3}
    numbers = {key: (value,) * len(names) for key, value in known.items()}
    return Statistics(names=names, count=steps, nonfinite=(0,) * len(names), **numbers)
