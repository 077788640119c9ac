"""What reads input that others wrote, each as a function of bytes that lets only errors of ours out."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import tensorflow_datasets as tfds

from convert.errors import (
    ConfigError,
    ConvertError,
    CorruptFrame,
    DamagedRecord,
    MalformedEpisode,
    SourceError,
    UsageError,
)
from convert.registry.registry import load_registry
from convert.shard.images import FramePolicy, convert_frame
from convert.shard.record_file import encode_record
from convert.source.rlds.dataset import find_dataset
from convert.source.rlds.metadata import flatten_features
from convert.source.rlds.parser import EpisodeParser
from convert.source.rlds.record_files import TFRecordFile, encode_tfrecord
from stream.base.errors import ArgumentError, FormatError, StateError, StreamError
from stream.format.catalog import Catalog
from stream.format.fields import read_fields
from stream.format.manifest import read_manifest
from stream.format.names import TABLE_KINDS, TableKind, decode_record, frame_views, table_file
from stream.format.table import open_table
from stream.loader.loader import Loader
from stream.loader.opening import load_loader, make_loader
from stream.order.mixture import resolve_mixture
from stream.order.splits import SplitError, resolve_split
from stream.sample.frames import Frames
from stream.sample.select import Select
from stream.sample.vector import Vector
from tests.fixtures.datasets.rlds_dataset import demo_episode, demo_features, jpeg, png, serialise, write_dataset
from tests.fuzz.mutations import mutate_bytes, mutate_json


@dataclass(frozen=True)
class Target:
    """read: takes any bytes; raises nothing but a bug. seeds: sound input. mutate: makes input of a seed."""

    read: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    mutate: Callable[[bytes, Random], bytes] = mutate_bytes


_SPLITS = (b"train[:90%]", b"train[10:] + val", b"all", b"train[-2shard:]", b"train[1_000:]", b"train[12.5%:-3%]")
_YAML = b"""description: two
members:
  bridge: {weight: 1, splits: {train: "train[:90%]", val: "train[90%:]"}}
  kuka: {weight: {size_power: 0.5, factor: 2}, offset: 5, select: {where: [[step, ">", 1]], min_future_actions: 2},
         frames: {steps: [0, "0.2s"]}, action: {steps: 4, columns: [[reward, [0]]]}, state: {start: -1}}
"""
_DATASETS = b"""datasets:
  mine: {tfds_name: mine, version: 1.0.0, description: x, control_hz: 5, robot: arm,
         cameras: {image: {path: observation/image}}, offset: 5}
mixtures:
  both: {description: x, members: {bridge: {weight: 1}, kuka: {weight: size}}}
