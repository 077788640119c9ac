"""Synthetic data in the real formats: TFDS sources, converted datasets, and roots and journals of any size.

A source has one camera, an action and a state of seven values and an instruction. A large root is made in seconds: one
shard is converted, and copied for each dataset. All others are hard links to it under their own names, each with its
own entry in the manifest. The index is complete. Opening, planning, lookups and reading cost as much as in a real root
of the same size, but the frames do not fill the disk, and fit in the page cache.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import simplejpeg
import tensorflow_datasets as tfds
import yaml

from convert.jobs import shard_stem
from convert.journal.journal import part_file
from convert.journal.status import ShardStatus
from convert.plan import Conversion, ConvertConfig, plan_conversion
from convert.registry.registry import load_registry
from convert.run.finish import finalise
from convert.run.status import read_status
from convert.sample.record import encode_example
from convert.sample.writer import write_metadata
from convert.shard.images import FramePolicy
from convert.source.rlds.dataset import find_dataset
from convert.source.rlds.record_files import encode_tfrecord
from convert.tasks.merge import merge_split
from convert.tasks.shard import convert_shard
from stream.format.manifest import encode_manifest, read_manifest
from stream.format.names import MANIFEST_NAME, TABLE_KINDS, VECTORS, TableKind, shard_file, table_file
from stream.format.schema import STEP_FIELDS
from stream.format.table import write_table
from stream.storage.table_writer import one_batch

VERSION = "1.0.0"
CAMERA = "observation/image"
DIMS = 7
ACTION = [{"path": "action", "dims": DIMS, "quantity": "other", "kind": "displacement"}]
STATE = [{"path": "observation/state", "dims": DIMS, "quantity": "other", "kind": "absolute"}]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A dataset on disk; ``root`` is for ``--source``, ``config`` is the YAML file for ``--config``."""

    name: str
    root: Path
    config: Path
    files: tuple[Path, ...]


def write_source(
    root: Path, shards: Sequence[Sequence[bytes]], *, name: str, shape: tuple[int, int], encoding: str, offset: int
) -> Source:
    """Write ``root/<name>/<version>`` and ``root/<name>.yaml``, of shards of episodes of ``encode_episode``.

    ``shape`` is height and width of the frames, ``encoding`` is ``jpeg`` or ``png``, ``offset`` the steps of a pair.
    """
    folder = root / name / VERSION
    folder.mkdir(parents=True)
    files = tuple(folder / f"{name}-train.tfrecord-{number:05d}-of-{len(shards):05d}" for number in range(len(shards)))
    for file, episodes in zip(files, shards, strict=True):
        file.write_bytes(b"".join(episodes))
    vector = tfds.features.Tensor(shape=(DIMS,), dtype=np.float32)
    image = tfds.features.Image(shape=(*shape, 3), encoding_format=encoding)
    step = {"observation": {"image": image, "state": vector}, "action": vector}
    step["language_instruction"] = tfds.features.Text()
    features = tfds.features.FeaturesDict({"steps": tfds.features.Dataset(step)})
    splits = {"train": (list(map(len, shards)), sum(file.stat().st_size for file in files))}
    write_metadata(folder, dataset_name=name, version=VERSION, features=features, splits=splits)
    entry = {
        "tfds_name": name,
        "version": VERSION,
        "description": f"Generated {shape[0]}x{shape[1]} {encoding.upper()} frames.",
        "cameras": {"image": {"path": CAMERA, "role": "primary", "storage": encoding, "shape": [*shape, 3]}},
        "instruction": {"path": "language_instruction"},
        "action": ACTION,
        "state": STATE,
        "offset": offset,
    }
    config = root / f"{name}.yaml"
    config.write_text(yaml.safe_dump({"datasets": {name: entry}}, sort_keys=False))
    return Source(name=name, root=root, config=config, files=files)


def encode_episode(number: int, frames: Sequence[bytes], *, instruction: str) -> bytes:
    """Return an episode of encoded frames as an entry of a TFRecord file; its vectors depend on its number."""
    random = np.random.default_rng([3, number])
    columns: dict[str, Any] = {
        CAMERA: frames,
        "observation/state": random.normal(size=(len(frames), DIMS)).astype(np.float32),
        "action": random.normal(size=(len(frames), DIMS)).astype(np.float32),
        "language_instruction": [instruction.encode()] * len(frames),
    }
    return encode_tfrecord(encode_example({f"steps/{column_name}": values for column_name, values in columns.items()}))


def convert_shards(source: Source, output: Path) -> Conversion:
    """Convert the shards of a source in this process, frames as they are; ``finish`` makes a dataset of them."""
    (selected,) = load_registry(config=[str(source.config)]).resolve(source.name)
    dataset = find_dataset([str(source.root)], source.name, VERSION)
    options = ConvertConfig(policy=FramePolicy(size=None), on_error="fail")
    conversion = plan_conversion(selected, dataset, options, output_folder=str(output / source.name / VERSION))
    convert_jobs(conversion)
    return conversion


