"""Recordings as Rerun's own reader finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from rerun.chunk import RrdReader


def read_recording(path: Path) -> dict[str, dict[str, list[Any]]]:
    """Return the columns of a recording, by entity, with the rows of all its chunks; durations in nanoseconds."""
    columns_by_entity: dict[str, dict[str, list[Any]]] = {}
    for chunk in RrdReader(path).stream().to_chunks():
        batch = chunk.to_record_batch()
        entity = columns_by_entity.setdefault(chunk.entity_path, {})
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            values = column.cast(pa.int64()) if pa.types.is_duration(column.type) else column
            entity.setdefault(name, []).extend(values.to_pylist())
    return columns_by_entity
