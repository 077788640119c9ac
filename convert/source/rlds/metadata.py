"""Checks of a TFDS dataset's metadata files before TFDS reads them.

TFDS imports any module that a ``features.json`` names as the class of a feature, and a source may come from anywhere.
So only TFDS's own features are accepted.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from convert.errors import SourceError
from stream.base.reading import read_whole

NAMES = ("dataset_info.json", "features.json")
MAX_BYTES = 64 << 20
_CLASS = re.compile(r"tensorflow_datasets\.core\.features\.[a-z_]+\.[A-Za-z]+")


def read_metadata(folder: Path) -> list[bytes]:
    """Return the contents of ``dataset_info.json`` and ``features.json`` of a folder.

    Raises:
        SourceError: A file cannot be read, or names a class that is not a feature of TFDS.
    """
    contents = []
    for metadata_path in (folder / name for name in NAMES):
        try:
            contents.append(read_whole(metadata_path, MAX_BYTES))
            json.loads(contents[-1], object_hook=_check_class)
        except OSError as error:
            raise SourceError(f"{metadata_path}: cannot be read ({error.strerror or error}); copy it again") from None
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{metadata_path}: not a JSON file ({str(error)[:200]}); copy it again") from None
    return contents


def _check_class(node: dict[str, Any]) -> dict[str, Any]:
    """Raise SourceError if a feature is of a foreign class; "type" is the key of files from before TFDS 4.5."""
    for key in ("pythonClassName", "python_class_name", "type"):
        class_name = node.get(key)
        if isinstance(class_name, str) and (key != "type" or "content" in node) and not _CLASS.fullmatch(class_name):
            raise SourceError(
                f"features.json has a feature of the class {class_name!r:.100}, which is not one of TFDS's; to read it "
                "TFDS would run the code of that module. Do not convert data that you do not trust"
            )
    return node
