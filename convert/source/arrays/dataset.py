"""Datasets of arrays: ``arrays:PLACE`` with a layout in YAML, and ``PRESET:PLACE``."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convert.errors import DamagedEpisode, MalformedEpisode, SourceError
from convert.source.arrays.layout import Language, Layout
from convert.source.arrays.opening import open_store
from convert.source.arrays.preset import complete_entry, layout_of, load_preset, matching_presets
from convert.source.arrays.rows import EncodedRows, Rows, holds_pictures
from convert.source.arrays.store import FAULTS, STORES, Store, unreadable
from convert.source.files.plain import PlainEpisode
from convert.source.files.source import FileEpisode, FileKind, FileReader, FilesSource, Found, find_paths, open_files
from convert.source.places import candidates
from convert.source.protocol import SPLIT

INSTRUCTION = "language_instruction"
"""Episode feature with the text of ``Layout.language``."""
NAME = "episode_name"
"""Episode feature with the name of an episode's group."""
_MASKS = "filter_keys"
_NUMBERED = re.compile(r"((?:[^/]+/)*?)[^/]*\d+/")
"""The path of the arrays of an episode, in a group whose name ends in a number."""
_SPLITS = ("train", "valid", "val", "validation", "test")


class Step(NamedTuple):
    """An array of steps.

    Attributes:
        name: Name of its feature.
        path: Its path below the group of steps.
        is_encoded: True for rows of encoded pictures.
    """

    name: str
    path: str
    is_encoded: bool


class Place(NamedTuple):
    """An episode in its file: its group, and its steps in the arrays; all of them where ``stop`` is None."""

    group: str
    start: int = 0
    stop: int | None = None


def find(place: str, roots: Sequence[str], layout: Mapping[str, Any], *, preset: str | None = None) -> FilesSource:
    """Find files of arrays.

    Args:
        place: File, folder or glob; below a folder of ``--source`` unless it is a path.
        roots: Folders of ``--source``.
        layout: Keys of ``convert.source.arrays.layout.Layout``; they go before those of the preset.
        preset: Name of a preset.

    Raises:
        ConfigError: The layout is not valid.
        SourceError: No file, or none with an episode that can be read.
        UsageError: A library is not installed.
    """
    chosen = load_preset(preset) if preset else None
    known = layout_of(chosen, layout)
    root, paths = _find_files(place, roots, known)
    kind, remarks = _choose_steps(ArraysKind(layout=known), root, paths, preset=preset)
    name = Path(place.rstrip("/")).name
    facts = {"description": f"{chosen.description} ({name})." if chosen else f"Arrays of {name}."}
    source = open_files(root, paths, kind, name=name, facts=facts, libraries=("h5py", "zarr"))
    entry = complete_entry(source.entry, chosen.entry if chosen else {}, source.features, known)
    if not entry["cameras"]:
        raise SourceError(
            f"{root}: has no pictures, arrays of uint8 [n, H, W, 3] or rows of JPEG or PNG{_hint(source)}"
        )
    return replace(source, entry=entry, remarks=(*source.remarks, *remarks, *dict.fromkeys(kind.remarks)))


def suggest_layout(place: str, roots: Sequence[str]) -> dict[str, Any]:
    """Return a layout by the names in the first file, for a person to correct: where an episode is, and float pictures.

    Raises:
        SourceError: No file, or the first cannot be read.
    """
    _, paths = _find_files(place, roots, Layout())
    found: dict[str, Any] = {}
    try:
        with open_store(sorted(paths)[0]) as store, _reading():
            arrays = store.arrays("")
            numbered = Counter(match[1] for path in arrays if (match := _NUMBERED.match(path)))
            if ends := next((path for path in arrays if path.endswith("ends")), None):
                group = Counter(path.rpartition("/")[0] for path in arrays if path != ends)
                found |= {"ends": ends, "group": max(group, key=group.__getitem__)} if group else {"ends": ends}
            elif numbered:
                found["episodes"] = f"{max(numbered, key=numbered.__getitem__)}*"
            for path, facts in arrays.items():
                if facts.dtype.kind == "f" and len(facts.shape) == 4 and facts.shape[3] in (1, 3) and facts.shape[0]:
                    white = 255 if store.rows(path, facts, 0, 1).max() > 1 else 1
                    found.setdefault("pictures", {})[f"*{path.rpartition('/')[2]}"] = {"floats": white}
    except DamagedEpisode as error:
        raise SourceError(f"{paths[0]}: {error}") from None
    return found


def _hint(source: FilesSource) -> str:
    """Return what to write where pictures may be floats."""
    for feature in source.features.values():
        if len(feature.shape) == 3 and feature.shape[2] in (1, 3, 4) and feature.dtype.startswith("float"):
            told = f"if {feature.name}, {feature.dtype} {feature.shape}, is one"
            return f"; {told}, write in the layout `pictures: {{{feature.name}: {{floats: 255}}}}`, or 1"
    return ""


def _find_files(place: str, roots: Sequence[str], layout: Layout) -> tuple[str, list[Path]]:
    """Return the folder and the files of a place, of the first folder of ``--source`` that has them."""
    places = candidates(place, roots)
    faults = []
    for each in places:
        try:
            return find_paths(each, layout.files, stores=STORES)
        except SourceError as error:
            faults.append(str(error))
    raise SourceError(faults[0] if faults else f"{place}: is no path; give its folder as --source")


