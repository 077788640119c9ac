"""The files of arrays as episodes: where each begins in its file, its steps and its values."""

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
from convert.source.arrays.store import FAULTS, Store, unreadable
from convert.source.files.plain import MAX_STEPS, PlainEpisode
from convert.source.files.source import FileEpisode, FileKind, FileReader, Found
from convert.source.protocol import SPLIT

INSTRUCTION = "language_instruction"
"""Episode feature with the text of ``Layout.language``."""
NAME = "episode_name"
"""Episode feature with the name of an episode's group."""
_MASKS = "filter_keys"
_LOOKS = 100
"""Episodes, from all over a dataset, whose arrays are its features."""
_SPLITS = ("train", "valid", "val", "validation", "test")


class Step(NamedTuple):
    """An array of steps.

    Attributes:
        name: Name of its feature.
        path: Its path below the group of steps.
        is_encoded: True for rows of encoded pictures.
        has_last: True if it has a value more than there are steps: what is observed after the last action.
    """

    name: str
    path: str
    is_encoded: bool
    has_last: bool = False


class Place(NamedTuple):
    """An episode in its file: its group, and its steps in the arrays; all of them where ``stop`` is None."""

    group: str
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, kw_only=True)
class ArraysKind(FileKind):
    """A layout, the arrays of steps, and the paths of those that are none; ``remarks`` are for people."""

    looks = _LOOKS
    layout: Layout
    steps: tuple[Step, ...] = ()
    others: tuple[str, ...] = ()
    remarks: list[str] = field(default_factory=list, compare=False)

    @property
    def recipe(self) -> Any:
        """The layout and the arrays."""
        return [self.layout.model_dump(mode="json"), self.steps]

    def survey(self, path: Path) -> dict[str, list[FileEpisode]]:
        """Return the episodes of a file by split."""
        with open_store(path) as store, reading():
            places = self.places(store)
            lengths = [self.length(store, place) or 0 for place in places]
            found = [FileEpisode(number, 0 if steps > MAX_STEPS else steps) for number, steps in enumerate(lengths)]
            return self._by_split(store, path, places, found)

    @contextlib.contextmanager
    def open(self, path: Path) -> Iterator[ArraysReader]:
        """Open a file."""
        with open_store(path) as store:
            yield ArraysReader(self, path, store)

    def places(self, store: Store) -> list[Place]:
        """Return the episodes of a file in order; raises MalformedEpisode if it has no such groups or array."""
        layout = self.layout
        if layout.ends:
            ends = np.asarray(store.value(layout.ends) if store.facts(layout.ends) else ())
            if ends.ndim != 1 or ends.dtype.kind not in "iu" or np.any(np.diff(ends, prepend=0) < 0):
                raise MalformedEpisode(f"{layout.ends} is {ends.dtype} {ends.shape}, expected ends that do not fall")
            starts = [0, *ends.tolist()]
            return [Place("", start, stop) for start, stop in zip(starts, ends.tolist(), strict=False)]
        if layout.episodes is None:
            return [Place("")]
        if groups := store.groups(layout.episodes):
            return [Place(group) for group in groups]
        raise MalformedEpisode(f"has no groups {layout.episodes}")

    def length(self, store: Store, place: Place) -> int | None:
        """Return the count of an episode's steps, None if it lacks the array that tells."""
        if place.stop is not None:
            return place.stop - place.start
        path = self.layout.length or next((step.path for step in self.steps if not step.has_last), None)
        found = store.first(self.path(place, path)) if path else None
        facts = store.find(found) if found else None
        return facts.shape[0] if facts is not None and facts.shape else None

    def path(self, place: Place, path: str) -> str:
        """Return the path of an array of steps in the file."""
        return path if path.startswith("/") else "/".join(filter(None, (place.group, self.layout.group, path)))

    def read(self, store: Store, file: Path, place: Place) -> PlainEpisode:
        """Return an episode whose steps are read when they are taken.

        Raises:
            MalformedEpisode: It lacks the array that tells its length, or one has another form than in the first.
        """
        number = self.length(store, place)
        if number is None:
            raise MalformedEpisode(f"has no array {self.layout.length or self.steps[0].path}")
        if number > MAX_STEPS:
            raise MalformedEpisode(f"claims {number:,} steps, more than {MAX_STEPS:,}")
        steps: dict[str, Any] = {}
        for step in self.steps:
            path = self.path(place, step.path)
            facts = store.find(path)
            if facts is None and self.layout.steps is None:
                continue
            rows = store.facts(path).shape[0] if store.facts(path).shape else 0
            start, stop = place.start, rows if place.stop is None else place.stop
            if step.has_last and rows == number + 1:
                stop = number
            if stop > rows:
                raise MalformedEpisode(f"{step.path} has {rows} steps, and the episode is {start} to {stop}")
            picture = self.layout.picture(step.name)
            if step.is_encoded and len(store.facts(path).shape) > 2:
                fault = f"{step.path} holds pixels, and rows of encoded pictures in the first episode"
                raise MalformedEpisode(f"{fault}; their channels may differ, so convert these files as another dataset")
            kind = EncodedRows if step.is_encoded else Rows
            steps[step.name] = kind(store, path, start=start, stop=stop, picture=picture)
        return PlainEpisode(steps | self._unknown(store, place, number), self._values(store, file, place))

    def _unknown(self, store: Store, place: Place, number: int) -> dict[str, Any]:
        """Return the arrays of steps that no episode had that was looked at, for them to be listed."""
        if self.layout.steps is not None or place.stop is not None:
            return {}
        known = {*self.others, *(step.path for step in self.steps)}
        return {
            path: Rows(store, self.path(place, path), start=0, stop=number)
            for path, facts in store.arrays(self.path(place, "")).items()
            if path not in known and not self.layout.leaves_out(path) and facts.shape[:1] == (number,)
        }

    def _values(self, store: Store, file: Path, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.layout.episodes:
            found[NAME] = place.group.rpartition("/")[2]
        for name, path in self.layout.values.items():
            value = store.value(_inside(place, path))
            if value is not None:
                found[name] = text_of(value) if isinstance(value, bytes | str) else value
        if self.layout.language:
            texts = (_instruction(store, file, place, each) for each in self.layout.language)
            found[INSTRUCTION] = next(filter(None, texts), "")
        if self.layout.splits and self.layout.splits.masks:
            masks = self._masks(store)
            found[_MASKS] = ", ".join(name for name, members in masks.items() if found[NAME] in members)
        return found

    def _masks(self, store: Store) -> dict[str, set[str]]:
        assert self.layout.splits and self.layout.splits.masks
        group = self.layout.splits.masks
        values = {name: np.asarray(store.value(f"{group}/{name}")) for name in store.arrays(group)}
        return {name: {text_of(each) for each in value.flat} for name, value in values.items()}

    def _by_split(
        self, store: Store, path: Path, places: Sequence[Place], found: Sequence[FileEpisode]
    ) -> dict[str, list[FileEpisode]]:
        splits = self.layout.splits
        if splits is None:
            return {"": list(found)}
        if splits.file:
            match = re.search(splits.file, path.as_posix())
            return {match[1] if match and SPLIT.fullmatch(match[1]) else "": list(found)}
        names = [place.group.rpartition("/")[2] for place in places]
        masks = self._masks(store)
        if not masks:
            return {"": list(found)}
        usual = {name: members for name, members in masks.items() if name in _SPLITS}
        for each in (usual, masks):
            counts = Counter(name for members in each.values() for name in members)
            if each and all(counts[name] == 1 for name in names) and all(map(SPLIT.fullmatch, each)):
                return {
                    split: [episode for episode, name in zip(found, names, strict=True) if name in members]
                    for split, members in each.items()
                }
        keys = ", ".join(list(masks)[:8])
        self.remarks.append(
            f"{splits.masks}: its keys ({keys}) share episodes or leave some out, so all are train; the feature "
            f"{_MASKS} has the keys of each episode"
        )
        return {"train": list(found)}


@dataclass(frozen=True)
class ArraysReader(FileReader):
    """The episodes of an open file."""

    kind: ArraysKind
    path: Path
    store: Store

    def episodes(self, numbers: Sequence[int] | None) -> Iterator[Found]:
        """Yield episodes by their numbers."""
        with reading():
            places = self.kind.places(self.store)
        for number in range(len(places)) if numbers is None else numbers:
            if number >= len(places):
                yield number, MalformedEpisode(f"has {len(places)} episodes now, fewer than before")
                continue
            where = places[number].group
            try:
                with reading():
                    yield number, self.kind.read(self.store, self.path, places[number])
            except DamagedEpisode as error:
                yield number, DamagedEpisode(f"{where}: {error}" if where else str(error), reason=error.reason)


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Turn an error of a library into a DamagedEpisode."""
    try:
        yield
    except FAULTS as error:
        raise unreadable(error) from None


def _inside(place: Place, path: str) -> str:
    return path if path.startswith("/") else f"{place.group}/{path}" if place.group else path


def _instruction(store: Store, file: Path, place: Place, language: Language) -> str | None:
    if language.text is not None:
        return language.text
    if language.file is not None:
        match = re.search(language.file, file.as_posix())
        return match[1].replace("_", " ").strip() if match and match[1] else None
    assert language.path is not None
    value = store.value(_inside(place, language.path))
    if value is None:
        return None
    text = text_of(np.asarray(value).flat[0] if np.size(value) else "")
    if language.key is None:
        return text.strip()
    try:
        found = json.loads(text).get(language.key)
    except (ValueError, AttributeError):
        raise MalformedEpisode(f"{language.path} is {text!r:.80}, expected JSON with the key {language.key}") from None
    return "".join(found).strip().strip('"') if found else None


def text_of(value: Any) -> str:
    """Return a text or bytes of UTF-8 as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
