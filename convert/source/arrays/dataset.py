"""Datasets of arrays: ``arrays:PLACE`` with a layout in YAML, and ``PRESET:PLACE``."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from convert.errors import DamagedEpisode, MalformedEpisode, SourceError
from convert.source.arrays.kind import ArraysKind, Place, Step, reading, text_of
from convert.source.arrays.layout import Layout
from convert.source.arrays.opening import open_store
from convert.source.arrays.preset import complete_entry, layout_of, load_preset, matching_presets
from convert.source.arrays.rows import holds_pictures
from convert.source.arrays.store import STORES, Facts, Store
from convert.source.describe import unlike_pictures
from convert.source.files.plain import MAX_STEPS, PlainEpisode
from convert.source.files.source import FilesSource, open_files, spread
from convert.source.picture_names import FUNCTION, PICTURE_FILES, describe_names
from convert.source.places import find_files, walk

_NUMBERED = re.compile(r"((?:[^/]+/)*?)[^/]*\d+/")
"""The path of the arrays of an episode, in a group whose name ends in a number."""


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
    root, paths = find_files(place, roots, known.files, stores=STORES)
    kind, remarks = _choose_steps(ArraysKind(layout=known), root, paths, preset=preset)
    name = Path(place.rstrip("/")).name
    facts = {"description": f"{chosen.description} ({name})." if chosen else f"Arrays of {name}."}
    source = open_files(root, paths, kind, name=name, facts=facts, libraries=("h5py", "zarr"))
    entry = complete_entry(source.entry, chosen.entry if chosen else {}, source.features, known)
    if not entry["cameras"]:
        raise SourceError(f"{root}: has no pictures, uint8 [n, H, W, 3] or rows of JPEG or PNG{_hint(source)}")
    return replace(source, entry=entry, remarks=(*source.remarks, *remarks, *dict.fromkeys(kind.remarks)))


def suggest_layout(place: str, roots: Sequence[str]) -> dict[str, Any]:
    """Return a layout by the names in the first file, for a person to correct: where an episode is, and float pictures.

    Raises:
        SourceError: No file, or the first cannot be read.
    """
    _, paths = find_files(place, roots, Layout().files, stores=STORES)
    found: dict[str, Any] = {}
    try:
        with open_store(sorted(paths)[0]) as store, reading():
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
    """Return what to write where pictures have another form, or are files beside the arrays."""
    for feature in unlike_pictures(source.features):
        keys = [] if feature.shape[2] in (1, 3, 4) else ["channels_first: true"]
        keys += ["floats: 255"] if feature.dtype.startswith("float") else []
        if keys and feature.dtype in ("uint8", "float16", "float32", "float64"):
            seen = f"if {feature.name}, {feature.dtype} {feature.shape}, is one"
            scale = ", or floats: 1" if "floats: 255" in keys else ""
            return f"; {seen}, write in the layout `pictures: {{{feature.name}: {{{', '.join(keys)}}}}}`{scale}"
    root = Path(source.path)
    file = root / next(file.name for units in source.units.values() for unit in units for file in unit)
    if names := describe_names(_texts(source, file), file, root):
        return names
    if (beside := next(walk(root, PICTURE_FILES), None)) is None:
        return ""
    example = beside.relative_to(root)
    return f"; pictures and videos in files beside the arrays, such as {example}, are not read: {FUNCTION}"


def _texts(source: FilesSource, file: Path) -> dict[str, str]:
    """Return the first text of each feature of texts in the first episode of a file that can be read."""
    names = {feature.name for feature in source.features.values() if feature.dtype == "string"}
    with contextlib.suppress(DamagedEpisode), source.kind.open(file) as reader, reading():
        for _, episode in reader.episodes(None):
            if isinstance(episode, PlainEpisode):
                steps = {name: np.asarray(episode.steps[name][:1]) for name in names & episode.steps.keys()}
                return {name: text_of(values.flat[0]) for name, values in steps.items() if values.size}
    return {}


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
    noted: list[str] = []
    ordered = sorted(paths)
    looked = spread(ordered, kind.looks)
    for path in [*looked, *(path for path in ordered if path not in looked)]:
        if steps and path not in looked:
            break
        try:
            with open_store(path) as store:
                alike = [name for name in matching_presets(store) if name != preset]
                hint = f"; it looks like {' or '.join(alike)}" if alike else ""
                try:
                    with reading():
                        _add_steps(kind, store, steps, others, most=max(1, kind.looks // len(ordered)))
                        noted = noted or list(_attributes(store, kind.places(store)[0].group))
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
        return chosen, [*noted, *(remarks if fits else ()), *([last] if ends else ())]
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


def _attributes(store: Store, group: str) -> Iterator[str]:
    """Yield a line about the attributes of a file and of the groups above and of its first episode, shortened."""
    parts = group.split("/") if group else []
    for path in ["", *("/".join(parts[: number + 1]) for number in range(len(parts)))]:
        values = {name: " ".join(str(text_of(value)).split()) for name, value in store.attributes(path).items()}
        if values:
            listed = ", ".join(f"@{name} = {value[:60]}{'...' * (len(value) > 60)}" for name, value in values.items())
            yield f"attributes of {path or 'the file'}: {listed}"


def _unfit(name: str, facts: Facts, number: int, encoded: bool) -> str | None:
    """Return why an array is no array of steps, None if it is one."""
    if not name.isprintable():
        return "its name is not text"
    if not facts.shape or facts.shape[0] != number:
        return f"{facts.shape[0] if facts.shape else 1} values, not {number}"
    if facts.dtype.kind == "V" and not encoded:
        return f"is {facts.dtype}"
    return None
