"""Features of a source: name, level, shape and dtype, and the merge of the features of several episodes."""

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
        path: ``steps/`` and the name for a feature of steps, only the name for one of the episode. In TFDS the names
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
        dimensions = [dimension for dimension in self.shape if dimension is not None]
        return math.prod(dimensions) if len(dimensions) == len(self.shape) else None


SUCCESS = Feature(path="success", kind="tensor", level="episode", shape=(), dtype="bool")
"""The column of ``episodes``; null if unknown."""


def merge_features(episodes: Iterable[Mapping[str, Feature]]) -> tuple[dict[str, Feature], list[str]]:
    """Return the features that any episode has, with the most common shape, and remarks on those left out.

    Numbers get a type that holds those of all; pictures of several sizes get no size.
    """
    by_path: dict[str, list[Feature]] = {}
    for episode_features in episodes:
        for feature_path, feature in episode_features.items():
            by_path.setdefault(feature_path, []).append(feature)
    merged = {feature_path: _merge(same_path) for feature_path, same_path in by_path.items()}
    remarks = []
    if varying_forms := [_forms(by_path[path]) for path, feature in merged.items() if feature.varies]:
        remarks.append(f"differ between episodes, so left out unless the entry names them: {'; '.join(varying_forms)}")
    if empty_names := [feature.name for feature in merged.values() if feature.size == 0]:
        remarks.append(f"without values, so left out: {', '.join(empty_names)}")
    return merged, remarks


def _merge(features: Sequence[Feature]) -> Feature:
    form_counts = Counter(_form(feature) for feature in features)
    common_form = max(form_counts, key=form_counts.__getitem__)
    same_form = [feature for feature in features if _form(feature) == common_form]
    merged = replace(same_form[0], varies=len(form_counts) > 1)
    if merged.kind == "image":
        sides = zip(*(feature.shape for feature in same_form), strict=True)
        return replace(merged, shape=tuple(side[0] if len(set(side)) == 1 else None for side in sides))
    if merged.dtype == "string":
        return merged
    return replace(merged, dtype=np.result_type(*(feature.dtype for feature in same_form)).name)


def _form(feature: Feature) -> tuple[Any, ...]:
    if feature.kind == "image":
        return feature.kind, len(feature.shape), feature.dtype
    return feature.kind, feature.shape, feature.dtype == "string"


def _forms(features: Sequence[Feature]) -> str:
    form_texts = list(dict.fromkeys(f"{feature.dtype} {feature.shape}" for feature in features))
    return f"{features[0].name} is {', '.join(form_texts[:3])}{' ...' if len(form_texts) > 3 else ''}"
