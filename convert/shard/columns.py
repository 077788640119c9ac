"""Columns of episodes joined into columns of Arrow."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from convert.source.episode import Column
from convert.source.features import Feature
from stream.format.schema import TEXT


def arrow_field(feature: Feature) -> pa.Field:
    """Return the Arrow field of a feature.

    Scalars are plain columns, values with a shape are fixed-size lists (row-major; the shape is in the metadata),
    sequences are lists around that. Texts of steps are dictionary-encoded, because they mostly repeat.
    """
    arrow_type = pa.large_string() if feature.dtype == "string" else pa.from_numpy_dtype(feature.dtype)
    if feature.shape:
        arrow_type = pa.list_(arrow_type, feature.size or 0)
    for _ in feature.sequences:
        arrow_type = pa.large_list(arrow_type)
    if arrow_type == pa.large_string() and feature.level == "step":
        arrow_type = TEXT
    metadata = {"dtype": feature.dtype, "shape": json.dumps(list(feature.shape))}
    return pa.field(feature.name, arrow_type, metadata=metadata)


def arrow_array(feature: Feature, columns: Sequence[Column]) -> pa.Array:
    """Join the columns of one feature of several episodes, in order; rows that lack it are null."""
    value_size = feature.size or 0
    null_mask = None
    if any(episode_column.values is None or episode_column.valid is not None for episode_column in columns):
        null_mask = np.concatenate([_null_rows(episode_column) for episode_column in columns], dtype=bool)
    nested = bool(feature.sequences or feature.shape)
    filler_counts = [0 if feature.sequences else episode_column.rows * value_size for episode_column in columns]
    if feature.dtype == "string":
        all_texts: list[str | None] = []
        for episode_column, filler_count in zip(columns, filler_counts, strict=True):
            all_texts += [None] * filler_count if episode_column.values is None else list(episode_column.values)
        arrow_values: pa.Array = pa.array(all_texts, pa.large_string(), mask=None if nested else null_mask)
        if arrow_field(feature).type == TEXT:
            return arrow_values.dictionary_encode()
    else:
        numpy_dtype = np.dtype(feature.dtype)
        value_blocks = [np.zeros(0, numpy_dtype)]
        for episode_column, filler_count in zip(columns, filler_counts, strict=True):
            value_blocks.append(
                np.zeros(filler_count, numpy_dtype)
                if episode_column.values is None
                else np.asarray(episode_column.values, numpy_dtype)
            )
        arrow_values = pa.array(np.concatenate(value_blocks), mask=None if nested else null_mask)
    null_array = None if null_mask is None else pa.array(null_mask)
    if feature.shape:
        arrow_values = pa.FixedSizeListArray.from_arrays(
            arrow_values, value_size, mask=None if feature.sequences else null_array
        )
    for depth in reversed(range(len(feature.sequences))):
        offsets = np.cumsum(
            np.concatenate([[0], *(episode_column.lengths[depth] for episode_column in columns)]), dtype=np.int64
        )
        arrow_values = pa.LargeListArray.from_arrays(
            pa.array(offsets), arrow_values, mask=null_array if depth == 0 else None
        )
    return arrow_values


def _null_rows(column: Column) -> np.ndarray:
    """Return the mask of rows without a value."""
    return np.full(column.rows, column.values is None) if column.valid is None else ~column.valid
