"""The kinds of sources: ``KIND:PLACE`` names a dataset, and each kind has a function that finds it.

Kinds of other packages are entry points of the group ``pairstream.sources``: the name of the kind, and a function
``find(place, roots, layout)`` that returns a ``convert.source.protocol.Source`` with an ``entry``.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from convert.errors import ConfigError, UsageError
from convert.source.describe import valid_name
from convert.source.lerobot.hub import PLACE
from convert.source.places import JOIN, walk
from convert.source.rosbag.names import METADATA, PATTERNS
from stream.base.configs import CONFIGS
from stream.base.errors import closest
from stream.base.extras import missing
from stream.format.names import MANIFEST_NAME
from stream.storage.remote import is_remote

if TYPE_CHECKING:
    from convert.source.protocol import Source

Find = Callable[[str, Sequence[str], Mapping[str, Any]], "Source"]
"""Finds a dataset: its place, the folders of ``--source``, and the mapping ``layout`` of its entry in the registry."""

KINDS = {
    "rlds": "convert.source.rlds.dataset:find",
    "lerobot": "convert.source.lerobot.dataset:find",
    "python": "convert.source.python.dataset:find",
    "arrays": "convert.source.arrays.dataset:find",
    "rosbag": "convert.source.rosbag.dataset:find",
    "root": "convert.source.root.dataset:find",
}
"""Function of each kind; the presets of ``arrays`` are kinds too."""
_EXTRAS = {"rosbags": "rosbag"}
"""Extra of each library that the module of a kind imports."""
_GROUP = "pairstream.sources"
_TEXT = re.compile(r"([a-z][a-z0-9_]*):(?!/{2})(.*)", re.DOTALL)
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_ENDINGS = re.compile(r"(\.(py|hdf5|h5|zarr|zip|bag|mcap|db3|tar|gz))+$")
_FORMATS = {
    **dict.fromkeys(("hdf5", "h5", "hdf", "zarr"), "arrays"),
    **dict.fromkeys(("mcap", "bag", "rosbag2", "ros", "ros2", "db3"), "rosbag"),
    **dict.fromkeys(("tfds", "tfrecord", "oxe"), "rlds"),
    **dict.fromkeys(("hub", "hf", "huggingface", "parquet"), "lerobot"),
    **dict.fromkeys(("py", "npz", "function"), "python"),
}
"""Kind of a format or a library by what people call it."""
_SUFFIXES: Mapping[str, str] = {".py": "python", ".bag": "rosbag", ".mcap": "rosbag"}
"""Kind of a file by the end of its name."""


def is_source(text: str) -> bool:
    """Return whether a name in ``--datasets`` names a source: ``KIND:PLACE``, or the path of a file or folder.

    >>> is_source("lerobot:lerobot/pusht"), is_source("/data/mine"), is_source("bridge")
    (True, True, False)
    """
    return bool(_TEXT.match(text) or _ENDINGS.search(text)) or "/" in text or text.startswith(".")


def split_source(text: str) -> tuple[str, str]:
    """Return the kind and the place of a source; the kind of a path is told by what is there.

    Raises:
        ConfigError: No such kind, no place, or a path of no known kind; says what it looks like.
    """
    if match := _TEXT.match(text):
        kind, place = match[1], match[2].strip()
    else:
        kind, place = recognise(text), text if is_remote(text) else os.path.abspath(text)
    if kind not in kinds():
        near = f"did you mean {_FORMATS[kind]!r}?" if kind in _FORMATS else closest(kind, kinds(), noun="kinds")
        raise ConfigError(f"{text!r:.200}: no kind of source {kind!r}; {near}")
    if not place.rstrip("/"):
        raise ConfigError(f"{text!r:.80} names no dataset; write {kind}:NAME or {kind}:/PATH")
    return kind, place


def dataset_name(kind: str, place: str) -> str:
    """Return the name of a dataset: ``ORG_NAME`` of LeRobot, or of a path its last part without version and ending.

    Of several converted roots, it is the name of the first.

    >>> dataset_name("lerobot", "lerobot/pusht@v3.0"), dataset_name("rlds", "/data/my_robot/1.0.0")
    ('lerobot_pusht', 'my_robot')
    >>> dataset_name("root", "/monday/pusht+root:/tuesday/pusht")
    'pusht'
    >>> dataset_name("python", "./readers/my_arm.py:episodes")
    'my_arm'
    """
    path = place.rpartition(":")[0] if kind == "python" else place.split(JOIN)[0]
    on_hub = PLACE.fullmatch(place.rstrip("/")) if kind == "lerobot" else None
    if on_hub:
        path = on_hub["name"]
    parts = [part for part in path.rstrip("/").split("/") if part]
    if len(parts) > 1 and _VERSION.fullmatch(parts[-1]):
        parts.pop()
    return valid_name(_ENDINGS.sub("", "_".join(parts if on_hub else parts[-1:])), default="dataset")


def find_source(text: str, roots: Sequence[str], layout: Mapping[str, Any]) -> Source:
    """Find a dataset.

    Args:
        text: ``KIND:PLACE``.
        roots: Folders of ``--source``.
        layout: How its files are to be read, for kinds that are told so.

    Raises:
        ConfigError, UsageError: See ``split_source``, and the function of the kind.
    """
    kind, place = split_source(text)
    return kinds()[kind](place, roots, layout)


def suggest_layout(text: str, roots: Sequence[str]) -> Mapping[str, Any]:
    """Return a layout for a dataset of a kind that is told how its files are laid out, empty for the other kinds.

    Such a kind has a function ``suggest_layout(place, roots)`` beside its ``find``.
    """
    kind, place = split_source(text)
    if kind in _presets():
        return {}
    module = _import(_places()[kind])
    found: Mapping[str, Any] = module.suggest_layout(place, roots) if hasattr(module, "suggest_layout") else {}
    return found


def recognise(path: str) -> str:
    """Return the kind of what is at a path; raises ConfigError that says what it looks like."""
    place = Path(path)
    if not is_remote(path) and not place.exists():
        raise ConfigError(f"{path}: no such file or folder; a dataset is a name, KIND:PLACE or a path")
    if kind := _SUFFIXES.get(place.suffix):
        return kind
    if (place / "meta" / "info.json").is_file():
        return "lerobot"
    if any(any(place.glob(f"{above}{MANIFEST_NAME}")) for above in ("", "*/", "*/*/")):
        return "root"
    if (place / "dataset_info.json").is_file() or any(place.glob("*/dataset_info.json")):
        return "rlds"
    if (place / METADATA).is_file() or (place.is_dir() and any(walk(place, PATTERNS))):
        return "rosbag"
    from convert.source.arrays.preset import recognise_arrays

    if found := recognise_arrays(place):
        return found
    known = ", ".join(sorted(kinds()))
    from convert.source.picture_names import describe_parquet

    if names := describe_parquet(place) if place.is_dir() else "":
        raise ConfigError(f"{path}: its kind cannot be told{names}")
    raise ConfigError(
        f"{path}: is no dataset whose kind its content tells; write KIND:{path} with one of {known}, or read files of "
        f"another format with a function of your own: python:FILE.py:FUNCTION --source {path} (docs/own-data.md)"
    )


@cache
def kinds() -> dict[str, Find]:
    """Return the function of each kind, ours and those of other packages."""
    found: dict[str, Find] = {name: _lazily(place) for name, place in _places().items()}
    return found | {name: partial(_lazily(KINDS["arrays"]), preset=name) for name in _presets()}


def _places() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=_GROUP)} | KINDS


def _presets() -> list[str]:
    return sorted(path.stem for path in CONFIGS.glob("layouts/*.yaml"))


def _lazily(place: str) -> Callable[..., Source]:
    """Return a function that is imported when it is called, because some libraries take seconds."""

    def find(path: str, roots: Sequence[str], layout: Mapping[str, Any], **more: Any) -> Source:
        function: Callable[..., Source] | None = getattr(_import(place), place.partition(":")[2], None)
        if function is None:
            raise UsageError(f"{place}: the module has no such function")
        return function(path, roots, layout, **more)

    return find


def _import(place: str) -> ModuleType:
    """Return the module of a kind's function; raises UsageError that names what is missing."""
    try:
        return importlib.import_module(place.partition(":")[0])
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        extra = _EXTRAS.get(library)
        raise UsageError(missing(library, extra, by=f"{extra}:") if extra else f"{place}: {error}") from error
