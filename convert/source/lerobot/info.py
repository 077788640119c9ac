"""``meta/info.json`` of a LeRobot dataset: versions, features, codes of depth, and the patterns of its file names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from convert.errors import SourceError
from convert.source.features import STEPS, Feature
from convert.source.protocol import SPLIT
from stream.base.errors import first_fault
from stream.format.schema import feature_column

INFO = "meta/info.json"
VERSIONS = ("v3.0", "v2.1", "v2.0")
TASK = "task"
"""Name of the feature with the text of a step's task, looked up in the list of tasks by ``task_index``."""
ANNOTATION = "annotation."
"""Prefix of the names of GR00T's text features, which are stored as numbers of the list of tasks."""

_FIELD = re.compile(r"\{(\w+)(?::(?:0([1-9]))?d?)?\}")
_RANGE = re.compile(r"(\d{1,12}):(\d{1,12})")
_NUMBERS = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")
_PICTURES = ("image", "video")
_DEPTH = ("is_depth_map", "video.is_depth_map")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class LeRobotFeature(_Model):
    """One feature as ``info.json`` declares it."""

    dtype: str
    shape: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...]
    names: Any = None
    info: dict[str, Any] | None = None
    video_info: dict[str, Any] | None = None

    @property
    def about(self) -> Mapping[str, Any]:
        """Facts about a video, under the key of any version."""
        return self.info or self.video_info or {}

    @property
    def size(self) -> tuple[int, int, int]:
        """Height, width and channels of a picture, whichever order the shape has."""
        if len(self.shape) != 3:
            return (0, 0, 0)
        first_dim, second_dim, third_dim = self.shape
        dimension_names = list(_flat_names(self.names))
        channels_first = first_dim in (1, 3) and third_dim not in (1, 3)
        if dimension_names:
            channels_first = dimension_names[0].startswith("channel")
        return (second_dim, third_dim, first_dim) if channels_first else (first_dim, second_dim, third_dim)

    @property
    def value_names(self) -> tuple[str, ...] | None:
        """Names of the values of a vector, None unless each value has its own name."""
        flat_names = tuple(_flat_names(self.names))
        is_complete = all(flat_names) and len(set(flat_names)) == len(flat_names) == int(np.prod(self.shape))
        return flat_names if is_complete else None


def _flat_names(names: Any) -> Iterator[str]:
    """Yield the texts of nested lists and dicts, such as ``[["x", "y"]]`` or ``{"motors": ["x", "y"]}``."""
    if isinstance(names, list | dict):
        for nested in names.values() if isinstance(names, dict) else names:
            yield from _flat_names(nested)
    elif names is not None:
        yield names if isinstance(names, str) else ""


