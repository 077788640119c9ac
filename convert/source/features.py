"""The feature tree of a TFDS dataset, flattened to the names under which the records store it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from convert.errors import SourceError

STEPS = "steps"


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One leaf of the feature tree.

    path: flattened TFDS name, ``steps/observation/image``; keys of the tree may contain ``/`` and spaces themselves.
    level: whether there is one value a step or one an episode.
    shape: of one value; None where a dimension is not fixed.
    dtype: numpy name, or ``string``.
    encoding: of tensors; ``bytes`` and ``zlib`` store each value as one byte string.
    sequences: the declared length of each ``Sequence`` around the value, outermost first, None where it varies.
    """

    path: str
    kind: Literal["tensor", "image"]
    level: Literal["step", "episode"]
    shape: tuple[int | None, ...]
    dtype: str
    encoding: Literal["none", "bytes", "zlib"] = "none"
    sequences: tuple[int | None, ...] = ()

    @property
    def name(self) -> str:
        """The path below ``steps``, or the whole path of an episode feature: the name of its column."""
        return self.path.removeprefix(STEPS + "/") if self.level == "step" else self.path

    @property
    def size(self) -> int | None:
        """How many numbers one value has, None if that varies."""
        return math.prod(dim for dim in self.shape if dim is not None) if None not in self.shape else None


def flatten_features(tree: Any, *, where: str) -> dict[str, Feature]:
    """Flatten the features of a TFDS builder.

    Args:
        tree: ``builder.info.features``.
        where: the dataset's folder, for messages.

    Returns:
        The leaves by their flattened path, sorted: the order in features.json is not kept by every reader.

    Raises:
        SourceError: no ``steps``, so not an RLDS dataset, or a kind of feature that RLDS datasets do not have.
    """
    if not hasattr(tree, "items") or STEPS not in tree:
        raise SourceError(f"{where}: features.json has no '{STEPS}', so this is not an RLDS dataset")
    leaves = _walk(tree, "", level="episode", sequences=(), where=where)
    return {feature.path: feature for feature in sorted(leaves, key=lambda feature: feature.path)}


def _walk(
    node: Any, path: str, *, level: Literal["step", "episode"], sequences: tuple[int | None, ...], where: str
) -> Iterator[Feature]:
    import tensorflow_datasets as tfds

    if isinstance(node, tfds.features.FeaturesDict):
        for key, child in node.items():
            yield from _walk(child, f"{path}/{key}" if path else key, level=level, sequences=sequences, where=where)
    elif isinstance(node, tfds.features.Dataset | tfds.features.Sequence):
        if path == STEPS:
            yield from _walk(node.feature, path, level="step", sequences=(), where=where)
        else:
            length = getattr(node, "_length", None)
            yield from _walk(node.feature, path, level=level, sequences=(*sequences, length), where=where)
    elif isinstance(node, tfds.features.Image):
        info = node.get_tensor_info()
        yield Feature(
            path=path,
            kind="image",
            level=level,
            shape=tuple(info.shape),
            dtype=np.dtype(info.np_dtype).name,
            sequences=sequences,
        )
    elif isinstance(node, tfds.features.Tensor):
        info = node.get_tensor_info()
        dtype = np.dtype(info.np_dtype)
        encoding = getattr(node, "_encoding", None)
        yield Feature(
            path=path,
            kind="tensor",
            level=level,
            shape=tuple(info.shape),
            dtype="string" if dtype.kind in "OSU" else dtype.name,
            encoding=encoding.value if encoding is not None else "none",
            sequences=sequences,
        )
    else:
        raise SourceError(f"{where}: feature {path} is a {type(node).__name__}, which RLDS datasets do not have")
