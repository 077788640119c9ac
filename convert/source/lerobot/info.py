"""``meta/info.json`` of a LeRobot dataset: versions, features, and the patterns of its file names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from convert.errors import SourceError
from convert.source.features import STEPS, Feature
from convert.source.protocol import SPLIT
from stream.format.schema import feature_column
from stream.storage.errors import first_fault

INFO = "meta/info.json"
VERSIONS = ("v3.0", "v2.1")
TASK = "task"
"""Name of the feature with the text of a step's task, which is made of ``task_index`` and the list of tasks."""

_FIELD = re.compile(r"\{(\w+)(?::0([1-9])d)?\}")
_RANGE = re.compile(r"(\d{1,12}):(\d{1,12})")
_NUMBERS = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float32", "float64")
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
        listed = self.names if isinstance(self.names, list) else []
        channels_first = str(listed[0]).startswith("channel") if listed else first in (1, 3) and third not in (1, 3)
        return (second, third, first) if channels_first else (first, second, third)

    @property
    def value_names(self) -> tuple[str, ...] | None:
        """Names of the values of a vector, None unless each has one of its own."""
        found = self.names
        if isinstance(found, dict):
            found = [name for group in found.values() for name in (group if isinstance(group, list) else [group])]
        if not isinstance(found, list) or not all(isinstance(name, str) and name for name in found):
            return None
        return tuple(found) if len(set(found)) == len(found) == int(np.prod(self.shape)) else None


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
    splits: dict[str, str] = Field(default_factory=dict)

    @property
    def cameras(self) -> dict[str, LeRobotFeature]:
        """Colour cameras by the name of their feature, in the order of the file."""
        return {
            name: feature
            for name, feature in self.features.items()
            if feature.dtype in _PICTURES and not self._depth(name)
        }

    @property
    def videos(self) -> tuple[str, ...]:
        """Colour cameras whose frames are in video files."""
        return tuple(name for name, camera in self.cameras.items() if camera.dtype == "video")

    def _depth(self, name: str) -> bool:
        about = self.features[name].about
        return "depth" in name.lower() or any(about.get(key) is True for key in _DEPTH)

    def split_features(self) -> tuple[dict[str, Feature], dict[str, str]]:
        """Return the features that can be converted by path, and why not by name for the others."""
        found = [Feature(path="episode_index", kind="tensor", level="episode", shape=(), dtype="int64")]
        others = {}
        renamed = {column: name for name in self.features if (column := feature_column("steps", name)) != name}
        for name, feature in self.features.items():
            path = f"{STEPS}/{name}"
            if feature.dtype in _PICTURES:
                if self._depth(name):
                    others[name] = "depth"
                else:
                    found.append(Feature(path=path, kind="image", level="step", shape=feature.size, dtype="uint8"))
            elif feature.dtype not in (*_NUMBERS, "string"):
                others[name] = f"dtype {feature.dtype}"
            elif name in renamed:
                others[name] = f"the column of {renamed[name]} has this name; rename one"
            else:
                # LeRobot stores a vector of one number as a number.
                shape = () if feature.shape == (1,) else feature.shape
                found.append(Feature(path=path, kind="tensor", level="step", shape=shape, dtype=feature.dtype))
        if "task_index" in self.features:
            found.append(Feature(path=f"{STEPS}/{TASK}", kind="tensor", level="step", shape=(), dtype="string"))
        return {feature.path: feature for feature in found}, others

    def split_ranges(self, *, where: str) -> dict[str, tuple[int, int]]:
        """Return the first episode of each split and the one after its last; without splits, all are ``train``.

        Raises:
            SourceError: A range is not ``start:stop`` within the episodes of the dataset.
        """
        total = self.total_episodes
        found = {}
        for name, text in self.splits.items():
            match = _RANGE.fullmatch(text)
            start, stop = (int(match[1]), int(match[2])) if match else (1, 0)
            if not (start <= stop <= total and SPLIT.fullmatch(name)):
                raise SourceError(
                    f"{where}/{INFO}: split {name!r:.80} is {text!r:.80}; expected START:STOP within 0:{total}, and a "
                    "name that a folder can have"
                )
            found[name] = (start, stop)
        return found or {"train": (0, total)}


def parse_info(content: bytes, *, where: str) -> Info:
    """Return the content of ``info.json``.

    Raises:
        SourceError: Not JSON, a field is missing or wrong, or another version of the format. Videos need
            ``video_path``.
    """
    try:
        info = Info.model_validate_json(content)
    except ValidationError as error:
        raise SourceError(f"{where}/{INFO}: {first_fault(error)}; is this a LeRobot dataset?") from None
    version = info.codebase_version
    if version not in VERSIONS:
        older = version.lstrip("v") < "2.1"
        how = (
            "bring it to v2.1 or v3.0 with LeRobot's own script (lerobot.datasets.v21.convert_dataset_v20_to_v21)"
            if older
            else f"this program reads {' and '.join(VERSIONS)}"
        )
        raise SourceError(f"{where}: is a LeRobot dataset of {version!r:.40}; {how}")
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
            raise SourceError(f"{where}/{INFO}: {pattern!r:.200} has {match[1]!r}, expected {', '.join(values)}")
        return str(values[match[1]]).zfill(int(match[2] or 0))

    name = _FIELD.sub(fill, pattern)
    if name.startswith("/") or ".." in name.split("/") or "{" in name:
        raise SourceError(f"{where}/{INFO}: {pattern!r:.200} gives {name!r:.200}, which is no file of the dataset")
    return name
