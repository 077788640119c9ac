"""Labels of the steps as features of a LeRobot dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pairstream.export.lerobot import COUNTERS, FRAMES_MASK, Label
from stream.base.errors import ArgumentError
from stream.format.index import SplitIndex
from stream.format.table import Column

_RESERVED = (*COUNTERS, FRAMES_MASK, "next.done", "action", "observation.state", "task")


def label_features(indexes: Sequence[SplitIndex]) -> dict[str, Label]:
    """Return the labels of some splits by feature, which is the column's name with a dot for each slash.

    Raises:
        ArgumentError: A label is not in all of the splits, or LeRobot uses its name.
    """
    features: dict[str, Label] = {}
    existing = set(_RESERVED)
    for label_name in dict.fromkeys(label_name for index in indexes for label_name in index.labels):
        columns = [index.labels[label_name] for index in indexes if label_name in index.labels]
        feature = _feature(label_name)
        if len(columns) < len(indexes) or not all(column.is_like(columns[0]) for column in columns):
            raise ArgumentError(
                f"label {label_name!r} is not in all of the splits {', '.join(index.split for index in indexes)}, or "
                "of several types; export one split at a time"
            )
        has_missing = any(column.validity is not None for column in columns)
        for added in (feature, f"{feature}_mask") if has_missing else (feature,):
            if added in existing or added.startswith("observation.images."):
                raise ArgumentError(
                    f"label {label_name!r}: a feature {added!r} exists; attach the label by another name"
                )
            existing.add(added)
        features[feature] = Label(_dtype(columns[0]), columns[0].width or 1, has_missing)
    return features


def label_values(index: SplitIndex, rows: np.ndarray, labels: Mapping[str, Label]) -> dict[str, np.ndarray]:
    """Return the labels of some rows of ``steps`` and their masks, by feature; missing values are NaN, 0 or ""."""
    arrays: dict[str, np.ndarray] = {}
    for label_name, column in index.labels.items():
        feature = _feature(label_name)
        if column.texts is not None:
            arrays[feature] = np.array(index.steps.take_texts(label_name, rows), object)
        else:
            arrays[feature] = index.steps.take(label_name, rows).astype(labels[feature].dtype)
        if labels[feature].has_missing:
            is_valid = index.steps.valid(label_name, rows)
            arrays[f"{feature}_mask"] = np.ones(len(rows), bool) if is_valid is None else is_valid
    return arrays


def _feature(column_name: str) -> str:
    # LeRobot refuses a slash in a name.
    return column_name.replace("/", ".")


def _dtype(column: Column) -> str:
    if column.texts is not None:
        return "string"
    return "bool" if column.bits else str(np.dtype(column.dtype))