class Info(_Model):
    """Content of ``info.json``, as far as the conversion uses it."""

    codebase_version: str
    fps: Annotated[float, Field(gt=0, le=1e5)]
    features: dict[str, LeRobotFeature]
    total_episodes: Annotated[int, Field(ge=0)]
    total_frames: Annotated[int, Field(ge=0)] = 0
    chunks_size: Annotated[int, Field(ge=1)] = 1000
    data_path: str
    video_path: str | None = None
    robot_type: str | None = None
    splits: Any = None

    @property
    def cameras(self) -> dict[str, LeRobotFeature]:
        """Cameras by the name of their feature, in the order of the file."""
        pictures = {name: feature for name, feature in self.features.items() if feature.dtype in _PICTURES}
        return {name: feature for name, feature in pictures.items() if not self._is_picture_of_depth(name)}

    @property
    def videos(self) -> tuple[str, ...]:
        """Cameras whose frames are in video files."""
        return tuple(camera_name for camera_name, camera in self.cameras.items() if camera.dtype == "video")

    @property
    def texts(self) -> dict[str, str]:
        """Columns with numbers of the list of tasks, by the name of the feature that has the texts."""
        column_by_feature = {TASK: "task_index"} if "task_index" in self.features else {}
        for feature_name, feature in self.features.items():
            if feature_name.startswith(ANNOTATION) and "int" in feature.dtype and feature.shape in ((), (1,)):
                column_by_feature[feature_name] = feature_name
        return column_by_feature

    def is_depth(self, camera_name: str) -> bool:
        """Return whether a camera has depth: LeRobot marks it, or its name says so."""
        feature = self.features[camera_name]
        facts = {**(feature.video_info or {}), **(feature.info or {})}
        return "depth" in camera_name.lower() or any(facts.get(key) is True for key in _DEPTH)

    def _is_picture_of_depth(self, camera_name: str) -> bool:
        """Return whether depth is stored as a picture of 8 bits or of colours, which does not hold its values."""
        feature = self.features[camera_name]
        pixel_format = str(feature.about.get("video.pix_fmt", feature.about.get("pix_fmt", "gray12le")))
        return self.is_depth(camera_name) and (feature.size[2] == 3 or not DEEP_PIXELS.fullmatch(pixel_format))

    def depth_unit(self, camera_name: str) -> str:
        """Return the unit of the depth that ``LeRobotReader`` gives: mm, m or unknown."""
        if self.features[camera_name].dtype == "video" and self.depth_codes(camera_name):
            return "mm"
        unit = self.features[camera_name].about.get("depth_unit")
        return unit if unit in ("mm", "m") else "unknown"

    def depth_codes(self, camera_name: str) -> DepthCodes | None:
        """Return the codes of a depth video, None where its values are plain numbers."""
        facts = self.features[camera_name].about
        codes = {key: facts[f"video.{key}"] for key in DepthCodes.model_fields if f"video.{key}" in facts}
        return DepthCodes.model_validate(codes) if codes else None

    def split_features(self) -> tuple[dict[str, Feature], dict[str, str]]:
        """Return the convertible features by path, and the reasons for the remaining ones by name."""
        converted = [Feature(path="episode_index", kind="tensor", level="episode", shape=(), dtype="int64")]
        not_converted = {}
        text_columns = self.texts
        renamed = {column: name for name in self.features if (column := feature_column("steps", name)) != name}
        for feature_name, feature in self.features.items():
            path = f"{STEPS}/{feature_name}"
            if feature.dtype in _PICTURES and self._is_picture_of_depth(feature_name):
                not_converted[feature_name] = "a picture of depth, in 8 bits or colours"
            elif feature.dtype in _PICTURES:
                dtype = "uint16" if self.is_depth(feature_name) else "uint8"
                if dtype == "uint16" and feature.dtype == "image" and self.depth_unit(feature_name) == "m":
                    dtype = "float32"
                converted.append(Feature(path=path, kind="image", level="step", shape=feature.size, dtype=dtype))
            elif feature.dtype != "string" and not _NUMBERS.fullmatch(feature.dtype):
                not_converted[feature_name] = f"dtype {feature.dtype}"
            elif feature_name in renamed:
                not_converted[feature_name] = f"the column of {renamed[feature_name]} has this name; rename one"
            elif feature_name not in text_columns:
                # LeRobot stores a vector of one number as a number, and its reader gives 32 bits for 64.
                shape = () if feature.shape == (1,) else feature.shape
                dtype = "float32" if feature.dtype == "float64" else feature.dtype
                converted.append(Feature(path=path, kind="tensor", level="step", shape=shape, dtype=dtype))
        for path in (f"{STEPS}/{name}" for name in text_columns):
            converted.append(Feature(path=path, kind="tensor", level="step", shape=(), dtype="string"))
        return {feature.path: feature for feature in converted}, not_converted

    def split_ranges(self, total_episodes: int) -> dict[str, tuple[int, int]] | None:
        """Return the first episode of each split and the one after its last, None unless all episodes are in one each.

        LeRobot never reads the splits, so after a cut or a merge they are often outdated.
        """
        declared = self.splits.items() if isinstance(self.splits, dict) else ()
        ranges = {}
        for split_name, range_text in declared:
            if SPLIT.fullmatch(str(split_name)) and (range_match := _RANGE.fullmatch(str(range_text))):
                ranges[str(split_name)] = (int(range_match[1]), int(range_match[2]))
        edges = [edge for span in sorted(ranges.values()) for edge in span]
        fits = len(ranges) == len(declared) and edges[::2] == [0, *edges[1:-1:2]] and edges[-1:] == [total_episodes]
        return ranges if fits else None


