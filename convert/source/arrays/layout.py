"""Layout of HDF5 and Zarr files, as YAML declares it: where episodes, steps, language and splits are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from convert.errors import ConfigError
from stream.base.configs import Entry, list_faults

FILES = ("*.hdf5", "*.h5", "*.zarr", "*.zarr.zip")


def _as_list(entry: Any) -> Any:
    return [entry] if isinstance(entry, str | dict) else entry


def _expression(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise ValueError(f"is not a regular expression ({error}), found {text!r:.80}") from None
    if groups != 1:
        raise ValueError(f"has {groups} groups in parentheses, expected one: the part to take, found {text!r:.80}")
    return text


Path = Annotated[str, Field(min_length=1), AfterValidator(lambda path: path.rstrip("/") or "/")]
"""Path of an array or group; of those of an episode below its group, or with a leading slash from the file's root."""
Expression = Annotated[str, AfterValidator(_expression)]
_Patterns = Annotated[tuple[str, ...], BeforeValidator(_as_list)]
_Channels = Literal["rgb", "bgr", "unknown"]
_Side = Annotated[int, Field(gt=0)]


class Picture(Entry):
    """How the pictures of some arrays are stored.

    Attributes:
        rotate: Degrees by which they are turned clockwise.
        channels_first: True for [n, C, H, W].
        floats: Value of white where they are floats, 1 or 255; rounded to the nearest of 0 to 255.
        channels: Order of colours of arrays of pixels.
        encoded_channels: Order of colours of rows of JPEG, PNG or WebP; default ``channels``.
        raw: Shapes [H, W, C] of pictures that are rows of plain bytes; such a row is recognised by its count of bytes.
    """

    rotate: Literal[0, 90, 180, 270] = 0
    channels_first: bool = False
    floats: Literal[1, 255] | None = None
    channels: _Channels = "rgb"
    encoded_channels: _Channels | None = None
    raw: tuple[tuple[_Side, _Side, _Side], ...] = ()


class Language(Entry):
    """A place of the instruction: one of ``path``, ``file`` and ``text``.

    Attributes:
        path: Array with a text, or PATH@ATTRIBUTE.
        key: The text is JSON, and this its key.
        file: Regular expression that is searched in the file's path; its group is the text, with spaces for ``_``.
        text: The text itself.
    """

    path: Path | None = None
    key: str | None = None
    file: Expression | None = None
    text: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Language:
        if sum(value is not None for value in (self.path, self.file, self.text)) != 1:
            raise ValueError("expected one of path, file and text")
        if self.key is not None and self.path is None:
            raise ValueError("has a key, but no path")
        return self


class Splits(Entry):
    """Definition of splits: one of the two.

    Attributes:
        masks: Group of arrays with names of episodes, each named as its split. They are splits if each episode is in
            one: those of ``train``, ``valid``, ``val``, ``validation`` and ``test`` that exist, or all.
        file: Regular expression that is searched in the file's path; its group is the split.
    """

    masks: Path | None = None
    file: Expression | None = None

    @model_validator(mode="after")
    def _check(self) -> Splits:
        if (self.masks is None) == (self.file is None):
            raise ValueError("expected one of masks and file")
        return self


class Layout(Entry):
    """How to read files of arrays. By default a file is an episode, and all arrays of one length are its steps.

    Attributes:
        files: Patterns of the names of files.
        episodes: Pattern of groups, each an episode, such as ``data/*``; in natural order.
        ends: Array with the end of each episode in arrays that hold all, such as ``meta/episode_ends``.
        group: Group of the arrays of steps, in an episode's group or in the file.
        length: Array that every episode has, whose length is the count of steps; or a pattern, and the first counts.
            Default the length of most arrays.
        steps: Path of each array of steps by the name of its feature; default all, by their paths.
        leave_out: Patterns of paths of arrays that do not hold steps.
        pictures: How pictures are stored, by patterns of the names of features; the first that fits counts.
        values: Array or PATH@ATTRIBUTE of each value of an episode, by the name of its feature.
        language: Places of the instruction; the first that has one is taken.
        splits: Default the first folder of a file, if it is named as a split.
    """

    files: Annotated[_Patterns, Field(min_length=1)] = FILES
    episodes: Path | None = None
    ends: Path | None = None
    group: str = ""
    length: Path | None = None
    steps: dict[str, Path] | None = None
    leave_out: _Patterns = ()
    pictures: dict[str, Picture] = Field(default={})
    values: dict[str, Path] = Field(default={})
    language: Annotated[tuple[Language, ...], BeforeValidator(_as_list)] = ()
    splits: Splits | None = None

    @model_validator(mode="after")
    def _check(self) -> Layout:
        if self.episodes and self.ends:
            raise ValueError("has episodes (a group each) and ends (one array of all), expected one")
        if self.splits and self.splits.masks and not self.episodes:
            raise ValueError("splits.masks name groups of episodes, so expected `episodes`")
        return self

    def picture(self, feature_name: str) -> Picture | None:
        """Return how the pictures of a feature are stored, None if no pattern fits."""
        return next((picture for pattern, picture in self.pictures.items() if fnmatchcase(feature_name, pattern)), None)

    def leaves_out(self, path: str) -> bool:
        """Return whether an array is left out; ``path`` is below the group of steps."""
        return any(fnmatchcase(path, pattern) for pattern in self.leave_out)


def read_layout(content: Mapping[str, Any]) -> Layout:
    """Return a layout; raises ConfigError that lists every fault."""
    try:
        return Layout.model_validate(dict(content))
    except ValidationError as error:
        raise ConfigError(list_faults(error, context="layout")) from None
