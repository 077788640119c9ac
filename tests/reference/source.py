"""Small datasets as plain Python values: the truth that batches are compared with, and the roots converted from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.proto import tf_example_pb2

from convert.plan import ConvertConfig
from convert.shard.images import FramePolicy
from tests.fixtures.datasets.rlds_dataset import convert_dataset, jpeg, picture, png, serialise, write_dataset

DAMAGED = b"\xff\xd8\xffdamaged"
WORDS = ("open the drawer", "close the drawer", "wipe the table", "pick up é", "")
_NATIVE = FramePolicy(size=None)
_ALL: dict[str, Any] = {"layout": "frames", "cameras": ("all", "depth")}
_H264 = FramePolicy(size=None, codec="h264")
ROOTS: dict[str, ConvertConfig] = {
    "frames": ConvertConfig(policy=_NATIVE, **_ALL),
    "pairs": ConvertConfig(policy=_NATIVE),
    "clips": ConvertConfig(frames="all", policy=_NATIVE),
    "wrists": ConvertConfig(layout="frames", cameras=("wrist",), policy=_NATIVE),
    "raw": ConvertConfig(policy=FramePolicy(size=None, codec="raw"), **_ALL),
    "h264": ConvertConfig(policy=_H264, gop=3, crf=4, **_ALL),
    "av1": ConvertConfig(policy=FramePolicy(size=None, codec="av1"), gop=5, crf=4, **_ALL),
    "raw_and_h264": ConvertConfig(codecs={"primary": "raw"}, policy=_H264, gop=4, crf=4, **_ALL),
}
"""Options of the conversion into each root; datasets without a wrist camera are not in ``wrists``."""
CODEC_ROOTS = ("raw", "h264", "av1", "raw_and_h264")
"""Roots that store the frames of ``frames`` by another codec, losslessly in the first one."""


@dataclass(frozen=True)
class Episode:
    """An episode as its source has it.

    steps: values by column of ``steps``, a list with an entry a step; None for a value that the source lacks.
    facts: values by column of ``episodes``.
    pictures: JPEG of each step by camera, of depth a PNG; None for one that is missing or damaged.
    sizes: height and width of the pictures by camera.
    """

    length: int
    steps: dict[str, list[Any]]
    facts: dict[str, Any]
    pictures: dict[str, list[bytes | None]]
    sizes: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Vector:
    """A vector: the values of a step as float32, None for one without a value; kinds of its dimensions."""

    kinds: tuple[str, ...]
    values: Callable[[Episode, int], Sequence[Any]]


@dataclass(frozen=True)
class Source:
    """A dataset.

    cameras: role of each camera, in the order of the registry; ``depth/primary`` is one of depth. joint: vectors in the
    space ``joint``. without: the steps at either end of an episode that have no action there. features, entry: the
    feature tree and the registry's entry. splits: shards of episodes, by split.
    """

    name: str
    offset: int
    rate: float | None
    cameras: dict[str, str]
    action: Vector
    state: Vector
    joint: dict[str, Vector]
    without: tuple[int, int]
    features: dict[str, Any]
    entry: dict[str, Any]
    splits: dict[str, list[list[Episode]]] = field(default_factory=dict)

    def episodes(self, split: str) -> list[Episode]:
        return [episode for shard in self.splits[split] for episode in shard]

    def stored_cameras(self, root: str) -> list[str]:
        """Return the cameras whose frames a root has, in the order of their numbers."""
        roles = {"wrists": ("wrist",), "pairs": ("primary",), "clips": ("primary",)}.get(root)
        return [camera for camera, role in self.cameras.items() if roles is None or role in roles]

    def sizes(self, camera: str) -> set[tuple[int, int]]:
        episodes = [episode for split in self.splits for episode in self.episodes(split)]
        return {episode.sizes[camera] for episode in episodes if any(episode.pictures[camera])}


LENGTHS = {
    "alpha": {"train": [[7, 3, 9], [5], [1, 8, 11, 6]], "val": [[4, 6]]},
    "beta": {"train": [[6, 10, 2], [5, 12, 7, 9]]},
    "gamma": {"train": [[4, 6], [3, 9, 1, 5, 12, 8]], "val": [[7, 5]]},
    "delta": {"train": [[5, 8, 3], [9, 2, 6, 7]]},
}
_SIZES = ((17, 19), (26, 30), (23, 31), (16, 16))
"""Sizes of the frames of delta's first camera, one an episode; H.264 codes the first three in the same 32x32 pixels."""
_CAMERAS: dict[str, dict[str, Any]] = {
    "image": {"path": "observation/image", "role": "primary", "storage": "jpeg", "shape": [16, 16, 3]},
    "hand": {"path": "hand", "role": "wrist", "storage": "jpeg", "shape": [8, 8, 3]},
    "side": {"path": "side", "role": "primary", "storage": "jpeg", "shape": [16, 16, 3]},
    "far": {"path": "far", "role": "primary", "kind": "depth", "unit": "mm", "storage": "png", "shape": [16, 16, 1]},
}


