"""The feature tree of a TFDS dataset, flattened to the names under which the records store it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from convert.errors import SourceError
from convert.source.features import STEPS, Feature


def flatten_features(tree: Any, *, context: str) -> dict[str, Feature]:
    """Flatten ``builder.info.features`` of TFDS.

    Returns:
        The leaves by their flattened path, sorted: not every reader keeps the order of features.json.

    Raises:
        SourceError: The tree has no ``steps``, so the dataset is not RLDS, or a kind of feature that RLDS lacks.
    """
    if not hasattr(tree, "items") or STEPS not in tree:
        raise SourceError(f"{context}: features.json has no '{STEPS}', so this is not an RLDS dataset")
    leaves = _walk(tree, "", (), context)
    return {feature.path: feature for feature in sorted(leaves, key=lambda feature: feature.path)}


def _walk(node: Any, path: str, sequences: tuple[int | None, ...], context: str) -> Iterator[Feature]:
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
