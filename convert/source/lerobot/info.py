"""``meta/info.json`` of a LeRobot dataset: versions, features, and the patterns of its file names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from convert.errors import SourceError
from convert.source.features import STEPS, Feature
from convert.source.lerobot.depth import DEEP_PIXELS, DepthCodes
from convert.source.protocol import SPLIT
from stream.base.errors import first_fault
from stream.format.schema import feature_column

INFO = "meta/info.json"
VERSIONS = ("v3.0", "v2.1", "v2.0")
TASK = "task"
"""Name of the feature with the text of a step's task, which is made of ``task_index`` and the list of tasks."""
ANNOTATION = "annotation."
"""Begin of the names of GR00T's features of texts, which are stored as numbers of the list of tasks."""

_FIELD = re.compile(r"\{(\w+)(?::(?:0([1-9]))?d?)?\}")
_RANGE = re.compile(r"(\d{1,12}):(\d{1,12})")
_NUMBERS = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
)
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
        first, second, third = self.shape
        listed = list(_flat_names(self.names))
        channels_first = listed[0].startswith("channel") if listed else first in (1, 3) and third not in (1, 3)
        return (second, third, first) if channels_first else (first, second, third)

    @property
    def value_names(self) -> tuple[str, ...] | None:
        """Names of the values of a vector, None unless each has one of its own."""
        found = tuple(_flat_names(self.names))
        return found if all(found) and len(set(found)) == len(found) == int(np.prod(self.shape)) else None


def _flat_names(names: Any) -> Iterator[str]:
    """Yield the texts of nested lists and dicts, such as ``[["x", "y"]]`` or ``{"motors": ["x", "y"]}``."""
    if isinstance(names, list | dict):
        for each in names.values() if isinstance(names, dict) else names:
            yield from _flat_names(each)
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
        return {
            name: feature
            for name, feature in self.features.items()
            if feature.dtype in _PICTURES and not self._is_picture_of_depth(name)
        }

    @property
    def videos(self) -> tuple[str, ...]:
        """Cameras whose frames are in video files."""
        return tuple(name for name, camera in self.cameras.items() if camera.dtype == "video")

    @property
    def texts(self) -> dict[str, str]:
        """Columns with numbers of the list of tasks, by the name of the feature that has the texts."""
        stored = {TASK: "task_index"} if "task_index" in self.features else {}
        for name, feature in self.features.items():
            if name.startswith(ANNOTATION) and "int" in feature.dtype and feature.shape in ((), (1,)):
                stored[name] = name
        return stored

    def is_depth(self, name: str) -> bool:
        """Return whether a camera has depth: LeRobot marks it, or its name says so."""
        feature = self.features[name]
        marks = {**(feature.video_info or {}), **(feature.info or {})}
        return "depth" in name.lower() or any(marks.get(key) is True for key in _DEPTH)

    def _is_picture_of_depth(self, name: str) -> bool:
        """Return whether depth is stored as a picture of 8 bits or of colours, from which it cannot be told."""
        feature = self.features[name]
        pixels = str(feature.about.get("video.pix_fmt", feature.about.get("pix_fmt", "gray12le")))
        return self.is_depth(name) and (feature.size[2] == 3 or not DEEP_PIXELS.fullmatch(pixels))

    def depth_unit(self, name: str) -> str:
        """Return the unit of what ``LeRobotReader`` gives of a depth camera: mm, m or unknown."""
        if self.features[name].dtype == "video" and self.depth_codes(name):
            return "mm"
        unit = self.features[name].about.get("depth_unit")
        return unit if unit in ("mm", "m") else "unknown"

    def depth_codes(self, name: str) -> DepthCodes | None:
        """Return what the values of a depth video mean, None where they are plain numbers."""
        about = self.features[name].about
        given = {key: about[f"video.{key}"] for key in DepthCodes.model_fields if f"video.{key}" in about}
        return DepthCodes.model_validate(given) if given else None

    def split_features(self) -> tuple[dict[str, Feature], dict[str, str]]:
        """Return the features that can be converted by path, and why not by name for the others."""
        found = [Feature(path="episode_index", kind="tensor", level="episode", shape=(), dtype="int64")]
        others = {}
        texts = self.texts
        renamed = {column: name for name in self.features if (column := feature_column("steps", name)) != name}
        for name, feature in self.features.items():
            path = f"{STEPS}/{name}"
            if feature.dtype in _PICTURES:
                dtype = "uint8"
                if self.is_depth(name):
                    is_float = feature.dtype == "image" and self.depth_unit(name) == "m"
                    dtype = "float32" if is_float else "uint16"
                if self._is_picture_of_depth(name):
                    others[name] = "a picture of depth, in 8 bits or colours"
                else:
                    found.append(Feature(path=path, kind="image", level="step", shape=feature.size, dtype=dtype))
            elif feature.dtype not in (*_NUMBERS, "string"):
                others[name] = f"dtype {feature.dtype}"
            elif name in renamed:
                others[name] = f"the column of {renamed[name]} has this name; rename one"
            elif name not in texts:
                # LeRobot stores a vector of one number as a number, and its reader gives 32 bits for 64.
                shape = () if feature.shape == (1,) else feature.shape
                dtype = "float32" if feature.dtype == "float64" else feature.dtype
                found.append(Feature(path=path, kind="tensor", level="step", shape=shape, dtype=dtype))
        for name in texts:
            found.append(Feature(path=f"{STEPS}/{name}", kind="tensor", level="step", shape=(), dtype="string"))
        return {feature.path: feature for feature in found}, others

    def split_ranges(self, total: int) -> dict[str, tuple[int, int]] | None:
        """Return the first episode of each split and the one after its last.

        Returns:
            None unless the splits cover ``total`` episodes, each once, and folders can have their names. LeRobot never
            reads them, so after a cut or a merge they are often left over.
        """
        given = self.splits.items() if isinstance(self.splits, dict) else ()
        matches = {str(name): _RANGE.fullmatch(str(text)) for name, text in given if SPLIT.fullmatch(str(name))}
        found = {name: (int(match[1]), int(match[2])) for name, match in matches.items() if match}
        edges = [edge for span in sorted(found.values()) for edge in span]
        fits = len(found) == len(given) and edges[::2] == [0, *edges[1:-1:2]] and edges[-1:] == [total]
        return found if fits else None


