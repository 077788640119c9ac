"""LeRobot datasets of format v3.0 (docs/source/lerobot-dataset-v3.mdx of LeRobot), with one file of each kind."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg

from pairstream.export.stats import PixelCounts, Statistics, describe_numbers
from stream.base.errors import ArgumentError, FormatError
from stream.format.frame import StoredFrame, as_jpeg, decode_frame
from stream.format.index import SplitIndex
from stream.format.table import Column
from stream.format.video import ChunkFrame

if TYPE_CHECKING:
    from pairstream.export.video import VideoFile

VERSION = "v3.0"
FRAMES_MASK = "observation.frames_mask"
_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
_DATA, _VIDEO = f"data/{_FILE}.parquet", f"videos/{{video_key}}/{_FILE}.mp4"
_EPISODES = f"meta/episodes/{_FILE}.parquet"
_FIRST = {"chunk_index": 0, "file_index": 0}
COUNTERS = {"timestamp": "float32"} | dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64")
_RESERVED = (*COUNTERS, FRAMES_MASK, "next.done", "action", "observation.state", "task")
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


class Label(NamedTuple):
    """A label: type and count of a step's numbers, ``string`` for texts, and whether steps may lack it."""

    dtype: str
    size: int
    has_missing: bool


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Features of a dataset.

    Attributes:
        cameras: Height and width of each camera's frames, by key.
        vectors: Names of the numbers of each vector, by feature.
        fps: Steps per second.
        robot: Kind of the robot, None if unknown.
        is_video: Whether frames are videos; else JPEGs in the parquet file.
        copied: Cameras whose videos are copied from chunks of H.264, not encoded again.
        has_mask: Whether steps may lack frames.
        labels: Labels by feature.
    """

    cameras: Mapping[str, tuple[int, int]]
    vectors: Mapping[str, Sequence[str]]
    fps: float
    robot: str | None
    is_video: bool
    copied: frozenset[str]
    has_mask: bool
    labels: Mapping[str, Label]

    def image_key(self, camera_key: str) -> str:
        """Return the feature of a camera."""
        return f"observation.images.{camera_key}"

    @property
    def numbers(self) -> dict[str, dict[str, Any]]:
        """Features that are columns of numbers, as ``info.json`` declares them."""
        features: dict[str, dict[str, Any]] = {
            name: {"dtype": "float32", "shape": [len(names)], "names": _distinct(names)}
            for name, names in self.vectors.items()
        }
        for name, label in self.labels.items():
            features[name] = {"dtype": label.dtype, "shape": [label.size], "names": None}
            if label.has_missing:
                features[f"{name}_mask"] = {"dtype": "bool", "shape": [1], "names": None}
        if self.has_mask:
            features[FRAMES_MASK] = {"dtype": "bool", "shape": [len(self.cameras)], "names": list(self.cameras)}
        features["next.done"] = {"dtype": "bool", "shape": [1], "names": None}
        return features | {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in COUNTERS.items()}

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Features as ``info.json`` declares them."""
        features = {}
        for camera, (height, width) in self.cameras.items():
            names, dtype = ["height", "width", "channels"], "video" if self.is_video else "image"
            declared: dict[str, Any] = {"dtype": dtype, "shape": [height, width, 3], "names": names}
            if self.is_video:
                from pairstream.export.video import CODEC, PIXELS

                video_info = {"height": height, "width": width, "codec": CODEC, "pix_fmt": PIXELS}
                video_info |= {"is_depth_map": False, "fps": as_number(self.fps), "channels": 3}
                declared["info"] = {**{f"video.{key}": value for key, value in video_info.items()}, "has_audio": False}
            features[self.image_key(camera)] = declared
        return features | self.numbers

    @property
    def schema(self) -> pa.Schema:
        """Schema of the parquet file of the steps."""
        arrow_fields, hub_features = [], {}
        for feature_name, feature in self.numbers.items():
            arrow_type = pa.type_for_alias(feature["dtype"])
            value: dict[str, Any] = {"dtype": feature["dtype"], "_type": "Value"}
            # LeRobot stores a vector of one number as a number.
            size = feature["shape"][0]
            hub_features[feature_name] = value if size == 1 else {"feature": value, "length": size, "_type": "List"}
            arrow_fields.append(pa.field(feature_name, arrow_type if size == 1 else pa.list_(arrow_type, size)))
        for camera in () if self.is_video else self.cameras:
            hub_features[self.image_key(camera)] = {"_type": "Image"}
            arrow_fields.append(pa.field(self.image_key(camera), _IMAGE))
        return pa.schema(arrow_fields, metadata={"huggingface": json.dumps({"info": {"features": hub_features}})})


