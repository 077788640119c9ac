"""What TFDS itself decodes of a dataset: the reference that a conversion is compared with. Imports TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from convert.registry import Part


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A leaf of the feature tree.

    name: flattened, relative to the steps, or with a leading slash to the episode, as in the registry. depth: how many
    sequences are around the value.
    """

    name: str
    depth: int
    connector: Any = field(repr=False)

    @property
    def of_steps(self) -> bool:
        return not self.name.startswith("/")

    @property
    def is_image(self) -> bool:
        return isinstance(self.connector, tfds.features.Image)

    @property
    def is_text(self) -> bool:
        return np.dtype(self.connector.np_dtype).kind in "OSU"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.connector.shape)


@dataclass(frozen=True, kw_only=True)
class ReferenceEpisode:
    """An episode, values by ``Leaf.name``; images as the stored bytes, ragged ones as TFDS has them."""

    tfds_id: str
    split: str
    steps: list[dict[str, Any]]
    values: dict[str, Any]


class Reference:
    """One dataset as TFDS decodes it, in the order of its files."""

    def __init__(self, folder: Path) -> None:
        """``folder``: with dataset_info.json."""
        self._builder = tfds.builder_from_directory(folder)
        self._pictures: dict[tuple[str, int, str], np.ndarray] = {}
        features = self._builder.info.features
        self.leaves = {leaf.name: leaf for leaf in _leaves(features, "", depth=0)}
        self.splits = {name: split.num_examples for name, split in self._builder.info.splits.items()}

    @cached_property
    def episodes(self) -> dict[str, ReferenceEpisode]:
        """All episodes of all splits by TFDS's id, in order."""
        features = self._builder.info.features
        data = self._builder.as_dataset(
            split="+".join(self.splits),
            shuffle_files=False,
            # Images are decoded when they are asked for.
            decoders=_skip_images(features),
            read_config=tfds.ReadConfig(interleave_cycle_length=1, add_tfds_id=True, try_autocache=False),
        )
        split_of_each = iter([name for name, count in self.splits.items() for _ in range(count)])
        rest = tfds.features.FeaturesDict({key: node for key, node in features.items() if key != "steps"})
        found = {}
        for raw in tfds.as_numpy(data):
            steps = [dict(_flatten(features["steps"].feature, step, "")) for step in raw["steps"]]
            tfds_id = raw["tfds_id"].decode()
            found[tfds_id] = ReferenceEpisode(
                tfds_id=tfds_id, split=next(split_of_each), steps=steps, values=dict(_flatten(rest, raw, "/"))
            )
        return found

    def of_split(self, split: str) -> list[ReferenceEpisode]:
        """The episodes of a split, in order."""
        return [episode for episode in self.episodes.values() if episode.split == split]

    def ids(self, expression: str) -> list[str]:
        """TFDS's ids of the episodes of a split expression such as ``train[:10%]``, in order."""
        data = self._builder.as_dataset(
            split=expression,
            shuffle_files=False,
            decoders={"steps": tfds.decode.SkipDecoding()},
            read_config=tfds.ReadConfig(interleave_cycle_length=1, add_tfds_id=True, try_autocache=False),
        )
        return [tfds_id.decode() for tfds_id in data.map(lambda episode: episode["tfds_id"]).as_numpy_iterator()]

    def vectors(self, split: str, parts: Sequence[Part]) -> np.ndarray:
        """The vector that the registry's parts make of each step of a split, float64 [steps, dims]."""
        return np.stack([_assemble(step, parts) for episode in self.of_split(split) for step in episode.steps])

    def picture(self, tfds_id: str, step: int, *, camera: str) -> np.ndarray:
        """A frame as TFDS decodes it, uint8 [H, W, C], channels in their stored order."""
        key = (tfds_id, step, camera)
        if key not in self._pictures:
            stored = self.episodes[tfds_id].steps[step][camera]
            leaf = self.leaves[camera]
            decoded = leaf.connector.decode_example(tf.constant(stored)).numpy() if leaf.is_image else stored
            self._pictures[key] = decoded
        return self._pictures[key]


def decode_jpeg(data: bytes) -> np.ndarray:
    """Decode a JPEG as TFDS does, uint8 [H, W, C]."""
    pixels: np.ndarray = tf.io.decode_jpeg(data).numpy()
    return pixels


def resize(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Stretch a picture to float32 [height, width, C]: averaged where it shrinks, interpolated where it grows."""
    inner = (min(height, picture.shape[0]), min(width, picture.shape[1]))
    shrunk = tf.image.resize(picture.astype(np.float32), inner, method="area")
    grown: np.ndarray = tf.image.resize(shrunk, (height, width), method="bilinear").numpy()
    return grown


def summary(values: np.ndarray) -> dict[str, np.ndarray]:
    """The statistics that a manifest has, of float64 [steps, dims]."""
    low, high = np.quantile(values, (0.01, 0.99), axis=0)
    return {
        "mean": values.mean(axis=0),
        "std": values.std(axis=0),
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "q01": low,
        "q99": high,
    }


def _assemble(step: Mapping[str, Any], parts: Sequence[Part]) -> np.ndarray:
    pieces = []
    for part in parts:
        flat = np.ravel(step[part.path]).astype(np.float64)
        pieces.append(flat if part.select is None else flat[list(part.select)])
        assert len(pieces[-1]) == part.dims
    return np.concatenate(pieces)


def _leaves(node: Any, path: str, *, depth: int) -> Iterator[Leaf]:
    if isinstance(node, tfds.features.FeaturesDict):
        for key, child in node.items():
            if path == "" and key == "steps":
                yield from _leaves(child.feature, "steps", depth=0)
            else:
                yield from _leaves(child, f"{path}/{key}", depth=depth)
    elif isinstance(node, tfds.features.Sequence):
        yield from _leaves(node.feature, path, depth=depth + 1)
    else:
        yield Leaf(name=path.removeprefix("steps/"), depth=depth, connector=node)


def _skip_images(node: Any) -> Any:
    """Decoders that leave every image of the tree as it is stored; None where there is none."""
    if isinstance(node, tfds.features.FeaturesDict):
        found = {key: _skip_images(child) for key, child in node.items()}
        return {key: decoder for key, decoder in found.items() if decoder is not None} or None
    if isinstance(node, tfds.features.Dataset):
        return _skip_images(node.feature)
    return tfds.decode.SkipDecoding() if isinstance(node, tfds.features.Image) else None


def _flatten(node: Any, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Walk the tree and a value of it; sequences of dictionaries are dictionaries of sequences."""
    if isinstance(node, tfds.features.FeaturesDict):
        for key, child in node.items():
            yield from _flatten(child, value[key], f"{path}/{key}" if path.strip("/") else f"{path}{key}")
    elif isinstance(node, tfds.features.Sequence):
        yield from _flatten(node.feature, value, path)
    else:
        yield path, value