def parse_info(content: bytes, *, where: str) -> Info:
    """Return the content of ``info.json``.

    Raises:
        SourceError: Not JSON, a field is missing or wrong, or another version of the format. Videos need
            ``video_path``.
    """
    try:
        info = Info.model_validate_json(content)
        for name in filter(info.is_depth, info.cameras):
            info.depth_codes(name)
    except ValidationError as error:
        raise SourceError(f"{where}/{INFO}: {first_fault(error)}; is this a LeRobot dataset?") from None
    if info.codebase_version not in VERSIONS:
        raise SourceError(
            f"{where}: is a LeRobot dataset of {info.codebase_version!r:.40}; this program reads "
            f"{', '.join(VERSIONS)}. Bring it to one of these with the release of LeRobot that wrote it"
        )
    if info.videos and not info.video_path:
        raise SourceError(
            f"{where}/{INFO}: video_path is {info.video_path!r}, but {info.videos[0]} is a video; expected the pattern "
            "of its file names. Copy the whole folder meta again"
        )
    return info


def file_name(pattern: str, *, where: str, **values: int | str) -> str:
    """Fill a pattern of ``info.json`` such as ``data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet``.

    >>> file_name("videos/{video_key}/chunk-{chunk_index:03d}.mp4", where="d", video_key="top", chunk_index=7)
    'videos/top/chunk-007.mp4'

    Raises:
        SourceError: The pattern has another field, or leaves the folder of the dataset.
    """

    def fill(match: re.Match[str]) -> str:
        if match[1] not in values:
            known = ", ".join(f"{{{name}}}" for name in values)
            raise SourceError(f"{where}/{INFO}: {pattern!r:.200} has the placeholder {match[0]}; known are {known}")
        return str(values[match[1]]).zfill(int(match[2] or 0))

    name = _FIELD.sub(fill, pattern)
    if name.startswith("/") or ".." in name.split("/") or "{" in name:
        raise SourceError(f"{where}/{INFO}: {pattern!r:.200} gives {name!r:.200}, which is no file of the dataset")
    return name