def make_sources() -> dict[str, Source]:
    """Return the datasets: two cameras and depth, one, two and depth, and two of which one has frames of several sizes.

    They are with and without a state, a rate and a space.
    """
    arm = ("displacement", "velocity", "flag")
    return {
        "alpha": _source("alpha", 2, 5.0, ("hand", "image", "far"), action=arm, state=3, first=1),
        "beta": _source("beta", 3, 10.0, ("image",), action=("absolute", "displacement"), last=1),
        "gamma": _source("gamma", 1, None, ("hand", "side", "far"), action=("displacement",) * 4, state=2),
        "delta": _source("delta", 2, 10.0, ("image", "hand"), action=("absolute",) * 2, state=2),
    }


def _source(
    name: str,
    offset: int,
    rate: float | None,
    cameras: tuple[str, ...],
    *,
    action: tuple[str, ...],
    state: int = 0,
    first: int = 0,
    last: int = 0,
) -> Source:
    """Return a dataset; the space ``joint`` has no action at its ``first`` and ``last`` steps, and gamma lacks it."""

    def doubled(episode: Episode, t: int) -> list[float | None]:
        is_real = first <= t < episode.length - last
        return [*(2 * value if is_real else None for value in episode.steps["action_"][t]), None]

    def swapped(episode: Episode, t: int) -> list[float]:
        return [episode.steps["observation/state"][t][dimension] for dimension in (1, 0)]

    spaces: dict[str, Any] = {"unmapped": "it has none"}
    joint: dict[str, Vector] = {}
    if name != "gamma":
        terms = [{"path": "action", "dims": len(action), "then": [{"scale": 2}]}, {"pad": 1}]
        spaces = {"action": terms, "drop_first": first, "drop_last": last}
        joint["action"] = Vector(("absolute",) * (len(action) + 1), doubled)
        if state:
            spaces["state"] = [{"path": "observation/state", "select": [1, 0]}]
            joint["state"] = Vector(("absolute",) * 2, swapped)
    parts = [
        {"path": "action", "dims": 1, "select": [number], "quantity": "other", "kind": kind}
        for number, kind in enumerate(action)
    ]
    observed = {"path": "observation/state", "dims": state, "quantity": "other", "kind": "absolute"}
    source = Source(
        name,
        offset,
        rate,
        {camera: "depth/primary" if camera == "far" else _CAMERAS[camera]["role"] for camera in cameras},
        Vector(action, lambda episode, t: episode.steps["action_"][t]),
        Vector(("absolute",) * state, lambda episode, t: episode.steps["observation/state"][t]),
        joint,
        (first, last),
        _features(name, cameras, len(action), state),
        {
            "cameras": {camera: _CAMERAS[camera] for camera in cameras},
            "action": parts,
            "state": [observed] if state else [],
            "spaces": {"joint": spaces},
            "control_frequency": rate,
            "offset": offset,
            "success_path": "/episode_metadata/file_path",
        },
    )
    rng = np.random.default_rng(sum(name.encode()))
    for split, shards in LENGTHS[name].items():
        files = [f"{name}-{split}.tfrecord-{number:05d}-of-{len(shards):05d}" for number in range(len(shards))]
        source.splits[split] = [
            [_episode(rng, source, length, file, place, state) for place, length in enumerate(lengths)]
            for file, lengths in zip(files, shards, strict=True)
        ]
    return source


def _features(name: str, cameras: tuple[str, ...], action: int, state: int) -> dict[str, Any]:
    """Return the feature tree. Columns of one name differ in type between datasets, and ``three`` in width."""
    image = tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg")
    depth = tfds.features.Image(shape=(None, None, 1), dtype=np.uint16, encoding_format="png")
    observation = {"image": image} if "image" in cameras else {}
    if state:
        observation["state"] = tfds.features.Tensor(shape=(state,), dtype=np.float32)
    three = {"alpha": tfds.features.Tensor(shape=(3,), dtype=np.int16), "beta": np.int32}
    steps = {
        "observation": observation,
        "action": tfds.features.Tensor(shape=(action,), dtype=np.float32),
        "language_instruction": tfds.features.Text(),
        "is_last": np.bool_,
        "reward": np.float32 if name == "alpha" else np.float64,
        "count": np.int64,
        "note": tfds.features.Text(),
        "weight": np.float32,
        **({"three": three[name]} if name in three else {}),
        **{camera: depth if camera == "far" else image for camera in cameras if camera != "image"},
    }
    facts = ("file_path", "recording_folderpath") if name == "alpha" else ("file_path",)
    return {"steps": tfds.features.Dataset(steps), "episode_metadata": {fact: tfds.features.Text() for fact in facts}}


