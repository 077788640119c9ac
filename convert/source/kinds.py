"""The kinds of sources: ``KIND:PLACE`` names a dataset, and each kind has a function that finds it.

Kinds of other packages are entry points of the group ``pairstream.sources``: the name of the kind, and a function
``find(location, roots, layout)`` that returns a ``convert.source.protocol.Source`` with an ``entry``.
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
from convert.source.arrays.preset import preset_names, recognise_arrays
from convert.source.describe import valid_name
from convert.source.lerobot.files import HUB_DATASET
from convert.source.locations import JOIN, walk
from convert.source.rosbag.layout import METADATA, PATTERNS
from stream.base.errors import closest
from stream.base.extras import missing
from stream.format.names import MANIFEST_NAME
from stream.storage.remote import is_remote

if TYPE_CHECKING:
    from convert.source.protocol import Source

Finder = Callable[[str, Sequence[str], Mapping[str, Any]], "Source"]
"""Function that finds a dataset: location, folders of ``--source``, mapping ``layout`` of its registry entry."""

KINDS = {
    "rlds": "convert.source.rlds.dataset:find",
    "lerobot": "convert.source.lerobot.dataset:find",
    "python": "convert.source.python.dataset:find",
    "arrays": "convert.source.arrays.dataset:find",
    "rosbag": "convert.source.rosbag.dataset:find",
    "root": "convert.source.root.dataset:find",
}
"""Function of each kind; the presets of ``arrays`` are kinds too."""
_ENTRY_POINTS = "pairstream.sources"
_KIND_AND_PLACE = re.compile(r"([a-z][a-z0-9_]*):(?!/{2})(.*)", re.DOTALL)
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_ENDINGS = re.compile(r"(\.(py|hdf5|h5|zarr|zip|bag|mcap|db3|tar|gz))+$")
_FORMATS = {
    **dict.fromkeys(("hdf5", "h5", "hdf", "zarr"), "arrays"),
    **dict.fromkeys(("mcap", "bag", "rosbag2", "ros", "ros2", "db3"), "rosbag"),
    **dict.fromkeys(("tfds", "tfrecord", "oxe"), "rlds"),
    **dict.fromkeys(("hub", "hf", "huggingface", "parquet"), "lerobot"),
    **dict.fromkeys(("py", "npz", "function"), "python"),
}
"""Kind of source by common names of formats and libraries."""
_SUFFIXES = {".py": "python", ".bag": "rosbag", ".mcap": "rosbag"}
"""Kind of a file by the end of its name."""


def is_source(dataset: str) -> bool:
    """Return whether a name in ``--datasets`` names a source: ``KIND:PLACE``, or the path of a file or folder.

    >>> is_source("lerobot:lerobot/pusht"), is_source("/data/mine"), is_source("bridge")
    (True, True, False)
    """
    return bool(_KIND_AND_PLACE.match(dataset) or _ENDINGS.search(dataset)) or "/" in dataset or dataset.startswith(".")


def split_source(dataset: str) -> tuple[str, str]:
    """Return the kind and the location of a source; the content of a path determines its kind.

    Raises:
        ConfigError: No such kind, no location, or a path of unknown kind; says what it looks like.
    """
    if match := _KIND_AND_PLACE.match(dataset):
        kind, location = match[1], match[2].strip()
    else:
        kind, location = recognise(dataset), dataset if is_remote(dataset) else os.path.abspath(dataset)
    if kind not in kinds():
        suggestion = f"did you mean {_FORMATS[kind]!r}?" if kind in _FORMATS else closest(kind, kinds(), noun="kinds")
        raise ConfigError(f"{dataset!r:.200}: no kind of source {kind!r}; {suggestion}")
    if not location.rstrip("/"):
        raise ConfigError(f"{dataset!r:.80} names no dataset; write {kind}:NAME or {kind}:/PATH")
    return kind, location


def dataset_name(kind: str, location: str) -> str:
    """Return the name of a dataset: ``ORG_NAME`` for LeRobot, else the last part of its path, without version.

    Several converted roots have the name of the first.

    >>> dataset_name("lerobot", "lerobot/pusht@v3.0"), dataset_name("rlds", "/data/my_robot/1.0.0")
    ('lerobot_pusht', 'my_robot')
    >>> dataset_name("root", "/monday/pusht+root:/tuesday/pusht")
    'pusht'
    >>> dataset_name("python", "./readers/my_arm.py:episodes")
    'my_arm'
    """
    source_path = location.rpartition(":")[0] if kind == "python" else location.split(JOIN)[0]
    hub_match = HUB_DATASET.fullmatch(location.rstrip("/")) if kind == "lerobot" else None
    if hub_match:
        source_path = hub_match["name"]
    path_parts = [path_part for path_part in source_path.rstrip("/").split("/") if path_part]
    if len(path_parts) > 1 and _VERSION.fullmatch(path_parts[-1]):
        path_parts.pop()
    return valid_name(_ENDINGS.sub("", "_".join(path_parts if hub_match else path_parts[-1:])), default="dataset")


def find_source(dataset: str, roots: Sequence[str], layout: Mapping[str, Any]) -> Source:
    """Find the dataset ``KIND:PLACE``, below the folders of ``--source`` unless it is a path.

    ``layout`` says how its files are to be read, for kinds that take a layout.

    Raises:
        ConfigError, UsageError: See ``split_source``, and the function of the kind.
    """
    kind, location = split_source(dataset)
    return kinds()[kind](location, roots, layout)


def suggest_layout(dataset: str, roots: Sequence[str]) -> Mapping[str, Any]:
    """Return a layout for a dataset, empty for kinds that take no layout.

    The module of a kind that takes one has a function ``suggest_layout(location, roots)``.
    """
    kind, location = split_source(dataset)
    function_path = _function_paths().get(kind)
    suggest = getattr(_import(function_path), "suggest_layout", None) if function_path else None
    suggested_layout: Mapping[str, Any] = suggest(location, roots) if suggest else {}
    return suggested_layout


def recognise(dataset_path: str) -> str:
    """Return the kind of the dataset at a path; raises ConfigError that says what the path looks like."""
    folder = Path(dataset_path)
    if not is_remote(dataset_path) and not folder.exists():
        raise ConfigError(f"{dataset_path}: no such file or folder; a dataset is a name, KIND:PLACE or a path")
    if kind_by_suffix := _SUFFIXES.get(folder.suffix):
        return kind_by_suffix
    if (folder / "meta" / "info.json").is_file():
        return "lerobot"
    if any(any(folder.glob(f"{parents}{MANIFEST_NAME}")) for parents in ("", "*/", "*/*/")):
        return "root"
    if (folder / "dataset_info.json").is_file() or any(folder.glob("*/dataset_info.json")):
        return "rlds"
    if (folder / METADATA).is_file() or (folder.is_dir() and any(walk(folder, PATTERNS))):
        return "rosbag"
    if arrays_kind := recognise_arrays(folder):
        return arrays_kind
    # Only here, because it imports pyarrow.
    from convert.source.picture_names import describe_parquet

    if parquet_note := describe_parquet(folder) if folder.is_dir() else "":
        raise ConfigError(f"{dataset_path}: its kind cannot be determined{parquet_note}")
    advice = f"write KIND:{dataset_path} with one of {', '.join(sorted(kinds()))}, or read files of another format"
    example = f"python:FILE.py:FUNCTION --source {dataset_path} (docs/own-data.md)"
    fault = "its content does not show the kind of a dataset"
    raise ConfigError(f"{dataset_path}: {fault}; {advice} with your own function: {example}")


@cache
def kinds() -> dict[str, Finder]:
    """Return the function of each kind, built in or from another package."""
    finders: dict[str, Finder] = {kind_name: _lazily(path) for kind_name, path in _function_paths().items()}
    return finders | {kind_name: partial(_lazily(KINDS["arrays"]), preset=kind_name) for kind_name in preset_names()}


def _function_paths() -> dict[str, str]:
    return {entry_point.name: entry_point.value for entry_point in entry_points(group=_ENTRY_POINTS)} | KINDS


def _lazily(function_path: str) -> Callable[..., Source]:
    """Return a function that imports its module when called, because some libraries take seconds to import."""

    def find(location: str, roots: Sequence[str], layout: Mapping[str, Any], **options: Any) -> Source:
        function: Callable[..., Source] | None = getattr(_import(function_path), function_path.partition(":")[2], None)
        if function is None:
            raise UsageError(f"{function_path}: the module has no such function")
        return function(location, roots, layout, **options)

    return find


def _import(function_path: str) -> ModuleType:
    """Return the module of a kind's function; raises UsageError that names what is missing."""
    try:
        return importlib.import_module(function_path.partition(":")[0])
    except ImportError as error:
        is_rosbags = (error.name or "").partition(".")[0] == "rosbags"
        message = missing("rosbags", "rosbag", by="rosbag:") if is_rosbags else f"{function_path}: {error}"
        raise UsageError(message) from error
