"""Real TFDS datasets of one camera, an action and a state of seven values and an instruction; and their conversion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
import yaml

from convert.journal.journal import Journal
from convert.plan import Conversion, Options, plan_conversion
from convert.registry.registry import load_registry
from convert.run.finish import finalise
from convert.run.survey import survey
from convert.sample.record import encode_example
from convert.sample.writer import write_metadata
from convert.shard.images import FramePolicy
from convert.source.rlds.tfrecord import encode_tfrecord
from convert.source.source import find_source
from convert.tasks.merge import merge_split
from convert.tasks.shard import convert_shard

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
    """Write ``root/<name>/<version>`` and ``root/<name>.yaml``.

    Args:
        root: Folder to make.
        shards: Episodes of each shard, as ``encode_episode`` returns them.
        name: Name of the dataset.
        shape: Height and width of the frames.
        encoding: Encoding of the frames, ``jpeg`` or ``png``.
        offset: Steps between the frames of a pair.
    """
    folder = root / name / VERSION
    folder.mkdir(parents=True)
    files = tuple(folder / f"{name}-train.tfrecord-{number:05d}-of-{len(shards):05d}" for number in range(len(shards)))
    for file, episodes in zip(files, shards, strict=True):
        file.write_bytes(b"".join(episodes))
    vector = tfds.features.Tensor(shape=(DIMS,), dtype=np.float32)
    image = tfds.features.Image(shape=(*shape, 3), encoding_format=encoding)
    step = {
        "observation": {"image": image, "state": vector},
        "action": vector,
        "language_instruction": tfds.features.Text(),
    }
    features = tfds.features.FeaturesDict({"steps": tfds.features.Dataset(step)})
    splits = {"train": (list(map(len, shards)), sum(file.stat().st_size for file in files))}
    write_metadata(folder, name=name, version=VERSION, features=features, splits=splits)
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
    return encode_tfrecord(encode_example({f"steps/{name}": values for name, values in columns.items()}))


def convert_shards(source: Source, output: Path) -> Conversion:
    """Convert the shards of a source in this process, frames as they are; ``finish`` makes a dataset of them.

    Args:
        source: Source.
        output: Root.
    """
    (selected,) = load_registry(config=[str(source.config)]).resolve(source.name)
    found = find_source([str(source.root)], source.name, VERSION)
    options = Options(policy=FramePolicy(size=None), on_error="fail")
    conversion = plan_conversion(selected, found, options, output=str(output / source.name / VERSION))
    Journal(conversion.plan.output).begin(conversion.parameters)
    for job in conversion.jobs:
        convert_shard(job, conversion.plan)
    return conversion


def finish(conversion: Conversion) -> None:
    """Merge the index of converted shards, and write the manifest."""
    for job in survey(conversion).merges:
        merge_split(job, conversion.plan)
    finalise(conversion)
