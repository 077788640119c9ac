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
from convert.source.arrays.kind import ArraysKind, EpisodeLocation, StepArray, text_of
from convert.source.arrays.layout import Layout, read_layout
from convert.source.arrays.opening import open_store
from convert.source.arrays.preset import Preset, complete_entry, load_preset, matching_presets
from convert.source.arrays.rows import holds_pictures
from convert.source.arrays.store import STORES, ArrayInfo, Store, reading
from convert.source.describe import unlike_pictures
from convert.source.files.plain import MAX_STEPS, PlainEpisode
from convert.source.files.source import FilesSource, open_files, spread
from convert.source.locations import find_files, walk
from convert.source.picture_names import FUNCTION, PICTURE_FILES, describe_names

_NUMBERED_GROUP = re.compile(r"((?:[^/]+/)*?)[^/]*\d+/")
"""Path of an array in a group whose name ends in a number, as groups of episodes often do."""
_LIBRARIES = ("h5py", "zarr")


def find(location: str, roots: Sequence[str], layout: Mapping[str, Any], *, preset: str | None = None) -> FilesSource:
    """Find files of arrays; the keys of ``layout`` override those of the preset.

    Raises:
        ConfigError: The layout is not valid.
        SourceError: No file, or none with an episode that can be read.
        UsageError: A library is not installed.
    """
    chosen_preset = load_preset(preset) if preset else Preset(description="", layout={})
    chosen_layout = read_layout({**chosen_preset.layout, **layout})
    root, file_paths = find_files(location, roots, chosen_layout.files, stores=STORES)
    kind, remarks = _choose_steps(ArraysKind(layout=chosen_layout), root, file_paths, preset=preset)
    dataset_name = Path(location.rstrip("/")).name
    description = f"{chosen_preset.description} ({dataset_name})." if preset else f"Arrays of {dataset_name}."
    facts = {"description": description}
    source = open_files(root, file_paths, kind, dataset_name=dataset_name, entry_facts=facts, libraries=_LIBRARIES)
    entry = complete_entry(source.entry, chosen_preset.entry, source.features, chosen_layout)
    if not entry["cameras"]:
        raise SourceError(f"{root}: has no pictures, uint8 [n, H, W, 3] or rows of JPEG or PNG{_hint(source)}")
    return replace(source, entry=entry, remarks=(*source.remarks, *remarks, *dict.fromkeys(kind.remarks)))


def suggest_layout(location: str, roots: Sequence[str]) -> dict[str, Any]:
    """Return a layout to correct, by the names in the first file; raises SourceError if it cannot be read."""
    first_file = min(find_files(location, roots, Layout().files, stores=STORES)[1])
    suggested_layout: dict[str, Any] = {}
    try:
        with open_store(first_file) as store, reading():
            arrays = store.arrays("")
            numbered_groups = Counter(match[1] for path in arrays if (match := _NUMBERED_GROUP.match(path)))
            if ends_path := next((path for path in arrays if path.endswith("ends")), None):
                suggested_layout["ends"] = ends_path
                if groups := Counter(path.rpartition("/")[0] for path in arrays if path != ends_path):
                    suggested_layout["group"] = max(groups, key=groups.__getitem__)
            elif numbered_groups:
                suggested_layout["episodes"] = f"{max(numbered_groups, key=numbered_groups.__getitem__)}*"
            for path, info in arrays.items():
                if _is_float_pictures(info):
                    white = 255 if store.rows(path, info, 0, 1).max() > 1 else 1
                    suggested_layout.setdefault("pictures", {})[f"*{path.rpartition('/')[2]}"] = {"floats": white}
    except DamagedEpisode as error:
        raise SourceError(f"{first_file}: {error}") from None
    return suggested_layout


def _is_float_pictures(info: ArrayInfo) -> bool:
    has_pixels = len(info.shape) == 4 and info.shape[3] in (1, 3) and info.shape[0] > 0
    return info.dtype.kind == "f" and has_pixels and info.is_small