class LeRobotWriter:
    """Writer of a dataset in an empty folder; call ``finish`` after the last episode, and ``close`` in any case."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._folder = folder
        self._layout = layout
        self._tasks: dict[str, int] = {}
        self._episodes: list[dict[str, Any]] = []
        # LeRobot has no statistics of texts.
        counted = [feature_name for feature_name, feature in layout.numbers.items() if feature["dtype"] != "string"]
        self._columns: dict[str, list[np.ndarray]] = {feature_name: [] for feature_name in counted}
        self._pixels = {camera: PixelCounts() for camera in layout.cameras}
        self._steps = 0
        self._data = pq.ParquetWriter(self._make(_DATA.format(**_FIRST)), layout.schema)
        self._videos: dict[str, VideoFile] = {}
        if layout.is_video:
            from pairstream.export.video import EncodedVideo, VideoFile

            for camera, shape in layout.cameras.items():
                video_path = self._make(_VIDEO.format(video_key=layout.image_key(camera), **_FIRST))
                if camera in layout.copied:
                    self._videos[camera] = VideoFile(video_path, frame_rate=layout.fps)
                else:
                    self._videos[camera] = EncodedVideo(video_path, frame_shape=shape, frame_rate=layout.fps)

    def close(self) -> None:
        """Close all files, complete or not."""
        self._data.close()
        for video in self._videos.values():
            video.close()

    def add(
        self,
        stored_frames: Mapping[str, Sequence[StoredFrame | None]],
        vectors: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        labels: Mapping[str, np.ndarray],
    ) -> None:
        """Write an episode of n steps, n above 0; raise FormatError if a frame cannot be decoded.

        Args:
            stored_frames: Stored frame of each step by camera; None for a step without a frame, which becomes black.
            vectors: float32 [n, dims] by feature.
            tasks: Instruction of each step.
            labels: Array [n] or [n, size] of each label and mask, by feature.
        """
        layout, steps, episode_number = self._layout, len(tasks), len(self._episodes)
        numbers: dict[str, np.ndarray] = {
            **{feature_name: np.asarray(values, np.float32) for feature_name, values in vectors.items()},
            **labels,
            "next.done": np.arange(steps) == steps - 1,
            "timestamp": (np.arange(steps) / layout.fps).astype(np.float32),
            "frame_index": np.arange(steps),
            "episode_index": np.full(steps, episode_number),
            "index": self._steps + np.arange(steps),
            "task_index": np.array([self._tasks.setdefault(task, len(self._tasks)) for task in tasks]),
        }
        if layout.has_mask:
            has_frame = [[frame is not None for frame in stored_frames[camera]] for camera in layout.cameras]
            numbers[FRAMES_MASK] = np.array(has_frame).T
        arrow_arrays = [_array(numbers[field.name], field.type) for field in layout.schema if field.name in numbers]
        statistics = {feature_name: describe_numbers(numbers[feature_name]) for feature_name in self._columns}
        for camera in layout.cameras:
            jpegs, pixel_counts = self._write_frames(camera, stored_frames[camera])
            statistics[layout.image_key(camera)] = pixel_counts.describe()
            if not layout.is_video:
                image_cells = [{"bytes": frame, "path": f"frame-{step:06d}.jpg"} for step, frame in enumerate(jpegs)]
                arrow_arrays.append(pa.array(image_cells, _IMAGE))
        self._data.write_table(pa.Table.from_arrays(arrow_arrays, schema=layout.schema))
        for feature_name, column_arrays in self._columns.items():
            column_arrays.append(numbers[feature_name])
        self._episodes.append(self._describe(steps, list(dict.fromkeys(tasks)), statistics))
        self._steps += steps

    def finish(self) -> None:
        """Write the metadata and complete all files."""
        for video in self._videos.values():
            video.finish()
        self._data.close()
        pq.write_table(pa.Table.from_pylist(self._episodes), self._make(_EPISODES.format(**_FIRST)))
        pq.write_table(_tasks_table(list(self._tasks)), self._folder / "meta" / "tasks.parquet")
        layout = self._layout
        stats = {name: describe_numbers(np.concatenate(column)) for name, column in self._columns.items()}
        stats |= {layout.image_key(camera): counts.describe() for camera, counts in self._pixels.items()}
        info = {
            "codebase_version": VERSION,
            "robot_type": layout.robot,
            "total_episodes": len(self._episodes),
            "total_frames": self._steps,
            "total_tasks": len(self._tasks),
            "chunks_size": 1000,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": as_number(layout.fps),
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": _DATA,
            "video_path": _VIDEO if layout.is_video else None,
            "features": layout.features,
        }
        for name, content in (("stats", stats), ("info", info)):
            (self._folder / "meta" / f"{name}.json").write_text(json.dumps(content, indent=4) + "\n")

    def _write_frames(self, camera: str, frames: Sequence[StoredFrame | None]) -> tuple[list[bytes], PixelCounts]:
        """Write the frames of an episode to the video, or return their JPEGs; with the histogram of a sample."""
        black = np.zeros((*self._layout.cameras[camera], 3), np.uint8)
        counts, sampled = PixelCounts(), PixelCounts.sampled(len(frames))
        video, is_copied = self._videos.get(camera), camera in self._layout.copied
        is_encoded = video is not None and not is_copied
        for step, stored_frame in enumerate(frames):
            pixels = black
            if stored_frame is not None and (is_encoded or step in sampled):
                try:
                    pixels = decode_frame(stored_frame)
                except FormatError as error:
                    raise FormatError(f"camera {camera}, step {step}: a frame cannot be decoded ({error})") from None
                if step in sampled:
                    counts.add(pixels)
            if video and is_encoded:
                video.write(pixels)
            elif video and isinstance(stored_frame, ChunkFrame) and not stored_frame.number:
                video.write(bytes(stored_frame.chunk))
        self._pixels[camera].merge(counts)
        if video:
            return [], counts
        black_jpeg = simplejpeg.encode_jpeg(black, quality=95)
        return [black_jpeg if frame is None else bytes(as_jpeg(frame)) for frame in frames], counts

    def _describe(self, steps: int, tasks: list[str], stats: Mapping[str, Statistics]) -> dict[str, Any]:
        """Return the row of an episode in ``meta/episodes``."""
        first_index, end_index = self._steps, self._steps + steps
        row: dict[str, Any] = {"episode_index": len(self._episodes), "tasks": tasks, "length": steps}
        row |= {f"data/{name}": number for name, number in _FIRST.items()}
        row |= {"dataset_from_index": first_index, "dataset_to_index": end_index}
        for camera_key in self._videos:
            key, fps = f"videos/{self._layout.image_key(camera_key)}", self._layout.fps
            row |= {f"{key}/{name}": number for name, number in _FIRST.items()}
            row |= {f"{key}/from_timestamp": first_index / fps, f"{key}/to_timestamp": end_index / fps}
        for name, statistics in stats.items():
            row |= {f"stats/{name}/{key}": value for key, value in statistics.items()}
        return row | {f"meta/episodes/{name}": number for name, number in _FIRST.items()}

    def _make(self, name: str) -> Path:
        """Return the path of a file, in a folder that exists."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def as_number(frame_rate: float) -> int | float:
    """Return a rate as LeRobot writes it: a whole number if it is one.

    >>> as_number(5.0), as_number(2.5)
    (5, 2.5)
    """
    return int(frame_rate) if frame_rate == int(frame_rate) else frame_rate