def convert_jobs(conversion: Conversion) -> list[ShardStatus]:
    """Convert all shards of a conversion in this process, and return their statuses."""
    conversion.journal.begin(conversion.journal_parameters)
    return [status for job in conversion.jobs if (status := convert_shard(job, conversion.plan))]


def finish(conversion: Conversion) -> None:
    """Merge the index of converted shards, and write the manifest."""
    for job in read_status(conversion).pending_merges:
        merge_split(job, conversion.plan)
    finalise(conversion)


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
    """Write a root of 29 datasets, ``synthetic_00`` and on."""
    count = scale.shards // DATASETS
    stems = [shard_stem("train", number, count) for number in range(count)]
    folder.mkdir()
    with tempfile.TemporaryDirectory(dir=folder) as work_path:
        conversion = _convert_shard(Path(work_path), scale.records // scale.shards // EPISODE_PAIRS)
        finish(conversion)
        converted = Path(conversion.plan.output)
        manifest = read_manifest(converted)
        (shard,) = manifest.splits["train"].shards
        tables = {kind: pa.ipc.open_file(converted / "train" / table_file(kind)).read_all() for kind in TABLE_KINDS}
        # Without the raw columns, of which the vectors are derived, large roots stay small.
        tables["steps"] = tables["steps"].select([*(field.name for field in STEP_FIELDS), *VECTORS])
        totals: dict[Any, int] = {kind: count * table.num_rows for kind, table in tables.items()}
        for number in range(DATASETS):
            dataset_name = f"synthetic_{number:02}"
            split = folder / dataset_name / VERSION / "train"
            split.mkdir(parents=True)
            shutil.copy(converted / "train" / shard_file(shard.name), split / shard_file(stems[0]))
            for stem in stems[1:]:
                os.link(split / shard_file(stems[0]), split / shard_file(stem))
            shards = tuple(shard.model_copy(update={"name": stem, "source_file": stem}) for stem in stems)
            index = {
                kind: write_table(split / table_file(kind), kind, _repeat(kind, tables, count)) for kind in TABLE_KINDS
            }
            entry = manifest.splits["train"].model_copy(update={"shards": shards, "index": index, **totals})
            sizes = {size: count * frames for size, frames in manifest.image["sizes"].items()}
            changes = {"dataset": dataset_name, "splits": {"train": entry}, "image": {**manifest.image, "sizes": sizes}}
            copy = manifest.model_copy(update={**changes, **totals})
            (split.parent / MANIFEST_NAME).write_bytes(encode_manifest(copy))


def make_parts(folder: Path, scale: Scale) -> None:
    """Write the parts of a split's index as a conversion leaves them, one real shard and the others as hard links."""
    folder.mkdir()
    with tempfile.TemporaryDirectory(dir=folder.parent) as work_path:
        conversion = _convert_shard(Path(work_path), scale.records // scale.shards // EPISODE_PAIRS)
        for kind in TABLE_KINDS:
            part = Path(conversion.plan.output, part_file(conversion.jobs[0].stem, kind))
            for shard in range(scale.shards):
                os.link(part, folder / f"{shard:05}.{table_file(kind)}")


def _convert_shard(work_path: Path, episodes: int) -> Conversion:
    """Convert one shard of random pictures."""
    random = np.random.default_rng(0)
    pictures = random.integers(0, 255, (_FRAMES, _SIZE // 8, _SIZE // 8, 3), np.uint8).repeat(8, 1).repeat(8, 2)
    frames = [simplejpeg.encode_jpeg(picture, quality=50) for picture in pictures]
    shard = []
    for number in range(episodes):
        shown = [frames[(number * EPISODE_PAIRS + step) % _FRAMES] for step in range(EPISODE_PAIRS + OFFSET)]
        shard.append(encode_episode(number, shown, instruction=("pick up the cup", "open the drawer")[number % 2]))
    shape = (_SIZE, _SIZE)
    source = write_source(work_path / "source", [shard], name="synthetic", shape=shape, encoding="jpeg", offset=OFFSET)
    return convert_shards(source, work_path / "root")


def _repeat(kind: TableKind, tables: dict[TableKind, pa.Table], shards: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table of the index, of equal shards."""
    episodes, steps, records = (tables[kind].num_rows for kind in ("episodes", "steps", "records"))
    grows: dict[TableKind, dict[str, int]] = {
        "episodes": {"episode": episodes, "shard": 1, "first_steps_row": steps, "first_record": records},
        "steps": {"episode": episodes},
        "records": {"shard": 1, "episode": episodes, "steps_row": steps},
    }
    num_rows = tables[kind].num_rows
    for first in range(0, shards, _GROUP):
        count = min(_GROUP, shards - first)
        batch = one_batch(pa.concat_tables([tables[kind]] * count))
        shard = np.repeat(np.arange(first, first + count), num_rows)
        for column_name, growth in grows[kind].items():
            column_index = batch.schema.get_field_index(column_name)
            field = batch.schema.field(column_index)
            values = batch.column(column_index).to_numpy() + growth * shard
            batch = batch.set_column(column_index, field, pa.array(values, field.type))
        yield batch