def _hint(source: FilesSource) -> str:
    """Return advice for pictures in another form, or in files next to the arrays."""
    for feature in unlike_pictures(source.features):
        layout_keys = [] if feature.shape[2] in (1, 3, 4) else ["channels_first: true"]
        layout_keys += ["floats: 255"] if feature.dtype.startswith("float") else []
        if layout_keys and feature.dtype in ("uint8", "float16", "float32", "float64"):
            condition = f"if {feature.name}, {feature.dtype} {feature.shape}, is one"
            alternative = ", or floats: 1" if "floats: 255" in layout_keys else ""
            layout = f"pictures: {{{feature.name}: {{{', '.join(layout_keys)}}}}}"
            return f"; {condition}, write in the layout `{layout}`{alternative}"
    dataset_folder = Path(source.path)
    first_unit = next(unit for units in source.units.values() for unit in units)
    first_file = dataset_folder / first_unit[0].name
    if names_note := describe_names(_texts(source, first_file), first_file, dataset_folder):
        return names_note
    if (picture_file := next(walk(dataset_folder, PICTURE_FILES), None)) is None:
        return ""
    example = picture_file.relative_to(dataset_folder)
    return f"; pictures and videos in files next to the arrays, such as {example}, are not read: {FUNCTION}"


def _texts(source: FilesSource, file: Path) -> dict[str, str]:
    """Return the first text of each feature of texts in the first episode of a file that can be read."""
    text_features = {feature.name for feature in source.features.values() if feature.dtype == "string"}
    with contextlib.suppress(DamagedEpisode), source.kind.open(file) as reader, reading():
        for _, episode in reader.episodes(None):
            if isinstance(episode, PlainEpisode):
                names = text_features & episode.steps.keys()
                first_values = {name: np.asarray(episode.steps[name][:1]) for name in names}
                return {name: text_of(values.flat[0]) for name, values in first_values.items() if values.size}
    return {}