"""


def make_targets(root: Path, work: Path) -> dict[str, Target]:
    """Return all targets by name."""
    return {
        "tfrecord": Target(_read_tfrecord, (encode_tfrecord(b"first") + encode_tfrecord(bytes(300)),)),
        "episode": Target(_read_episode, (serialise(demo_features(), demo_episode(4)),)),
        "record": Target(_read_record, (encode_record([b"one", b"two", bytes(70)]),)),
        "frame": Target(_read_frame, _frames()),
        "split": Target(_read_split, _SPLITS),
        "mixture": _mixture(root, work / "mixture.yaml"),
        "datasets": Target(_datasets(work / "datasets.yaml"), (_YAML, _DATASETS)),
        **{kind: _table(root, kind, work / table_file(kind)) for kind in TABLE_KINDS},
        "manifest": _manifest(root, work / "dataset.json"),
        "loader.json": _loader_json(root, work / "loader.json"),
        "state": _state(root),
        **_source(work),
    }


def _read_tfrecord(content: bytes) -> None:
    for record in TFRecordFile(io.BytesIO(content), name="fuzz", size=len(content)):
        assert isinstance(record, bytes | DamagedRecord)


_LEAVES = flatten_features(tfds.features.FeaturesDict(demo_features()), context="fuzz")
_PARSER = EpisodeParser(
    [_LEAVES["steps/observation/image"]], [leaf for leaf in _LEAVES.values() if leaf.kind == "tensor"]
)


def _read_episode(content: bytes) -> None:
    try:
        episode = _PARSER.parse(content)
    except MalformedEpisode:
        return
    assert all(column.rows in (1, episode.num_steps) for column in episode.steps.values())


def _read_record(content: bytes) -> None:
    try:
        frames = frame_views(content)
    except FormatError:
        return
    assert sum(map(len, frames)) + 8 + 4 * len(frames) == len(content)
    assert [bytes(frame) for frame in frames] == decode_record(content)


def _frames() -> tuple[bytes, ...]:
    pixels = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)
    return jpeg(pixels), png(pixels)


def _read_frame(content: bytes) -> None:
    try:
        frame = convert_frame(content, FramePolicy(size=(16, 16)), channels="rgb")
    except CorruptFrame:
        return
    assert frame.size == (16, 16)


def _read_split(content: bytes) -> None:
    lengths = {"train": [4, 3, 3], "val": [5]}
    try:
        ranges = resolve_split(content.decode("utf-8", errors="replace"), lengths)
    except SplitError:
        return
    assert all(0 <= episodes.start <= episodes.stop <= sum(lengths[episodes.split]) for episodes in ranges)


def _mixture(root: Path, path: Path) -> Target:
    catalog = Catalog(root)

    def read(content: bytes) -> None:
        path.write_bytes(content)
        try:
            members = resolve_mixture(path, "train", catalog).members
        except ArgumentError:
            return
        weights = [weight for member in members for weight in member.relative_weights(100)]
        assert all(0 <= weight < 1e300 for weight in weights)

    return Target(read, (_YAML,))


def _datasets(path: Path) -> Callable[[bytes], None]:
    def read(content: bytes) -> None:
        path.write_bytes(content)
        try:
            load_registry(config=[path])
        except ConfigError:
            return

    return read


def _table(root: Path, kind: TableKind, path: Path) -> Target:
    def read(content: bytes) -> None:
        # A new file: the old one may be mapped.
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        try:
            table = open_table(path, kind)
        except FormatError:
            return
        # Whatever opens can be read at its first and last row, or is an error of ours.
        rows = np.unique(np.clip([0, len(table) - 1], 0, None))[: len(table)]
        for name, column in table.columns.items():
            try:
                if column.texts is not None:
                    table.take_texts(name, rows)
                elif column.dtype is not None:
                    table.take(name, rows)
                table.valid(name, rows)
            except FormatError:
                continue

    return Target(read, tuple(file.read_bytes() for file in sorted(root.glob(f"bridge/*/train/{path.name}"))))


def sign(content: bytes) -> bytes:
    """Give a manifest its right checksum, if it is an object."""
    try:
        tree = json.loads(content)
        unsigned = json.dumps({**tree, "checksum": "0" * 64}).encode()
    except (ValueError, TypeError, RecursionError):
        return content
    return unsigned.replace(b"0" * 64, hashlib.sha256(unsigned).hexdigest().encode())


def _manifest(root: Path, path: Path) -> Target:
    def read(content: bytes) -> None:
        path.write_bytes(sign(content))
        try:
            read_fields(read_manifest(path), context="fuzz")
        except FormatError:
            return

    (seed,) = root.glob("bridge/*/dataset.json")
    return Target(read, (seed.read_bytes(),), mutate_json)


def _loader(root: Path) -> Loader:
    own = {"weight": 2.5, "select": {"where": [("step", ">", 1)]}, "frames": {"steps": ["offset"]}, "action": 2}
    mixture = {"bridge": {"select": {"keep_ranges": {"*": [[0, 4]]}}, "state": {"start": -1}}, "kuka": own}
    select = Select(where={"kuka": [("step", "<", 9)]}, episodes={"bridge": {"leave_out": ["*__1"]}})
    frames = Frames([0, "offset"], cameras={"view": ["primary"]}, size={"view": (32, 32)}, times=True)
    action = Vector(3, columns={"kuka": [("reward", [0]), "is_first"]})
    return make_loader(root, mixture, batch_size=2, frames=frames, action=action, select=select, columns=["is_first"])


def _loader_json(root: Path, path: Path) -> Target:
    _loader(root).save(path)
    seed = path.read_bytes()

    def read(content: bytes) -> None:
        path.write_bytes(content)
        try:
            load_loader(path).batch_at(1)
        except StreamError:
            return

    return Target(read, (seed,), mutate_json)


def _state(root: Path) -> Target:
    loader = _loader(root)

    def read(content: bytes) -> None:
        try:
            state = json.loads(content)
        except (ValueError, RecursionError):
            return
        try:
            step = loader.step_of(state)
        except StateError:
            return
        assert step >= 0
        try:
            loader.describe(step)
        except ArgumentError:
            return

    return Target(read, (json.dumps(loader.state_at(7)).encode(),), mutate_json)


def _source(work: Path) -> dict[str, Target]:
    written = write_dataset(work / "source", splits={"train": [[demo_episode(3)], [demo_episode(2)]]})

    def target(name: str) -> Target:
        path = written.path / name
        seed = path.read_bytes()

        def read(content: bytes) -> None:
            path.write_bytes(content)
            try:
                source = find_dataset([str(written.root)], "demo", "1.0.0")
                for split in source.select_splits(None):
                    assert all(Path(shard.path).parent == written.path for shard in source.shards(split))
                source.select_episodes("train[:1]")
            except (SourceError, UsageError, ConvertError):
                return
            finally:
                path.write_bytes(seed)

        return Target(read, (seed,), mutate_json)

    return {name: target(name) for name in ("features.json", "dataset_info.json")}
