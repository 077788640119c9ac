"""Features of a source: name, level, shape and dtype, and how those of several episodes become those of a dataset."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

STEPS = "steps"


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature.

    Attributes:
        path: ``steps/`` and the name for a feature of steps, the name alone for one of the episode. In TFDS the names
            of its tree with ``/`` between; keys may contain ``/`` and spaces themselves.
        level: One value per step, or one per episode.
        shape: Shape of one value; None where a dimension is not fixed.
        dtype: Name of numpy's, or ``string``. It is the type of the column.
        encoding: Encoding of tensors; ``bytes`` and ``zlib`` store each value as one byte string.
        varies: True if episodes differ in its shape or type: it is a column only where the registry entry takes it.
        sequences: Declared length of each ``Sequence`` around the value, outermost first, None where it varies.
    """

    path: str
    kind: Literal["tensor", "image"]
    level: Literal["step", "episode"]
    shape: tuple[int | None, ...]
    dtype: str
    encoding: Literal["none", "bytes", "zlib"] = "none"
    sequences: tuple[int | None, ...] = ()
    varies: bool = False

    @property
    def name(self) -> str:
        """The path below ``steps``, or the whole path of an episode feature: the name of its column."""
        return self.path.removeprefix(STEPS + "/") if self.level == "step" else self.path

    @property
    def size(self) -> int | None:
        """Count of numbers in one value, None if it varies."""
        return math.prod(dim for dim in self.shape if dim is not None) if None not in self.shape else None


SUCCESS = Feature(path="success", kind="tensor", level="episode", shape=(), dtype="bool")
"""The column of ``episodes``; null where nobody knows."""


def merge_features(episodes: Iterable[Mapping[str, Feature]]) -> tuple[dict[str, Feature], list[str]]:
    """Return the features that any of some episodes has, with the shape that most have, and remarks.

    Numbers get a type that holds those of all; pictures of several sizes get no size. The remarks name features that
    differ in another way, and features without values.
    """
    by_path: dict[str, list[Feature]] = {}
    for features in episodes:
        for path, feature in features.items():
            by_path.setdefault(path, []).append(feature)
    merged = {path: _merge(features) for path, features in by_path.items()}
    varying = [_forms(by_path[path]) for path, feature in merged.items() if feature.varies]
    empty = [feature.name for feature in merged.values() if feature.size == 0]
    remarks = []
    if varying:
        remarks.append(f"differ between episodes, so left out unless the entry names them: {'; '.join(varying)}")
    if empty:
        remarks.append(f"without values, so left out: {', '.join(empty)}")
    return merged, remarks


def _merge(features: Sequence[Feature]) -> Feature:
    """Return one feature of those of several episodes."""
    forms = Counter(_form(feature) for feature in features)
    common = max(forms, key=forms.__getitem__)
    alike = [feature for feature in features if _form(feature) == common]
    first = replace(alike[0], varies=len(forms) > 1)
    if first.kind == "image":
        sizes = zip(*(feature.shape for feature in alike), strict=True)
        return replace(first, shape=tuple(size[0] if len(set(size)) == 1 else None for size in sizes))
    if first.dtype == "string":
        return first
    return replace(first, dtype=np.result_type(*(feature.dtype for feature in alike)).name)


def _form(feature: Feature) -> tuple[Any, ...]:
    if feature.kind == "image":
        return feature.kind, len(feature.shape), feature.dtype
    return feature.kind, feature.shape, feature.dtype == "string"


def _forms(features: Sequence[Feature]) -> str:
    forms = list(dict.fromkeys(f"{feature.dtype} {feature.shape}" for feature in features))
    return f"{features[0].name} is {', '.join(forms[:3])}{' ...' if len(forms) > 3 else ''}"
