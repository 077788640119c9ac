"""Metadata of a TFDS dataset: checks of its files before TFDS reads them, and its flattened feature tree.

TFDS imports any module that a ``features.json`` names as the class of a feature, and a source may come from anywhere.
So only TFDS's own features are accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from convert.errors import SourceError
from convert.source.features import STEPS, Feature
from stream.base.reading import read_limited

NAMES = ("dataset_info.json", "features.json")
MAX_BYTES = 64 << 20
_CLASS = re.compile(r"tensorflow_datasets\.core\.features\.[a-z_]+\.[A-Za-z]+")


def read_metadata(folder: Path) -> list[bytes]:
    """Return the contents of the files ``NAMES``; raises SourceError if one cannot be read or names a foreign class."""
    contents = []
    for metadata_path in (folder / name for name in NAMES):
        try:
            contents.append(read_limited(metadata_path, MAX_BYTES))
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
            danger = "to read it TFDS would run the code of that module. Do not convert data that you do not trust"
            fault = f"has a feature of the class {class_name!r:.100}, which is not one of TFDS's"
            raise SourceError(f"features.json {fault}; {danger}")
    return node


def flatten_features(tree: Any, *, context: str) -> dict[str, Feature]:
    """Return the leaves of ``builder.info.features`` of TFDS by their flattened path, sorted.

    Raises:
        SourceError: The tree has no ``steps``, so the dataset is not RLDS, or a kind of feature that RLDS lacks.
    """
    if not hasattr(tree, "items") or STEPS not in tree:
        raise SourceError(f"{context}: features.json has no '{STEPS}', so this is not an RLDS dataset")
    leaves = _walk(tree, "", (), context)
    return {feature.path: feature for feature in sorted(leaves, key=lambda feature: feature.path)}


def _walk(node: Any, path: str, sequences: tuple[int | None, ...], context: str) -> Iterator[Feature]:
    import tensorflow_datasets as tfds

    if isinstance(node, tfds.features.FeaturesDict):
        for child_name, child in node.items():
            yield from _walk(child, f"{path}/{child_name}" if path else child_name, sequences, context)
    elif isinstance(node, tfds.features.Dataset | tfds.features.Sequence):
        inner_sequences = () if path == STEPS else (*sequences, getattr(node, "_length", None))
        yield from _walk(node.feature, path, inner_sequences, context)
    elif isinstance(node, tfds.features.Image | tfds.features.Tensor):
        tensor_info = node.get_tensor_info()
        dtype, encoding = np.dtype(tensor_info.np_dtype), getattr(node, "_encoding", None)
        if dtype == np.float64 and (encoding is None or encoding.value == "none"):
            # A record holds floats in 32 bits, unless they are encoded.
            dtype = np.dtype(np.float32)
        yield Feature(
            path=path,
            kind="image" if isinstance(node, tfds.features.Image) else "tensor",
            level="step" if path.startswith(f"{STEPS}/") else "episode",
            shape=tuple(tensor_info.shape),
            dtype="string" if dtype.kind in "OSU" else dtype.name,
            encoding=encoding.value if encoding is not None else "none",
            sequences=sequences,
        )
    else:
        raise SourceError(f"{context}: feature {path} is a {type(node).__name__}, which RLDS datasets do not have")
