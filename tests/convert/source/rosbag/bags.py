"""Bags of the tests, written by the writers of rosbags."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import yaml
from rosbags.rosbag1 import Writer as Writer1
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
from rosbags.rosbag2 import Writer as Writer2
from rosbags.typesys import Stores, get_typestore

from convert.errors import DamagedEpisode
from convert.shard.images import encode_jpeg
from convert.source.episode import Column, Episode
from convert.source.features import Feature
from convert.source.files.source import FilesSource
from convert.source.protocol import ReadRequest

Form = Literal["ros1", "sqlite3", "mcap", "plain"]
FORMS: tuple[Form, ...] = ("ros1", "sqlite3", "mcap", "plain")
START = 1_700_000_000_000_000_000
"""First stamp of the bags, in nanoseconds."""
FRONT, DEPTH, JOINTS = "/front/image/compressed", "/depth/image_raw", "/joint_states"
COMMAND, TASK = "/command", "/task"


class Sent(NamedTuple):
    """A message to write: stamp and receipt in nanoseconds."""

    topic: str
    kind: str
    stamp: int
    received: int
    content: Any


class Types:
    """Messages of a version of ROS."""

    def __init__(self, form: Form) -> None:
        self.ros1 = form == "ros1"
        self.store = get_typestore(Stores.ROS1_NOETIC if self.ros1 else Stores.ROS2_HUMBLE)

    def make(self, kind: str, **values: Any) -> Any:
        return self.store.types[kind](**values)

    def header(self, stamp: int) -> Any:
        time = self.make("builtin_interfaces/msg/Time", sec=stamp // 10**9, nanosec=stamp % 10**9)
        return self.make("std_msgs/msg/Header", stamp=time, frame_id="", **({"seq": 0} if self.ros1 else {}))

    def pose(self, numbers: Iterable[float]) -> Any:
        x, y, z, qx, qy, qz, qw = numbers
        return self.make(
            "geometry_msgs/msg/Pose",
            position=self.make("geometry_msgs/msg/Point", x=x, y=y, z=z),
            orientation=self.make("geometry_msgs/msg/Quaternion", x=qx, y=qy, z=qz, w=qw),
        )

    def joints(self, stamp: int, values: Any, names: Iterable[str] = ("a", "b", "c"), **more: Any) -> Any:
        values = np.asarray(values, np.float64)
        fields = {"position": values, "velocity": values * 10, "effort": np.zeros(0), **more}
        return self.make("sensor_msgs/msg/JointState", header=self.header(stamp), name=list(names), **fields)

    def compressed(self, stamp: int, data: bytes, form: str = "rgb8; jpeg compressed bgr8") -> Any:
        array = np.frombuffer(data, np.uint8)
        return self.make("sensor_msgs/msg/CompressedImage", header=self.header(stamp), format=form, data=array)

    def image(self, stamp: int, pixels: np.ndarray, encoding: str, *, pad: int = 0, big: bool = False) -> Any:
        rows = np.ascontiguousarray(pixels.astype(pixels.dtype.newbyteorder(">" if big else "<")))
        rows = rows.view(np.uint8).reshape(len(pixels), -1)
        data = np.pad(rows, ((0, 0), (0, pad)), constant_values=77)
        form = {"encoding": encoding, "is_bigendian": int(big), "step": data.shape[1], "data": data.reshape(-1)}
        size = {"height": pixels.shape[0], "width": pixels.shape[1]}
        return self.make("sensor_msgs/msg/Image", header=self.header(stamp), **size, **form)


def write(
    path: Path, form: Form, messages: Iterable[Sent], *, compress: Literal["no", "message", "file"] = "no"
) -> Path:
    """Write a bag and return its path."""
    types = Types(form)
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "ros1":
        path = path.with_suffix(".bag")
        with Writer1(path) as writer1:
            writer1.chunk_threshold = 5000
            _send(messages, writer1, types)
        return path
    plugin = StoragePlugin.SQLITE3 if form == "sqlite3" else StoragePlugin.MCAP
    writer2 = Writer2(path, version=9, storage_plugin=plugin)
    if compress != "no":
        writer2.set_compression(CompressionMode[compress.upper()], CompressionFormat.ZSTD)
    with writer2:
        _send(messages, writer2, types)
    if form == "plain":
        (file,) = path.glob("*.mcap")
        moved = file.rename(path.with_suffix(".mcap"))
        (path / "metadata.yaml").unlink()
        path.rmdir()
        return moved
    return path


def _send(messages: Iterable[Sent], writer: Any, types: Types) -> None:
    connections: dict[str, Any] = {}
    serialize = types.store.serialize_ros1 if types.ros1 else types.store.serialize_cdr
    for message in messages:
        if message.topic not in connections:
            connections[message.topic] = writer.add_connection(message.topic, message.kind, typestore=types.store)
        writer.write(connections[message.topic], message.received, serialize(message.content, message.kind))


def jpeg(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 1), np.uint8).repeat(4, 0).repeat(4, 1).repeat(3, 2)
    return encode_jpeg(pixels, quality=90)


def depth(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 5000, (4, 5), np.uint16)


def recording(form: Form, *, seconds: float = 2.0, seed: int = 0, start: int = START) -> list[Sent]:
    """Two cameras of 10 and 5 Hz, joints of 50 Hz, commands without header of 20 Hz, and a task that is told once."""
    types, latency = Types(form), 3_000_000
    sent: list[Sent] = []

    def add(topic: str, kind: str, hertz: float, delay: int, content: Callable[[int, int], Any]) -> None:
        for number in range(round(seconds * hertz) + 1):
            stamp = start + delay + round(number * 1e9 / hertz)
            sent.append(Sent(topic, kind, stamp, stamp + latency, content(number, stamp)))

    add(FRONT, "sensor_msgs/msg/CompressedImage", 10, 0, lambda n, t: types.compressed(t, jpeg(seed + n)))
    add(DEPTH, "sensor_msgs/msg/Image", 5, 7_000_000, lambda n, t: types.image(t, depth(seed + n), "16UC1", pad=3))
    add(JOINTS, "sensor_msgs/msg/JointState", 50, 1_000_000, lambda n, t: types.joints(t, [n, n + 0.5, seed]))
    layout = types.make("std_msgs/msg/MultiArrayLayout", dim=[], data_offset=0)
    kind = "std_msgs/msg/Float64MultiArray"
    add(COMMAND, kind, 20, 2_000_000, lambda n, t: types.make(kind, layout=layout, data=np.array([n, -n, 2.5])))
    sent.append(Sent(TASK, "std_msgs/msg/String", start, start, types.make("std_msgs/msg/String", data=f"task {seed}")))
    return sorted(sent, key=lambda item: item.received)


FEATURES = {"observation/front": FRONT, "observation/depth": DEPTH, "state/joints": JOINTS, "action": COMMAND}
LAYOUT: dict[str, Any] = {
    **{"rate": 10, "clock": FRONT},
    "features": {name: {"topic": topic} for name, topic in {**FEATURES, "language": TASK}.items()},
}


class ReadEpisode(NamedTuple):
    """An episode that was read: columns as arrays or lists, and the frames of each camera."""

    steps: dict[str, Any]
    episode: dict[str, Any]
    cameras: dict[str, list[Any]]


def read_source(source: FilesSource) -> list[ReadEpisode | DamagedEpisode]:
    """All episodes of a source, in order."""
    pictures = tuple(item for item in source.features.values() if item.kind == "image")
    remaining = tuple(item for item in source.features.values() if item.kind != "image")
    request = ReadRequest(cameras=pictures, features=remaining)
    result: list[ReadEpisode | DamagedEpisode] = []
    for split in source.splits:
        for shard in source.shards(split):
            with shard.open(request, [shard.every]) as reader:
                for *_, content in reader:
                    result.append(content if isinstance(content, DamagedEpisode) else _take(content, pictures))
    return result


def _take(episode: Episode, pictures: Iterable[Feature]) -> ReadEpisode:
    cameras: dict[str, list[Any]] = {}
    for feature, frames in zip(pictures, episode.cameras, strict=True):
        assert frames is not None and not isinstance(frames, DamagedEpisode)
        cameras[feature.name] = list(frames)
    return ReadEpisode(
        {name: _shaped(column, episode.num_steps) for name, column in episode.steps.items()},
        {name: _shaped(column, None) for name, column in episode.episode.items()},
        cameras,
    )


def _shaped(column: Column, rows: int | None) -> Any:
    if isinstance(column.values, list):
        return column.values if rows is not None else column.values[0]
    assert column.values is not None
    shape = tuple(dim or 0 for dim in column.feature.shape)
    return column.values.reshape(shape if rows is None else (rows, *shape))


def read_one(source: FilesSource) -> ReadEpisode:
    (result,) = read_source(source)
    assert isinstance(result, ReadEpisode), result
    return result


def fault(source: FilesSource) -> str:
    (result,) = (item for item in read_source(source) if isinstance(item, DamagedEpisode))
    return str(result)


def write_bags(folder: Path) -> list[str]:
    """Write a bag of each form and their description; return the arguments of ``convert.run``."""
    for seed, form in enumerate(FORMS):
        write(folder / "bags" / form, form, recording(form, seed=seed))
    entry = {"source": f"rosbag:{folder}/bags", "layout": LAYOUT}
    (folder / "own.yaml").write_text(yaml.safe_dump({"datasets": {"own": entry}}))
    return ["--datasets", str(folder / "own.yaml")]
