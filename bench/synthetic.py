"""Synthetic roots and journals of any size in the real formats, made in seconds.

One shard is converted, and copied for each dataset. All others are hard links to it under their own names, each with
its own entry in the manifest. The index is complete. Opening, planning, lookups and reading cost as much as in a real
root of the same size, but the frames do not fill the disk, and fit in the page cache.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import simplejpeg

from bench.source import VERSION, convert_shards, encode_episode, finish, write_source
from convert.index.table_writer import one_batch, write_table
from convert.journal.journal import part_file
from convert.plan import Conversion, shard_stem
from stream.format.manifest import encode_manifest, read_manifest
from stream.format.names import MANIFEST_NAME, TABLE_KINDS, VECTORS, TableKind, shard_file, table_file
from stream.format.schema import STEP_FIELDS

DATASETS = 29
EPISODE_PAIRS = 60
OFFSET = 5
_SIZE = 256
_FRAMES = 64
_GROUP = 64
"""Number of shards whose rows are written at once."""


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
    count = scale.shards // DATASETS
    stems = [shard_stem("train", number, count) for number in range(count)]
    folder.mkdir()
    with tempfile.TemporaryDirectory(dir=folder) as work:
        conversion = _convert_shard(Path(work), scale.records // scale.shards // EPISODE_PAIRS)
        finish(conversion)
        one = Path(conversion.plan.output)
        manifest = read_manifest(one)
        (shard,) = manifest.splits["train"].shards
        tables = {kind: pa.ipc.open_file(one / "train" / table_file(kind)).read_all() for kind in TABLE_KINDS}
        # Without the raw columns, of which the vectors are derived, large roots stay small.
        tables["steps"] = tables["steps"].select([*(field.name for field in STEP_FIELDS), *VECTORS])
        totals: dict[Any, int] = {kind: count * table.num_rows for kind, table in tables.items()}
        for number in range(DATASETS):
            name = f"synthetic_{number:02}"
            split = folder / name / VERSION / "train"
            split.mkdir(parents=True)
            shutil.copy(one / "train" / shard_file(shard.name), split / shard_file(stems[0]))
            for stem in stems[1:]:
                os.link(split / shard_file(stems[0]), split / shard_file(stem))
            entry = manifest.splits["train"].model_copy(
                update={
                    "shards": tuple(shard.model_copy(update={"name": stem, "source_file": stem}) for stem in stems),
                    "index": {
                        kind: write_table(split / table_file(kind), kind, partial(_repeat, kind, tables, count))
                        for kind in TABLE_KINDS
                    },
                    **totals,
                }
            )
            image = {**manifest.image, "sizes": {size: count * n for size, n in manifest.image["sizes"].items()}}
            copy = manifest.model_copy(update={"dataset": name, "splits": {"train": entry}, "image": image, **totals})
            (split.parent / MANIFEST_NAME).write_bytes(encode_manifest(copy))


def make_parts(folder: Path, *, episodes: int, shards: int) -> None:
    """Write the parts of an index as a conversion leaves them, one real shard and the others as hard links.

    Args:
        folder: New folder.
        episodes: Episodes of a shard.
        shards: Number of shards.
    """
    folder.mkdir()
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        conversion = _convert_shard(Path(work), episodes)
        for kind in TABLE_KINDS:
            part = Path(conversion.plan.output, part_file(conversion.jobs[0].stem, kind))
            for shard in range(shards):
                os.link(part, folder / f"{shard:05}.{table_file(kind)}")


def _convert_shard(work: Path, episodes: int) -> Conversion:
    """Convert one shard of random pictures."""
    random = np.random.default_rng(0)
    pictures = random.integers(0, 255, (_FRAMES, _SIZE // 8, _SIZE // 8, 3), np.uint8).repeat(8, 1).repeat(8, 2)
    frames = [simplejpeg.encode_jpeg(picture, quality=50) for picture in pictures]
    shard = [
        encode_episode(
            number,
            [frames[(number * EPISODE_PAIRS + step) % _FRAMES] for step in range(EPISODE_PAIRS + OFFSET)],
            instruction=("pick up the cup", "open the drawer")[number % 2],
        )
        for number in range(episodes)
    ]
    source = write_source(
        work / "source", [shard], name="synthetic", shape=(_SIZE, _SIZE), encoding="jpeg", offset=OFFSET
    )
    return convert_shards(source, work / "root")


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
