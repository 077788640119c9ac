"""The metadata files of a TFDS dataset, looked at before TFDS gets to see them.

TFDS imports whatever module a ``features.json`` names as the class of a feature, and opens whatever path the name and
the template in ``dataset_info.json`` make. A source may come from anywhere, so only TFDS's own features are let
through, and only files of the dataset's own folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from etils import epath

from convert.errors import SourceError

NAMES = ("dataset_info.json", "features.json")
_MAX_BYTES = 64 << 20
_CLASS = re.compile(r"tensorflow_datasets\.core\.features\.[a-z_]+\.[A-Za-z]+")
_SPLIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")


def check_metadata(folder: epath.Path) -> None:
    """Check ``dataset_info.json`` and ``features.json`` of a folder.

    Raises:
        SourceError: one cannot be read, names a class that is not a feature of TFDS, or a split whose name cannot
            be that of a folder.
    """
    info, features = (_read(folder / name) for name in NAMES)
    for name in _classes(features):
        if not _CLASS.fullmatch(name):
            raise SourceError(
                f"{folder / NAMES[1]}: a feature is of the class {name!r:.100}, which is not one of TFDS's; to read "
                "it, TFDS would run the code of that module. Do not convert what you do not trust"
            )
    splits = info.get("splits") if isinstance(info, dict) else None
    for split in splits if isinstance(splits, list) else ():
        called = split.get("name") if isinstance(split, dict) else None
        if not isinstance(called, str) or not _SPLIT.fullmatch(called):
            raise SourceError(f"{folder / NAMES[0]}: a split is named {called!r:.100}, which cannot be a folder's name")


def check_inside(folder: str, path: epath.Path) -> None:
    """Raise SourceError unless a shard file lies in the dataset's own folder."""
    if str(path.parent) != str(epath.Path(folder)) or path.name in ("", ".", ".."):
        raise SourceError(f"{folder}: dataset_info.json names the file {str(path)!r:.200}, which is not in this folder")


def _read(path: epath.Path) -> Any:
    try:
        if path.stat().length > _MAX_BYTES:
            raise SourceError(f"{path}: larger than {_MAX_BYTES:,} bytes, so not metadata of TFDS; copy it again")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror or error}); copy it again") from None
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not a JSON file ({str(error)[:200]}); copy it again") from None


def _classes(content: Any) -> Iterator[str]:
    """The Python classes that a features.json names, of today's form and of that before TFDS 4.5."""
    waiting = [content]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            for key in ("pythonClassName", "python_class_name", "type"):
                if isinstance(node.get(key), str) and (key != "type" or "content" in node):
                    yield node[key]
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
