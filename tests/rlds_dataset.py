"""Small real TFDS directories of any feature tree: TFDS declares features, lays out records and reads them back."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import tensorflow_datasets as tfds
import yaml
from etils import epath
from tensorflow_datasets.core import dataset_info
from tensorflow_datasets.core.splits import SplitDict

from convert.finalise import finalise
from convert.journal import Journal
from convert.merge import merge_split
from convert.plan import Conversion, Options, plan_conversion
from convert.registry import load_registry
from convert.shard import convert_shard
from convert.source import find_source
from convert.survey import survey
from convert.tfrecord import encode_tfrecord
from stream.manifest import Manifest

Episode = Mapping[str, Any]

DEMO_FIELDS: dict[str, Any] = {
    "version": "1.0.0",
    "description": "A dataset that a test wrote.",
    "cameras": {"image": {"path": "observation/image", "role": "primary", "storage": "jpeg", "shape": [24, 32, 3]}},
    "instruction": {"path": "language_instruction"},
    "action": [{"path": "action", "dims": 2, "quantity": "ee_position", "mode": "delta"}],
    "state": [{"path": "observation/state", "dims": 3, "quantity": "joint_position", "mode": "absolute"}],
    "control_frequency": 5,
    "offset": 2,
}
"""The registry's entry of a dataset with ``demo_features``."""


def demo_features(**steps: Any) -> dict[str, Any]:
    """The tree of a plain dataset; ``steps`` are further features of its steps."""
    return {
        "steps": tfds.features.Dataset(
            {
                "observation": {
                    "image": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
                    "state": tfds.features.Tensor(shape=(3,), dtype=np.float32),
                },
                "action": tfds.features.Tensor(shape=(2,), dtype=np.float32),
                "language_instruction": tfds.features.Text(),
                "is_last": np.bool_,
                **steps,
            }
        ),
        "episode_metadata": {"file_path": tfds.features.Text()},
    }


def demo_episode(steps: int, *, seed: int = 0, size: tuple[int, int] = (24, 32), **more: Any) -> dict[str, Any]:
    """An episode of ``demo_features``; ``more`` are values that every step has."""
    rng = np.random.default_rng(seed)
    return {
        "steps": [
            {
                "observation": {"image": jpeg(picture(rng, size)), "state": rng.normal(size=3).astype(np.float32)},
                "action": rng.normal(size=2).astype(np.float32),
                "language_instruction": f"task {seed}",
                "is_last": step == steps - 1,
                **more,
            }
            for step in range(steps)
        ],
        "episode_metadata": {"file_path": f"/data/{seed}.npy"},
    }


def picture(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """A smooth random picture, uint8 [H, W, 3]."""
    coarse = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return cv2.resize(coarse, (size[1], size[0]), interpolation=cv2.INTER_CUBIC)


def jpeg(pixels: np.ndarray, quality: int = 95) -> bytes:
    """Encode uint8 RGB [H, W, 3] or gray [H, W] as a JPEG."""
    return cv2.imencode(".jpg", pixels[..., ::-1] if pixels.ndim == 3 else pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])[
        1
    ].tobytes()


def png(pixels: np.ndarray) -> bytes:
    """Encode uint8 or uint16, RGB(A) [H, W, C] or gray [H, W], as a PNG."""
    order = [2, 1, 0, 3][: pixels.shape[2]] if pixels.ndim == 3 else None
    return cv2.imencode(".png", pixels[:, :, order] if order else pixels)[1].tobytes()


def serialise(features: Mapping[str, Any], episode: Episode) -> bytes:
    """The record of an episode, as TFDS writes it. Images may be given as encoded bytes."""
    tree = tfds.features.FeaturesDict(dict(features))
    serialiser = tfds.core.example_serializer.ExampleSerializer(tree.get_serialized_info())
    record: bytes = serialiser.serialize_example(tree.encode_example(_open_images(tree, episode)))
    return record


def _open_images(feature: Any, value: Any) -> Any:
    if isinstance(feature, tfds.features.FeaturesDict):
        return {key: _open_images(feature[key], child) for key, child in value.items()}
    if isinstance(feature, tfds.features.Dataset | tfds.features.Sequence) and isinstance(value, list):
        return [_open_images(feature.feature, child) for child in value]
    return io.BytesIO(value) if isinstance(feature, tfds.features.Image) and isinstance(value, bytes) else value


