"""Sidecar columns on request: how a column of any sidecar becomes an array or texts of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from stream.errors import ArgumentError, closest
from stream.format import FormatError
from stream.shards import OpenShard, column_array, is_numeric

Kind = Literal["episodes", "steps", "records"]
_KINDS: tuple[Kind, ...] = ("episodes", "steps", "records")


@dataclass(frozen=True)
class Column:
    """A column as a mixture has it.

    name: key in the batch. kinds: in which sidecar each member has it, None where it has not. column: its name there.
    dtype: None for text. size: values of the largest member, None if it is one number in all of them.
    """

    name: str
    column: str
    kinds: tuple[Kind | None, ...]
    dtype: str | None
    size: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return () if self.size is None else (self.size,)


def find_column(name: str, schemas: Sequence[dict[Kind, pa.Schema]], datasets: Sequence[str]) -> Column:
    """Look for a column in the sidecars of all members.

    Args:
        name: a column of the ``episodes``, ``steps`` or ``records`` sidecar, looked for in this order, or
            ``steps.language`` to say which.
        schemas: of each member, by kind.
        datasets: names of the members, for messages.

    Raises:
        ArgumentError: no member has it, or it is text in one and numbers in another, or of neither.
    """
    first, _, rest = name.partition(".")
    allowed, column = ((first,), rest) if first in _KINDS and rest else (_KINDS, name)
    kinds: list[Kind | None] = []
    dtypes: list[np.dtype] = []
    sizes: list[int | None] = []
    texts = 0
    for schema, dataset in zip(schemas, datasets, strict=True):
        kind = next((kind for kind in _KINDS if kind in allowed and column in schema[kind].names), None)
        kinds.append(kind)
        if kind is None:
            continue
        found = schema[kind].field(column).type
        inner, size = (found.value_type, found.list_size) if isinstance(found, pa.FixedSizeListType) else (found, None)
        if pa.types.is_dictionary(inner):
            inner = inner.value_type
        if pa.types.is_string(inner) and size is None:
            texts += 1
        elif is_numeric(inner):
            dtypes.append(_numpy_dtype(inner))
            sizes.append(size)
        else:
            raise ArgumentError(
                f"columns: {name!r} of dataset {dataset} is {found}; numbers and single texts can be loaded"
            )
    if not any(kinds):
        known = {column for schema in schemas for kind in _KINDS for column in schema[kind].names}
        raise ArgumentError(f"columns: no dataset of the mixture has {name!r}; {closest(name, known, noun='columns')}")
    if texts and dtypes:
        raise ArgumentError(f"columns: {name!r} is text in some datasets and numbers in others; load them apart")
    if texts:
        return Column(name, column, tuple(kinds), None, None)
    size = None if all(size is None for size in sizes) else max(size or 1 for size in sizes)
    return Column(name, column, tuple(kinds), np.result_type(*dtypes).str, size)


def sidecar_schemas(shard: OpenShard) -> dict[Kind, pa.Schema]:
    """The columns of each sidecar of a shard; all shards of a dataset are alike."""
    records = pa.schema([(name, pa.from_numpy_dtype(values.dtype)) for name, values in shard.records.items()])
    return {"episodes": shard.episodes.schema, "steps": shard.steps.schema, "records": records}


def check_column(shard: OpenShard, kind: Kind, column: Column) -> None:
    """Raise FormatError if a shard does not have a column as the first shard of its dataset has it."""
    if kind == "records":
        return
    table = shard.episodes if kind == "episodes" else shard.steps
    place = table.schema.get_field_index(column.column)
    if place < 0:
        raise FormatError(
            f"{shard.info.path(kind)}: no column {column.column!r}, which other shards of the dataset have"
        )
    found = table.schema.field(place).type
    inner, size = (found.value_type, found.list_size) if isinstance(found, pa.FixedSizeListType) else (found, 1)
    if column.dtype is None:
        fits = pa.types.is_string(found.value_type if pa.types.is_dictionary(found) else found)
    else:
        fits = is_numeric(found) and size <= (column.size or 1) and np.can_cast(_numpy_dtype(inner), column.dtype)
    if not fits:
        raise FormatError(
            f"{shard.info.path(kind)}: column {column.column!r} is {found}, unlike in other shards of the dataset"
        )


def column_values(shard: OpenShard, kind: Kind, column: str) -> np.ndarray | pa.ChunkedArray:
    """The values of a column of a shard: numbers [rows, values], or an Arrow array of texts.

    Integers and booleans keep their type where rows have none, and are 0 there; floats are NaN.
    """
    table = {"episodes": shard.episodes, "steps": shard.steps}.get(kind)
    if table is None:
        return shard.records[column][:, None]
    field = table.schema.field(column).type
    if pa.types.is_string(field) or pa.types.is_dictionary(field):
        return table[column]
    inner = field.value_type if isinstance(field, pa.FixedSizeListType) else field
    values = column_array(table, column, fill=None if pa.types.is_floating(inner) else 0)
    return values[:, None] if values.ndim == 1 else values


def _numpy_dtype(kind: pa.DataType) -> np.dtype:
    return np.dtype(pa.array([], kind).to_numpy(zero_copy_only=False).dtype)


def column_validity(shard: OpenShard, kind: Kind, column: str) -> np.ndarray | None:
    """Which rows of a column have a value, bool [rows]; None if all have."""
    table = {"episodes": shard.episodes, "steps": shard.steps}.get(kind)
    if table is None or not table[column].null_count:
        return None
    return table[column].is_valid().to_numpy()