def _episode(
    rng: np.random.Generator, source: Source, length: int, file: str, episode_number: int, state: int
) -> Episode:
    words = [WORDS[i] for i in rng.integers(len(WORDS), size=length)]
    rewards = np.where(rng.random(length) < 0.2, np.nan, rng.integers(-2, 3, length) / 10)
    kind = np.float32 if source.name == "alpha" else np.float64
    steps: dict[str, list[Any]] = {
        "language": words,
        "language_instruction": words,
        "step": list(range(length)),
        "action_": list(rng.normal(size=(length, len(source.action.kinds))).astype(np.float32)),
        "reward": [kind(value) for value in rewards],
        "count": [int(value) for value in rng.integers(1 << 53, (1 << 53) + 4, length)],
        "is_last": [t == length - 1 for t in range(length)],
        "note": [WORDS[i] for i in rng.integers(len(WORDS), size=length)],
    }
    if state:
        steps["observation/state"] = list(rng.normal(size=(length, state)).astype(np.float32))
    if source.name == "alpha":
        steps["three"] = list(rng.integers(-99, 99, (length, 3)).astype(np.int16))
    if source.name == "beta":
        steps["three"] = [int(value) for value in rng.integers(-99, 99, length)]
    # An episode in three lacks a column.
    for name in ("reward", "note", "count"):
        if rng.random() < 0.3:
            steps[name] = [None] * length
    pictures: dict[str, list[bytes | None]] = {}
    sizes: dict[str, tuple[int, int]] = {}
    for camera in source.cameras:
        size = (8, 8) if camera == "hand" else (16, 16)
        if source.name == "delta":
            size = (10, 14) if camera == "hand" else _SIZES[length % len(_SIZES)]
        sizes[camera] = size
        # The last picture of an episode is missing more often.
        missing = rng.random(length) < np.where(np.arange(length) == length - 1, 0.25, 0.05)
        pictures[camera] = [None if is_missing else _picture(rng, camera, size) for is_missing in missing]
        if rng.random() < 0.1:
            pictures[camera] = [None] * length
    if not any(frame for frames in pictures.values() for frame in frames):
        pictures[camera][0] = _picture(rng, camera, size)
    weights = np.random.default_rng(length + episode_number).choice([0, 0.25, 1, 1, 2.5, 7], length)
    steps["weight"] = list(weights.astype(np.float32))
    folder = ("success", "failure", "other")[rng.integers(3)]
    facts: dict[str, Any] = {
        "episode_id": f"{file}__{episode_number}",
        "source_file": file,
        "source_position": episode_number,
        "num_steps": length,
        "success": {"success": True, "failure": False}.get(folder),
        "episode_metadata/file_path": f"/data/{folder}/{file[-14:]}/{episode_number}.h5",
    }
    if source.name == "alpha":
        facts["episode_metadata/recording_folderpath"] = f"gs://{folder}_{episode_number % 2}"
    return Episode(length, steps, facts, pictures, sizes)


def _picture(rng: np.random.Generator, camera: str, size: tuple[int, int]) -> bytes:
    if camera == "far":
        return png(rng.integers(0, 1 << 16, size, dtype=np.uint16))
    # One colour in several shades, which lose little where colours are stored at half the size.
    shades = picture(rng, size)[:, :, :1] * 0.6 + 30
    return jpeg((shades + rng.uniform(0, 60, 3)).astype(np.uint8), 98)


def _records(source: Source, episodes: list[Episode]) -> Iterator[bytes]:
    for episode in episodes:
        columns = [name for name in source.features["steps"].feature if name not in ("observation", *source.cameras)]
        rows = []
        for t in range(episode.length):
            row: dict[str, Any] = {}
            for name in columns:
                value = episode.steps["action_" if name == "action" else name][t]
                row[name] = value if value is not None else "" if name == "note" else 0
            row["observation"] = {}
            if source.state.kinds:
                row["observation"]["state"] = episode.steps["observation/state"][t]
            for camera in source.cameras:
                target = row["observation"] if camera == "image" else row
                target[camera] = episode.pictures[camera][t] or DAMAGED
            rows.append(row)
        metadata = {name: episode.facts[f"episode_metadata/{name}"] for name in source.features["episode_metadata"]}
        record = serialise(source.features, {"steps": rows, "episode_metadata": metadata})
        absent = [name for name in columns if name in episode.steps and episode.steps[name][0] is None]
        absent += [_CAMERAS[camera]["path"] for camera, frames in episode.pictures.items() if not any(frames)]
        proto = tf_example_pb2.Example.FromString(record)
        for name in absent:
            del proto.features.feature[f"steps/{name}"]
        yield proto.SerializeToString()


def convert_sources(folder: Path, sources: dict[str, Source]) -> None:
    """Write the datasets as TFDS does, and convert them into ``folder/<name of a root>``."""
    for source in sources.values():
        splits = {split: [list(_records(source, shard)) for shard in shards] for split, shards in source.splits.items()}
        written = write_dataset(folder / "source", source.name, features=source.features, splits=splits)
        for root, options in ROOTS.items():
            if root == "wrists" and "hand" not in source.cameras:
                continue
            convert_dataset(written.conversion(folder / root, options, **source.entry))