@dataclass(frozen=True)
class RldsDataset:
    """A TFDS directory ``root/<name>/<version>``."""

    root: Path
    name: str
    version: str = "1.0.0"

    @property
    def path(self) -> Path:
        return self.root / self.name / self.version

    def shard(self, split: str = "train", index: int = 0, *, count: int = 1) -> Path:
        """One of its TFRecord files."""
        return self.path / f"{self.name}-{split}.tfrecord-{index:05d}-of-{count:05d}"

    def registry(self, **fields: Any) -> Path:
        """Write a registry of this dataset and return its path; ``fields`` change or (None) remove ``DEMO_FIELDS``."""
        entry = {"tfds_name": self.name, **DEMO_FIELDS, "version": self.version, **fields}
        path = self.root / f"{self.name}.yaml"
        kept = {key: value for key, value in entry.items() if value is not None}
        # Renamed into place, because several processes of one test may write it.
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(yaml.safe_dump({"datasets": {self.name: kept}}))
        return temporary.replace(path)

    def conversion(self, output: Path, options: Options | None = None, **fields: Any) -> Conversion:
        """Plan its conversion into ``output/<name>/<version>``; ``fields`` as of ``registry``."""
        (selected,) = load_registry(config=[self.registry(**fields)]).resolve(self.name)
        source = find_source([str(self.root)], self.name, self.version)
        folder = output / self.name / self.version
        return plan_conversion(selected, source, options or Options(), output=str(folder))

    def read_episodes(self, split: str = "train") -> list[dict[str, Any]]:
        """What TFDS decodes, steps and ragged features as lists. Imports TensorFlow."""
        data = tfds.builder_from_directory(self.path).as_dataset(split=split, shuffle_files=False)
        return [_to_lists(episode) for episode in tfds.as_numpy(data)]


def _to_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_lists(child) for key, child in value.items()}
    if hasattr(value, "to_list"):
        return value.to_list()
    if isinstance(value, np.ndarray | np.generic | bytes):
        return value
    return [_to_lists(child) for child in value]


def convert_dataset(conversion: Conversion) -> Manifest:
    """Convert a dataset in this process, without a runner, and return the manifest."""
    Journal(conversion.plan.output).begin(conversion.parameters)
    for job in conversion.jobs:
        convert_shard(job, conversion.plan)
    merge_splits(conversion)
    manifest = finalise(conversion)
    assert manifest is not None
    return manifest


def merge_splits(conversion: Conversion) -> None:
    """Merge all splits whose shards are finished."""
    for split in survey(conversion).merges:
        assert merge_split(split, conversion.plan)


def write_dataset(
    root: Path,
    name: str = "demo",
    *,
    features: Mapping[str, Any] | None = None,
    splits: Mapping[str, Sequence[Sequence[Episode | bytes]]],
    version: str = "1.0.0",
) -> RldsDataset:
    """Write a dataset.

    Args:
        features: the tree; default ``demo_features``.
        splits: shards by split, each a list of episodes, or of records as they are to stand in the file.
    """
    dataset = RldsDataset(root, name, version)
    folder = epath.Path(dataset.path)
    folder.mkdir(parents=True, exist_ok=True)
    tree = demo_features() if features is None else dict(features)
    infos = []
    for split, shards in splits.items():
        size = 0
        for index, episodes in enumerate(shards):
            records = [entry if isinstance(entry, bytes) else serialise(tree, entry) for entry in episodes]
            size += sum(map(len, records))
            path = dataset.shard(split, index, count=len(shards))
            path.write_bytes(b"".join(map(encode_tfrecord, records)))
        template = tfds.core.ShardedFileTemplate(
            data_dir=folder, dataset_name=name, split=split, filetype_suffix="tfrecord"
        )
        lengths = [len(shard) for shard in shards]
        infos.append(tfds.core.SplitInfo(name=split, shard_lengths=lengths, num_bytes=size, filename_template=template))
    identity = dataset_info.DatasetIdentity(
        name=name, version=tfds.core.Version(version), data_dir=str(folder), module_name=""
    )
    info = tfds.core.DatasetInfo(builder=identity, features=tfds.features.FeaturesDict(tree), description="A test's.")
    info.set_file_format("tfrecord")
    info.set_splits(SplitDict(infos))
    info.write_to_directory(folder)
    return dataset
