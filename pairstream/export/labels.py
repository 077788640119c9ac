"""Labels of the steps as features of a LeRobot dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from pairstream.export.lerobot import COUNTERS, FRAMES_MASK, Label
from stream.base.errors import ArgumentError
from stream.format.index import SplitIndex
from stream.format.table import Column

_TAKEN = (*COUNTERS, FRAMES_MASK, "next.done", "action", "observation.state", "task")


def label_features(indexes: Sequence[SplitIndex]) -> dict[str, Label]:
    """Return the labels of some splits by feature, which is the column's name with a dot for each slash.

    Raises:
        ArgumentError: A label is not in all of the splits, or LeRobot uses its name.
    """
    found: dict[str, Label] = {}
    labelled = [index.labels for index in indexes]
    for name in dict.fromkeys(name for own in labelled for name in own):
        columns = [own[name] for own in labelled if name in own]
        feature = _feature(name)
        if len(columns) < len(indexes) or not all(column.is_like(columns[0]) for column in columns):
            raise ArgumentError(
                f"label {name!r} is not in all of the splits {', '.join(index.split for index in indexes)}, or of "
                "several types; export one split at a time"
            )
        label = Label(_dtype(columns[0]), columns[0].width or 1, any(each.validity is not None for each in columns))
        names = [feature, f"{feature}_mask"] if label.has_missing else [feature]
        masks = [f"{each}_mask" for each, other in found.items() if other.has_missing]
        if taken := [
            each for each in names if each in (*_TAKEN, *found, *masks) or each.startswith("observation.images.")
        ]:
            raise ArgumentError(f"label {name!r}: a feature {taken[0]!r} exists; attach the label by another name")
        found[feature] = label
    return found


def label_values(table: pa.Table, labels: Mapping[str, Label]) -> dict[str, np.ndarray]:
    """Return the labels of an episode and their masks, by feature; what a step lacks is as it is stored: NaN, 0, "".

    Args:
        table: Steps of the episode.
        labels: Labels by feature.
    """
    found: dict[str, np.ndarray] = {}
    columns = {_feature(name): table.column(name) for name in table.column_names}
    for feature, label in labels.items():
        column = columns[feature].combine_chunks()
        has = np.asarray(column.is_valid())
        if label.dtype == "string":
            found[feature] = np.array([text or "" for text in column.to_pylist()], object)
        elif label.size > 1 or pa.types.is_fixed_size_list(column.type):
            inside = column.values.slice(column.offset * label.size, len(column) * label.size)
            found[feature] = inside.to_numpy(zero_copy_only=False).reshape(len(column), -1)
        else:
            numbers = column.drop_null().to_numpy(zero_copy_only=False)
            values = np.full(len(column), np.nan if numbers.dtype.kind == "f" else 0, numbers.dtype)
            values[has] = numbers
            found[feature] = values
        if label.has_missing:
            found[f"{feature}_mask"] = has
    return found


def _feature(name: str) -> str:
    # LeRobot refuses a slash in a name.
    return name.replace("/", ".")


def _dtype(column: Column) -> str:
    if column.texts is not None:
        return "string"
    return "bool" if column.bits else str(np.dtype(column.dtype))
