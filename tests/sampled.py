"""Samples of all datasets, each made when it is first asked for, and ways to read them back."""

from __future__ import annotations

import fcntl
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.proto import tf_example_pb2

from convert.registry import load_registry
from convert.sample import make_sample
from convert.tfrecord import TFRecordFile

EPISODES, STEPS = 2, 3

REGISTRY = load_registry()
NAMES = [selected.spec.name for selected in REGISTRY.resolve("oxe29")] + ["bridge_dataset"]

Sample = Callable[[str], Path]


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """The directory of a dataset's sample by name, made when it is first asked for; workers of xdist share them."""
    root = tmp_path_factory.getbasetemp()
    root = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "sample"
    root.mkdir(exist_ok=True)

    @functools.cache
    def directory(name: str) -> Path:
        spec = REGISTRY.dataset(name)
        with open(root / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            make_sample(root, [spec], episodes=EPISODES, steps=STEPS, jobs=1)
        return root / spec.tfds_name / spec.version

    return directory


def records(directory: Path, split: str) -> Iterator[bytes]:
    for path in sorted(directory.glob(f"*-{split}.tfrecord-*")):
        with path.open("rb") as file:
            for record in TFRecordFile(file, name=path.name, size=path.stat().st_size):
                assert isinstance(record, bytes)
                yield record


def parsed(directory: Path, split: str = "train") -> list[dict[str, Any]]:
    """The values of each feature of each record, as stored."""
    found = []
    for record in records(directory, split):
        features = tf_example_pb2.Example.FromString(record).features.feature
        found.append({key: list(getattr(f, f.WhichOneof("kind")).value) for key, f in features.items()})
    return found


def digest(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def read_by_tfds(directory: Path, split: str) -> list[dict[str, Any]]:
    """Every episode as TFDS decodes it: a list of steps under ``steps``, all values in numpy."""
    builder = tfds.builder_from_directory(str(directory))
    episodes = []
    for episode in tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False)):
        episodes.append({**episode, "steps": list(episode["steps"])})
    return episodes


def pixels(stored: bytes, *, depth: bool = False) -> Any:
    """An encoded image as OpenCV decodes it, channels in their stored order."""
    image: Any = cv2.imdecode(np.frombuffer(stored, np.uint8), cv2.IMREAD_UNCHANGED)
    if image.ndim == 2:
        return image[:, :, None]
    if depth:
        return cv2.cvtColor(image, cv2.COLOR_BGRA2RGBA).view(np.float32)
    return image[:, :, ::-1]
