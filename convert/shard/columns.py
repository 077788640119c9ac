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
    kind = pa.large_string() if feature.dtype == "string" else pa.from_numpy_dtype(feature.dtype)
    if feature.shape:
        kind = pa.list_(kind, feature.size or 0)
    for _ in feature.sequences:
        kind = pa.large_list(kind)
    if kind == pa.large_string() and feature.level == "step":
        kind = TEXT
    metadata = {"dtype": feature.dtype, "shape": json.dumps(list(feature.shape))}
    return pa.field(feature.name, kind, metadata=metadata)


def arrow_array(feature: Feature, columns: Sequence[Column]) -> pa.Array:
    """Join the columns of one feature of several episodes, in order; rows that lack it are null."""
    size = feature.size or 0
    mask = None
    if any(column.values is None or column.valid is not None for column in columns):
        mask = np.concatenate(
            [np.full(c.rows, c.values is None) if c.valid is None else ~c.valid for c in columns], dtype=bool
        )
    nested = bool(feature.sequences or feature.shape)
    fillers = [0 if feature.sequences else column.rows * size for column in columns]
    if feature.dtype == "string":
        texts: list[str | None] = []
        for column, filler in zip(columns, fillers, strict=True):
            texts += [None] * filler if column.values is None else list(column.values)
        array: pa.Array = pa.array(texts, pa.large_string(), mask=None if nested else mask)
        if arrow_field(feature).type == TEXT:
            return array.dictionary_encode()
    else:
        dtype = np.dtype(feature.dtype)
        parts = [np.zeros(0, dtype)]
        for column, filler in zip(columns, fillers, strict=True):
            parts.append(np.zeros(filler, dtype) if column.values is None else np.asarray(column.values, dtype))
        array = pa.array(np.concatenate(parts), mask=None if nested else mask)
    nulls = None if mask is None else pa.array(mask)
    if feature.shape:
        array = pa.FixedSizeListArray.from_arrays(array, size, mask=None if feature.sequences else nulls)
    for level in reversed(range(len(feature.sequences))):
        offsets = np.cumsum(np.concatenate([[0], *(column.lengths[level] for column in columns)]), dtype=np.int64)
        array = pa.LargeListArray.from_arrays(pa.array(offsets), array, mask=nulls if level == 0 else None)
    return array