def parse_info(content: bytes, *, context: str) -> Info:
    """Return the content of ``info.json``; SourceError if a field is missing or wrong, or the version is another."""
    try:
        info = Info.model_validate_json(content)
        for camera_name in filter(info.is_depth, info.cameras):
            info.depth_codes(camera_name)
    except ValidationError as error:
        raise SourceError(f"{context}/{INFO}: {first_fault(error)}; is this a LeRobot dataset?") from None
    if info.codebase_version not in VERSIONS:
        advice = f"reads {', '.join(VERSIONS)}. Convert it to one of them with the release of LeRobot that wrote it"
        raise SourceError(f"{context}: is a LeRobot dataset of {info.codebase_version!r:.40}; this program {advice}")
    if info.videos and not info.video_path:
        fault = f"video_path is {info.video_path!r}, but {info.videos[0]} is a video; expected the pattern of its file"
        raise SourceError(f"{context}/{INFO}: {fault} names. Copy the whole folder meta again")
    return info


def file_name(pattern: str, *, context: str, **values: int | str) -> str:
    """Fill a pattern of ``info.json`` such as ``data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet``.

    >>> file_name("videos/{video_key}/chunk-{chunk_index:03d}.mp4", context="d", video_key="top", chunk_index=7)
    'videos/top/chunk-007.mp4'

    Raises:
        SourceError: The pattern has another field, or leaves the folder of the dataset.
    """

    def fill(match: re.Match[str]) -> str:
        if match[1] not in values:
            fields = ", ".join(f"{{{name}}}" for name in values)
            raise SourceError(f"{context}/{INFO}: {pattern!r:.200} has the placeholder {match[0]}; known are {fields}")
        return str(values[match[1]]).zfill(int(match[2] or 0))

    filled = _FIELD.sub(fill, pattern)
    if filled.startswith("/") or ".." in filled.split("/") or "{" in filled:
        fault = f"{pattern!r:.200} gives {filled!r:.200}, which is not a file of the dataset"
        raise SourceError(f"{context}/{INFO}: {fault}")
    return filled


_CODES = 4096
DEEP_PIXELS = re.compile(r"(?:gray|yuv4\d\dp)(?:9|1\d)(le|be)")
"""Formats whose first plane has the values of pixels in two bytes."""


class DepthCodes(_Model):
    """Meaning of the codes of a depth video, in ``info.json`` as ``video.depth_min`` and so on.

    Codes go from ``depth_min`` to ``depth_max`` metres. With ``use_log`` they are equally spaced not in metres, but in
    the logarithm of metres plus ``shift``.
    """

    depth_min: float = 0.01
    depth_max: float = 10.0
    shift: float = 3.5
    use_log: bool = True

    @model_validator(mode="after")
    def _check(self) -> DepthCodes:
        if not self.depth_min < self.depth_max < math.inf or (self.use_log and not self.depth_min + self.shift > 0):
            limits = f"{self.depth_min} to {self.depth_max} m"
            raise ValueError(f"depth from {limits}, shifted by {self.shift}, is not a range")
        return self

    @cached_property
    def millimetres(self) -> np.ndarray:
        """Millimetres of each code, uint16 [4096]."""
        first_value, last_value = self.depth_min, self.depth_max
        if self.use_log:
            first_value, last_value = math.log(first_value + self.shift), math.log(last_value + self.shift)
        # In float32 after the product, as LeRobot computes it.
        values = (np.arange(_CODES) * ((last_value - first_value) / (_CODES - 1))).astype(np.float32) + first_value
        metres = np.clip(np.exp(values) - self.shift if self.use_log else values, self.depth_min, self.depth_max)
        return np.clip(np.rint(metres * np.float32(1000)), 0, np.iinfo(np.uint16).max).astype(np.uint16)
