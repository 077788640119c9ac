"""Files of arrays as episodes: their locations, steps and values."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convert.errors import DamagedEpisode, MalformedEpisode
from convert.source.arrays.layout import Language, Layout
from convert.source.arrays.opening import open_store
from convert.source.arrays.rows import EncodedRows, Rows
from convert.source.arrays.store import Store, reading
from convert.source.files.plain import MAX_STEPS, PlainEpisode
from convert.source.files.source import FileEpisode, FileKind, FileReader, NumberedEpisode
from convert.source.protocol import SPLIT

INSTRUCTION = "language_instruction"
"""Episode feature with the text of ``Layout.language``."""
NAME = "episode_name"
"""Episode feature with the name of an episode's group."""
_MASKS = "filter_keys"
_SPLITS = ("train", "valid", "val", "validation", "test")


class StepArray(NamedTuple):
    """An array of steps.

    Attributes:
        name: Name of its feature.
        path: Its path below the group of steps.
        is_encoded: True for rows of encoded pictures.
        has_last: True if it has one value more than steps: the observation after the last action.
    """

    name: str
    path: str
    is_encoded: bool
    has_last: bool = False


class EpisodeLocation(NamedTuple):
    """An episode in its file: its group, and its steps in the arrays; all of them where ``stop`` is None."""

    group: str
    start: int = 0
    stop: int | None = None

    @property
    def name(self) -> str:
        """Last part of its group."""
        return self.group.rpartition("/")[2]

    def inside(self, path: str) -> str:
        """Return the path in the file of an array of the episode."""
        return path if path.startswith("/") else f"{self.group}/{path}".strip("/")


@dataclass(frozen=True, kw_only=True)
class ArraysKind(FileKind):
    """A layout, its arrays of steps, and the paths of arrays that are none; ``remarks`` are for people."""

    sampled_episodes = 100
    layout: Layout
    steps: tuple[StepArray, ...] = ()
    ignored_paths: tuple[str, ...] = ()
    remarks: list[str] = field(default_factory=list, compare=False)

    @property
    def recipe(self) -> Any:
        """The layout and the arrays."""
        return [self.layout.model_dump(mode="json"), self.steps]

    def survey(self, path: Path) -> dict[str, list[FileEpisode]]:
        """Return the episodes of a file by split."""
        with open_store(path) as store, reading():
            locations = self.locate_episodes(store)
            episodes = []
            for number, location in enumerate(locations):
                length = self.length(store, location) or 0
                episodes.append(FileEpisode(number, 0 if length > MAX_STEPS else length))
            return self._by_split(store, path, locations, episodes)

    @contextlib.contextmanager
    def open(self, path: Path) -> Iterator[ArraysReader]:
        """Open a file."""
        with open_store(path) as store:
            yield ArraysReader(self, path, store)

    def locate_episodes(self, store: Store) -> list[EpisodeLocation]:
        """Return the episodes of a file in order; raises MalformedEpisode if it has no such groups or array."""
        layout = self.layout
        if layout.ends:
            ends = np.asarray(store.value(layout.ends) if store.array_info(layout.ends) else ())
            if ends.ndim != 1 or ends.dtype.kind not in "iu" or np.any(np.diff(ends, prepend=0) < 0):
                raise MalformedEpisode(f"{layout.ends} is {ends.dtype} {ends.shape}, expected ends that do not fall")
            starts = [0, *ends.tolist()]
            return [EpisodeLocation("", start, stop) for start, stop in zip(starts, ends.tolist(), strict=False)]
        if layout.episodes is None:
            return [EpisodeLocation("")]
        if groups := store.groups(layout.episodes):
            return [EpisodeLocation(group) for group in groups]
        raise MalformedEpisode(f"has no groups {layout.episodes}")

    def length(self, store: Store, location: EpisodeLocation) -> int | None:
        """Return the count of an episode's steps, None if it lacks the array whose length is the count."""
        if location.stop is not None:
            return location.stop - location.start
        length_path = self.layout.length or next((step.path for step in self.steps if not step.has_last), None)
        array_path = store.first(self.path(location, length_path)) if length_path else None
        array_info = store.find(array_path) if array_path else None
        return array_info.shape[0] if array_info is not None and array_info.shape else None

    def path(self, location: EpisodeLocation, path: str) -> str:
        """Return the path of an array of steps in the file."""
        return path if path.startswith("/") else "/".join(filter(None, (location.group, self.layout.group, path)))

    def read(self, store: Store, file: Path, location: EpisodeLocation) -> PlainEpisode:
        """Return an episode whose steps are read when they are requested; raises MalformedEpisode if it differs."""
        num_steps = self.length(store, location)
        if num_steps is None:
            raise MalformedEpisode(f"has no array {self.layout.length or self.steps[0].path}")
        if num_steps > MAX_STEPS:
            raise MalformedEpisode(f"claims {num_steps:,} steps, more than {MAX_STEPS:,}")
        step_values: dict[str, Any] = {}
        for step in self.steps:
            path = self.path(location, step.path)
            if store.find(path) is None and self.layout.steps is None:
                continue
            shape = store.array_info(path).shape
            num_rows = shape[0] if shape else 0
            start, stop = location.start, num_rows if location.stop is None else location.stop
            stop = num_steps if step.has_last and num_rows == num_steps + 1 else stop
            if stop > num_rows:
                raise MalformedEpisode(f"{step.path} has {num_rows} steps, and the episode is {start} to {stop}")
            if step.is_encoded and len(shape) > 2:
                message = "holds pixels, and rows of encoded pictures in the first episode; their channels may differ"
                raise MalformedEpisode(f"{step.path} {message}, so convert these files as another dataset")
            rows_type = EncodedRows if step.is_encoded else Rows
            picture = self.layout.picture(step.name)
            step_values[step.name] = rows_type(store, path, start=start, stop=stop, picture=picture)
        step_values |= self._unknown(store, location, num_steps)
        return PlainEpisode(step_values, self._values(store, file, location))

    def _unknown(self, store: Store, location: EpisodeLocation, num_steps: int) -> dict[str, Any]:
        """Return the arrays of steps that no sampled episode had, so that they are reported."""
        if self.layout.steps is not None or location.stop is not None:
            return {}
        known_paths = {*self.ignored_paths, *(step.path for step in self.steps)}
        return {
            path: Rows(store, self.path(location, path), start=0, stop=num_steps)
            for path, info in store.arrays(self.path(location, "")).items()
            if path not in known_paths and not self.layout.leaves_out(path) and info.shape[:1] == (num_steps,)
        }

    def _values(self, store: Store, file: Path, location: EpisodeLocation) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if self.layout.episodes:
            values[NAME] = location.name
        for feature_name, value_path in self.layout.values.items():
            if (value := store.value(location.inside(value_path))) is not None:
                values[feature_name] = text_of(value) if isinstance(value, bytes | str) else value
        if self.layout.language:
            instructions = (_instruction(store, file, location, language) for language in self.layout.language)
            values[INSTRUCTION] = next(filter(None, instructions), "")
        if self.layout.splits and self.layout.splits.masks:
            masks = _masks(store, self.layout.splits.masks)
            values[_MASKS] = ", ".join(name for name, members in masks.items() if values[NAME] in members)
        return values

    def _by_split(
        self, store: Store, path: Path, locations: Sequence[EpisodeLocation], episodes: Sequence[FileEpisode]
    ) -> dict[str, list[FileEpisode]]:
        splits = self.layout.splits
        if splits is not None and splits.file:
            match = re.search(splits.file, path.as_posix())
            return {match[1] if match and SPLIT.fullmatch(match[1]) else "": list(episodes)}
        masks = _masks(store, splits.masks) if splits is not None and splits.masks else {}
        if splits is None or not masks:
            return {"": list(episodes)}
        usual_masks = {name: members for name, members in masks.items() if name in _SPLITS}
        for split_masks in (usual_masks, masks):
            counts = Counter(name for members in split_masks.values() for name in members)
            is_partition = all(counts[location.name] == 1 for location in locations)
            if split_masks and is_partition and all(map(SPLIT.fullmatch, split_masks)):
                return {
                    split: [episodes[number] for number, location in enumerate(locations) if location.name in members]
                    for split, members in split_masks.items()
                }
        mask_names = ", ".join(list(masks)[:8])
        fault = f"its keys ({mask_names}) share episodes or leave some out, so all are train"
        self.remarks.append(f"{splits.masks}: {fault}; the feature {_MASKS} has the keys of each episode")
        return {"train": list(episodes)}