def _choose_steps(
    kind: ArraysKind, folder: str, file_paths: Sequence[Path], *, preset: str | None
) -> tuple[ArraysKind, list[str]]:
    """Return the kind with the arrays of episodes from all over the dataset, and remarks on arrays left out."""
    messages: list[str] = []
    step_arrays: dict[str, StepArray] = {}
    misfits: dict[str, str] = {}
    attributes: list[str] = []
    sorted_files = sorted(file_paths)
    sampled_files = spread(sorted_files, kind.sampled_episodes)
    max_episodes = max(1, kind.sampled_episodes // len(sorted_files))
    for path in [*sampled_files, *(path for path in sorted_files if path not in sampled_files)]:
        if step_arrays and path not in sampled_files:
            break
        hint = ""
        try:
            with open_store(path) as store:
                if similar_presets := [name for name in matching_presets(store) if name != preset]:
                    hint = f"; it looks like {' or '.join(similar_presets)}"
                with reading():
                    _add_steps(kind, store, step_arrays, misfits, max_episodes=max_episodes)
                    attributes = attributes or list(_attributes(store, kind.locate_episodes(store)[0].group))
        except DamagedEpisode as error:
            messages.append(f"{path.relative_to(folder)}: {error}{hint}")
    if not step_arrays:
        more = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
        raise SourceError(f"{folder}: no episode can be read, so its features are not known; {messages[0]}{more}")
    misfits = {name: fault for name, fault in misfits.items() if name not in step_arrays}
    remarks = list(attributes)
    if misfits:
        remarks.append("arrays that are no steps: " + ", ".join(f"{name} ({misfits[name]})" for name in misfits))
    if with_last := [step_array.name for step_array in step_arrays.values() if step_array.has_last]:
        remarks.append(f"have a value after the last action, which is left out: {', '.join(with_last)}")
    return replace(kind, steps=tuple(step_arrays.values()), ignored_paths=tuple(misfits)), remarks


def _add_steps(
    kind: ArraysKind, store: Store, step_arrays: dict[str, StepArray], misfits: dict[str, str], *, max_episodes: int
) -> None:
    """Add the arrays of steps of several episodes of a file by name, and why other arrays are none."""
    layout, fault = kind.layout, "has no episode"
    locations = kind.locate_episodes(store)
    has_steps = False
    for location in [*spread(locations, max_episodes), *locations]:
        if has_steps and location == locations[0]:
            return
        if layout.steps is None:
            arrays = store.arrays(kind.path(location, ""))
            arrays = {path: info for path, info in arrays.items() if not layout.leaves_out(path)}
            path_by_name = {path: path for path in arrays}
        else:
            path_by_name = layout.steps
            arrays = {name: store.array_info(kind.path(location, path)) for name, path in path_by_name.items()}
        num_steps = _count_steps(kind, store, location, arrays)
        if location.stop is not None:
            # Arrays that hold all episodes have as many rows as the last episode ends at.
            num_steps = (locations[-1].stop or 0) if location.stop > location.start else 0
        if not num_steps or num_steps > MAX_STEPS:
            lacks_length = layout.length and num_steps is None
            reason = f"has no array {layout.length}" if lacks_length else "has no array with steps"
            fault = f"{location.group}: {reason}".removeprefix(": ")
            continue
        has_steps = True
        end_row = num_steps if location.stop is None else location.stop
        for name, info in arrays.items():
            path = kind.path(location, path_by_name[name])
            picture = layout.picture(name)
            is_encoded = holds_pictures(store, path, info, start=location.start, stop=end_row, picture=picture)
            has_last = location.stop is None and info.shape[:1] == (num_steps + 1,)
            if layout.steps is None and (misfit := _find_misfit(name, info, num_steps + has_last, is_encoded)):
                misfits.setdefault(name, misfit)
            else:
                step_array = step_arrays.setdefault(name, StepArray(name, path_by_name[name], is_encoded, has_last))
                step_arrays[name] = step_array._replace(has_last=step_array.has_last or has_last)
    if not has_steps:
        raise MalformedEpisode(fault)


def _count_steps(
    kind: ArraysKind, store: Store, location: EpisodeLocation, arrays: Mapping[str, ArrayInfo]
) -> int | None:
    """Return the count of steps of an episode before its arrays are chosen: the length of most arrays.

    If the actions are one shorter than most arrays, their length is the count: the observations then include one after
    the last action.
    """
    if kind.layout.length:
        return kind.length(store, location)
    length_counts = Counter(info.shape[0] for info in arrays.values() if info.shape)
    if not length_counts:
        return None
    most = max(length_counts, key=lambda length: (length_counts[length], length))
    actions = [info for name, info in arrays.items() if re.search(r"(^|/)actions?(/|$)", name) and info.shape]
    return most - 1 if any(info.shape[0] == most - 1 for info in actions) else most


def _attributes(store: Store, group: str) -> Iterator[str]:
    """Yield the attributes of the file and of each group on the path of ``group``, named as a layout takes them."""
    parts = group.split("/") if group else []
    example = ""
    for path in ["", *("/".join(parts[: depth + 1]) for depth in range(len(parts)))]:
        prefix = "" if path == group else f"/{path}"
        texts = {
            f"{prefix}@{name}": " ".join(str(text_of(value)).split()) for name, value in store.attributes(path).items()
        }
        if texts:
            listed = [f"{name} = {text[:60]}{'...' * (len(text) > 60)}" for name, text in texts.items()]
            yield f"attributes of {path or 'the file'}: {', '.join(listed)}"
            example = max(texts, key=lambda name: len(texts[name]))
    if example:
        yield f'for an instruction from an attribute, add `layout: {{language: {{path: "{example}"}}}}` to the entry'


def _find_misfit(name: str, info: ArrayInfo, num_rows: int, is_encoded: bool) -> str | None:
    """Return why an array is not an array of steps, None if it is one."""
    if not name.isprintable():
        return "its name is not text"
    if not info.shape or info.shape[0] != num_rows:
        return f"{info.shape[0] if info.shape else 1} values, not {num_rows}"
    return f"is {info.dtype}" if info.dtype.kind == "V" and not is_encoded else None