@dataclass(frozen=True, kw_only=True)
class ArraysKind(FileKind):
    """A layout, and the arrays of steps that the first episode has; ``remarks`` are for people."""

    layout: Layout
    steps: tuple[Step, ...] = ()
    remarks: list[str] = field(default_factory=list, compare=False)

    @property
    def recipe(self) -> Any:
        """The layout and the arrays."""
        return [self.layout.model_dump(mode="json"), self.steps]

    def survey(self, path: Path) -> dict[str, list[FileEpisode]]:
        """Return the episodes of a file by split."""
        with open_store(path) as store, _reading():
            places = self.places(store)
            found = [FileEpisode(number, self.length(store, place) or 0) for number, place in enumerate(places)]
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
        path = self.layout.length or next((step.path for step in self.steps), None)
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
        steps: dict[str, Any] = {}
        for step in self.steps:
            path = self.path(place, step.path)
            facts = store.find(path)
            if facts is None and self.layout.steps is None:
                continue
            rows = store.facts(path).shape[0] if store.facts(path).shape else 0
            start, stop = place.start, rows if place.stop is None else place.stop
            if stop > rows:
                raise MalformedEpisode(f"{step.path} has {rows} steps, and the episode is {start} to {stop}")
            picture = self.layout.picture(step.name)
            if step.is_encoded and len(store.facts(path).shape) > 2:
                fault = f"{step.path} holds pixels, and rows of encoded pictures in the first episode"
                raise MalformedEpisode(f"{fault}; their channels may differ, so convert these files as another dataset")
            kind = EncodedRows if step.is_encoded else Rows
            steps[step.name] = kind(store, path, start=start, stop=stop, picture=picture)
        return PlainEpisode(steps, self._values(store, file, place))

    def _values(self, store: Store, file: Path, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.layout.episodes:
            found[NAME] = place.group.rpartition("/")[2]
        for name, path in self.layout.values.items():
            value = store.value(_inside(place, path))
            if value is not None:
                found[name] = _text(value) if isinstance(value, bytes | str) else value
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
        return {name: {_text(each) for each in value.flat} for name, value in values.items()}

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
        with _reading():
            places = self.kind.places(self.store)
        for number in range(len(places)) if numbers is None else numbers:
            if number >= len(places):
                yield number, MalformedEpisode(f"has {len(places)} episodes now, fewer than before")
                continue
            where = places[number].group
            try:
                with _reading():
                    yield number, self.kind.read(self.store, self.path, places[number])
            except DamagedEpisode as error:
                yield number, DamagedEpisode(f"{where}: {error}" if where else str(error), reason=error.reason)


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Turn a library's error into a DamagedEpisode."""
    try:
        yield
    except FAULTS as error:
        raise unreadable(error) from None


def _choose_steps(
    kind: ArraysKind, root: str, paths: Sequence[Path], *, preset: str | None
) -> tuple[ArraysKind, list[str]]:
    """Return the kind with the arrays of the first episode that can be read, and remarks on those left out.

    Raises:
        SourceError: There is none.
    """
    faults: list[str] = []
    for path in sorted(paths):
        try:
            with open_store(path) as store:
                others = [name for name in matching_presets(store) if name != preset]
                hint = f"; it looks like {' or '.join(others)}" if others else ""
                try:
                    with _reading():
                        return _first_steps(kind, store)
                except DamagedEpisode as error:
                    faults.append(f"{path.relative_to(root)}: {error}{hint}")
        except DamagedEpisode as error:
            faults.append(f"{path.relative_to(root)}: {error}")
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    raise SourceError(f"{root}: no episode can be read, so its features are not known; {faults[0]}{more}")


def _first_steps(kind: ArraysKind, store: Store) -> tuple[ArraysKind, list[str]]:
    layout, fault = kind.layout, "has no episode"
    places = kind.places(store)
    for place in places:
        group = kind.path(place, "")
        found = {path: facts for path, facts in store.arrays(group).items() if not layout.leaves_out(path)}
        if layout.steps is not None:
            named = {name: store.facts(kind.path(place, path)) for name, path in layout.steps.items()}
            paths = layout.steps
        else:
            named, paths = found, {path: path for path in found}
        lengths = Counter(facts.shape[0] for facts in named.values() if facts.shape)
        number = kind.length(store, place) if layout.length or place.stop is not None else None
        if place.stop is not None:
            number = (places[-1].stop or 0) if place.stop > place.start else 0
        elif layout.length and number is None:
            fault = f"{place.group}: has no array {layout.length}".removeprefix(": ")
            continue
        elif number is None and lengths:
            number = max(lengths, key=lambda length: (lengths[length], length))
        if not number:
            fault = f"{place.group}: has no array with steps".removeprefix(": ")
            continue
        steps, others = [], []
        for name, facts in named.items():
            path, picture = kind.path(place, paths[name]), layout.picture(name)
            stop = number if place.stop is None else place.stop
            encoded = holds_pictures(store, path, facts, start=place.start, stop=stop, picture=picture)
            if layout.steps is None and (fault_of := _unfit(facts, number, encoded)):
                others.append(f"{name} ({fault_of})")
            else:
                steps.append(Step(name, paths[name], encoded))
        remarks = [f"arrays that are no steps: {', '.join(others)}"] if others else []
        return replace(kind, steps=tuple(steps)), remarks
    raise MalformedEpisode(fault)


def _unfit(facts: Any, number: int, encoded: bool) -> str | None:
    """Return why an array is no array of steps, None if it is one."""
    if not facts.shape or facts.shape[0] != number:
        return f"{facts.shape[0] if facts.shape else 1} values, not {number}"
    if facts.dtype.kind == "V" and not encoded:
        return f"is {facts.dtype}"
    return None


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
    text = _text(np.asarray(value).flat[0] if np.size(value) else "")
    if language.key is None:
        return text.strip()
    try:
        found = json.loads(text).get(language.key)
    except (ValueError, AttributeError):
        raise MalformedEpisode(f"{language.path} is {text!r:.80}, expected JSON with the key {language.key}") from None
    return "".join(found).strip().strip('"') if found else None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
