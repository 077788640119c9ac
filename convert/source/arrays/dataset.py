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
from convert.source.arrays.store import FAULTS, STORES, Facts, Store, unreadable
from convert.source.files.plain import MAX_STEPS, PlainEpisode
from convert.source.files.source import FileEpisode, FileKind, FileReader, FilesSource, Found, open_files, spread
from convert.source.places import candidates, find_paths
from convert.source.protocol import SPLIT

INSTRUCTION = "language_instruction"
"""Episode feature with the text of ``Layout.language``."""
NAME = "episode_name"
"""Episode feature with the name of an episode's group."""
_MASKS = "filter_keys"
_NUMBERED = re.compile(r"((?:[^/]+/)*?)[^/]*\d+/")
"""The path of the arrays of an episode, in a group whose name ends in a number."""
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
                if (
                    facts.dtype.kind == "f"
                    and len(facts.shape) == 4
                    and facts.shape[3] in (1, 3)
                    and facts.shape[0]
                    and facts.is_small
                ):
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
        with open_store(path) as store, _reading():
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
    """Return the kind with the arrays of episodes from all over the dataset, and remarks on those left out.

    Raises:
        SourceError: No episode can be read.
    """
    faults: list[str] = []
    steps: dict[str, Step] = {}
    others: dict[str, str] = {}
    ordered = sorted(paths)
    looked = spread(ordered, _LOOKS)
    for path in [*looked, *(path for path in ordered if path not in looked)]:
        if steps and path not in looked:
            break
        try:
            with open_store(path) as store:
                alike = [name for name in matching_presets(store) if name != preset]
                hint = f"; it looks like {' or '.join(alike)}" if alike else ""
                try:
                    with _reading():
                        _add_steps(kind, store, steps, others, most=max(1, _LOOKS // len(ordered)))
                except DamagedEpisode as error:
                    faults.append(f"{path.relative_to(root)}: {error}{hint}")
        except DamagedEpisode as error:
            faults.append(f"{path.relative_to(root)}: {error}")
    if steps:
        fits = {name: fault for name, fault in others.items() if name not in steps}
        ends = [step.name for step in steps.values() if step.has_last]
        remarks = [f"arrays that are no steps: {', '.join(f'{name} ({fault})' for name, fault in fits.items())}"]
        last = f"have a value after the last action, which is left out: {', '.join(ends)}"
        chosen = replace(kind, steps=tuple(steps.values()), others=tuple(fits))
        return chosen, [*(remarks if fits else ()), *([last] if ends else ())]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    raise SourceError(f"{root}: no episode can be read, so its features are not known; {faults[0]}{more}")


def _add_steps(kind: ArraysKind, store: Store, steps: dict[str, Step], others: dict[str, str], *, most: int) -> None:
    """Add the arrays of steps of some episodes of a file by name, and why other arrays are none.

    Raises:
        MalformedEpisode: No episode of the file has steps.
    """
    layout, fault = kind.layout, "has no episode"
    places = kind.places(store)
    looked = spread(places, most)
    has_steps = False
    for place in [*looked, *places]:
        if has_steps and place == places[0]:
            return
        arrays = {
            path: facts for path, facts in store.arrays(kind.path(place, "")).items() if not layout.leaves_out(path)
        }
        paths = {path: path for path in arrays} if layout.steps is None else layout.steps
        if layout.steps is not None:
            arrays = {name: store.facts(kind.path(place, path)) for name, path in paths.items()}
        number = _count_steps(kind, store, place, arrays)
        if place.stop is not None:
            number = (places[-1].stop or 0) if place.stop > place.start else 0
        if not number or number > MAX_STEPS:
            missing = f"has no array {layout.length}" if layout.length and number is None else "has no array with steps"
            fault = f"{place.group}: {missing}".removeprefix(": ")
            continue
        has_steps = True
        for name, facts in arrays.items():
            path, picture = kind.path(place, paths[name]), layout.picture(name)
            stop = number if place.stop is None else place.stop
            encoded = holds_pictures(store, path, facts, start=place.start, stop=stop, picture=picture)
            has_last = place.stop is None and facts.shape[:1] == (number + 1,)
            if layout.steps is None and (reason := _unfit(name, facts, number + has_last, encoded)):
                others.setdefault(name, reason)
            else:
                step = steps.setdefault(name, Step(name, paths[name], encoded, has_last))
                steps[name] = step._replace(has_last=step.has_last or has_last)
    if not has_steps:
        raise MalformedEpisode(fault)


def _count_steps(kind: ArraysKind, store: Store, place: Place, arrays: Mapping[str, Facts]) -> int | None:
    """Return the count of steps of an episode before its arrays are chosen: that of most arrays, or of the actions.

    An array of actions that is one shorter than most tells the count: then observations have one after the last action.
    """
    if kind.layout.length:
        return kind.length(store, place)
    lengths = Counter(facts.shape[0] for facts in arrays.values() if facts.shape)
    if not lengths:
        return None
    most = max(lengths, key=lambda length: (lengths[length], length))
    actions = [facts for name, facts in arrays.items() if re.search(r"(^|/)actions?(/|$)", name) and facts.shape]
    return most - 1 if any(facts.shape[0] == most - 1 for facts in actions) else most


def _unfit(name: str, facts: Facts, number: int, encoded: bool) -> str | None:
    """Return why an array is no array of steps, None if it is one."""
    if not name.isprintable():
        return "its name is not text"
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