def _distinct(names: Sequence[str]) -> list[str]:
    """Return names with numbers after repeated ones, since readers recognise values by their names.

    >>> _distinct(["x", "y", "x"])
    ['x', 'y', 'x_2']
    """
    distinct: list[str] = []
    for name in names:
        if name in distinct:
            numbered = (f"{name}_{number}" for number in itertools.count(2))
            name = next(candidate for candidate in numbered if candidate not in {*distinct, *names})
        distinct.append(name)
    return distinct


def _array(values: np.ndarray, arrow_type: pa.DataType) -> pa.Array:
    if not pa.types.is_fixed_size_list(arrow_type):
        return pa.array(values.reshape(-1), arrow_type)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1), arrow_type.value_type), arrow_type.list_size)


def _tasks_table(tasks: Sequence[str]) -> pa.Table:
    """Return ``meta/tasks.parquet``: a table of pandas whose index is the text of each task."""
    types = (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    metadata = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [
            {"name": name, "field_name": name, "pandas_type": pandas, "numpy_type": numpy, "metadata": None}
            for name, pandas, numpy in types
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.0.0",
    }
    columns = {"task_index": pa.array(range(len(tasks)), pa.int64()), "task": pa.array(tasks, pa.string())}
    return pa.table(columns).replace_schema_metadata({"pandas": json.dumps(metadata)})


def label_features(indexes: Sequence[SplitIndex]) -> dict[str, Label]:
    """Return the labels of some splits by feature, which is the column's name with a dot for each slash.

    Raises ArgumentError if a label is not in all of the splits, or LeRobot uses its name.
    """
    features: dict[str, Label] = {}
    existing = set(_RESERVED)
    for label_name in dict.fromkeys(label_name for index in indexes for label_name in index.labels):
        columns = [index.labels[label_name] for index in indexes if label_name in index.labels]
        feature = _feature(label_name)
        if len(columns) < len(indexes) or not all(column.is_like(columns[0]) for column in columns):
            raise ArgumentError(
                f"label {label_name!r} is not in all of the splits {', '.join(index.split for index in indexes)}, or "
                "of several types; export one split at a time"
            )
        has_missing = any(column.validity is not None for column in columns)
        for added in (feature, f"{feature}_mask") if has_missing else (feature,):
            if added in existing or added.startswith("observation.images."):
                raise ArgumentError(
                    f"label {label_name!r}: a feature {added!r} exists; attach the label by another name"
                )
            existing.add(added)
        features[feature] = Label(_dtype(columns[0]), columns[0].width or 1, has_missing)
    return features


def label_values(index: SplitIndex, rows: np.ndarray, labels: Mapping[str, Label]) -> dict[str, np.ndarray]:
    """Return the labels of some rows of ``steps`` and their masks, by feature; missing values are NaN, 0 or ""."""
    arrays: dict[str, np.ndarray] = {}
    for label_name, column in index.labels.items():
        feature = _feature(label_name)
        if column.texts is not None:
            arrays[feature] = np.array(index.steps.take_texts(label_name, rows), object)
        else:
            arrays[feature] = index.steps.take(label_name, rows).astype(labels[feature].dtype)
        if labels[feature].has_missing:
            is_valid = index.steps.valid(label_name, rows)
            arrays[f"{feature}_mask"] = np.ones(len(rows), bool) if is_valid is None else is_valid
    return arrays


def _feature(column_name: str) -> str:
    # LeRobot refuses a slash in a name.
    return column_name.replace("/", ".")


def _dtype(column: Column) -> str:
    if column.texts is not None:
        return "string"
    return "bool" if column.bits else str(np.dtype(column.dtype))
