"""Columns of episodes become Arrow tables, and tables become files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from convert.errors import ShardError
from convert.features import Feature
from convert.rlds import Column, storage_dtype

_MAX_ITEMS = (1 << 31) - 1


def arrow_field(feature: Feature) -> pa.Field:
    """Return the Arrow field of a feature.

    Scalars are plain columns, values with a shape are fixed-size lists (row-major; the shape is in the metadata),
    sequences are lists around that. Texts of steps are dictionary-encoded, because they mostly repeat.
    """
    kind = pa.string() if feature.dtype == "string" else pa.from_numpy_dtype(storage_dtype(feature))
    if feature.shape:
        kind = pa.list_(kind, feature.size or 0)
    for _ in feature.sequences:
        kind = pa.list_(kind)
    if kind == pa.string() and feature.level == "step":
        kind = pa.dictionary(pa.int32(), pa.string())
    metadata = {"dtype": feature.dtype, "shape": json.dumps(list(feature.shape))}
    return pa.field(feature.name, kind, metadata=metadata)


def arrow_array(feature: Feature, columns: Sequence[Column]) -> pa.Array:
    """Join the columns of one feature of several episodes, in order; rows of episodes that lack it are null."""
    size = feature.size or 0
    absent = [column.values is None for column in columns]
    mask = None
    if any(absent):
        mask = pa.array(np.repeat(absent, [column.rows for column in columns]))
    flat = mask if not feature.sequences and not feature.shape else None
    if feature.dtype == "string":
        texts: list[str | None] = []
        for column in columns:
            filler: list[str | None] = [None] * (0 if feature.sequences else column.rows * size)
            texts += filler if column.values is None else list(column.values)
        array: pa.Array = pa.array(texts, pa.string())
        if arrow_field(feature).type == pa.dictionary(pa.int32(), pa.string()):
            return array.dictionary_encode()
    else:
        dtype = storage_dtype(feature)
        parts = [
            np.zeros(0 if feature.sequences else column.rows * size, dtype)
            if column.values is None
            else np.asarray(column.values, dtype)
            for column in columns
        ]
        joined = np.concatenate(parts) if parts else np.zeros(0, dtype)
        array = pa.array(joined, mask=np.asarray(flat) if flat is not None else None)
    if feature.shape:
        array = pa.FixedSizeListArray.from_arrays(array, size, mask=None if feature.sequences else mask)
    for level in reversed(range(len(feature.sequences))):
        lengths = [column.lengths[level] for column in columns]
        counts = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        if offsets[-1] > _MAX_ITEMS:
            raise ShardError(
                f"{feature.path}: {offsets[-1]:,} items in one shard, a column holds {_MAX_ITEMS:,}; leave it out"
            )
        array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), array, mask=mask if level == 0 else None)
    return array


def write_sidecar(path: Path, table: pa.Table) -> None:
    """Write a table as an Arrow IPC file with one record batch, uncompressed, so that it can be memory-mapped."""
    batches = table.combine_chunks().to_batches()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