@dataclass(frozen=True)
class ArraysReader(FileReader):
    """The episodes of an open file."""

    kind: ArraysKind
    path: Path
    store: Store

    def episodes(self, numbers: Sequence[int] | None) -> Iterator[NumberedEpisode]:
        """Yield episodes by their numbers."""
        with reading():
            locations = self.kind.locate_episodes(self.store)
        for number in range(len(locations)) if numbers is None else numbers:
            if number >= len(locations):
                yield number, MalformedEpisode(f"has {len(locations)} episodes now, fewer than before")
                continue
            try:
                with reading():
                    yield number, self.kind.read(self.store, self.path, locations[number])
            except DamagedEpisode as error:
                message = f"{locations[number].group}: {error}".removeprefix(": ")
                yield number, DamagedEpisode(message, reason=error.reason)


def _masks(store: Store, group: str) -> dict[str, set[str]]:
    """Return the names of the episodes in each mask of a group."""
    members_by_mask = {name: np.asarray(store.value(f"{group}/{name}")) for name in store.arrays(group)}
    return {mask_name: {text_of(member) for member in value.flat} for mask_name, value in members_by_mask.items()}


def _instruction(store: Store, file_path: Path, location: EpisodeLocation, language: Language) -> str | None:
    if language.text is not None:
        return language.text
    if language.file is not None:
        match = re.search(language.file, file_path.as_posix())
        return match[1].replace("_", " ").strip() if match and match[1] else None
    assert language.path is not None
    value = store.value(location.inside(language.path))
    if value is None:
        return None
    text = text_of(np.asarray(value).flat[0] if np.size(value) else "")
    if language.key is None:
        return text.strip()
    try:
        instruction = json.loads(text).get(language.key)
    except (ValueError, AttributeError):
        raise MalformedEpisode(f"{language.path} is {text!r:.80}, expected JSON with the key {language.key}") from None
    return "".join(instruction).strip().strip('"') if instruction else None


def text_of(value: Any) -> str:
    """Return a text or bytes of UTF-8 as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
