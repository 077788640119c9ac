"""Derived columns of ``steps``: vectors of the registry's parts, vectors mapped to canonical spaces, and ``motion``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from convert.index.operations import Rows, distance, map_vector
from convert.registry.dataset import Motion, Part, Vector, Vectors, derived_vectors
from convert.registry.space import MappedVector, Term
from stream.base.errors import FormatError, first_fault
from stream.format.manifest import Manifest
from stream.format.names import MOTION
from stream.format.schema import feature_column


def read_vectors(manifest: Manifest) -> Vectors:
    """Return the vectors of a manifest; raises FormatError that names a field of another form."""
    try:
        vector_entry = Vectors.model_validate(manifest.spec)
        derived_vectors(vector_entry)
    except ValidationError as error:
        raise FormatError(f"field spec.{first_fault(error)}") from None
    except ValueError as error:
        raise FormatError(f"field spec.spaces: {error}") from None
    return vector_entry


def vector_inputs(vector: Vector) -> Sequence[Part | Term]:
    """Return what a vector takes from raw columns."""
    if isinstance(vector, MappedVector):
        return [term for term in vector.terms if term.path is not None]
    return vector.parts if isinstance(vector, Motion) else vector


def vector_field(column: str, vector: Vector) -> pa.Field:
    """Return the Arrow field of a derived column."""
    number_type = pa.float32()
    arrow_type = number_type if isinstance(vector, Motion) else pa.list_(number_type, len(part_names(vector)))
    return pa.field(column, arrow_type, nullable=False)


def part_names(vector: Vector) -> tuple[str, ...]:
    """Return the name of each dimension of the vector: the registry's, or ``path[i]``."""
    if isinstance(vector, MappedVector):
        return vector.names
    if isinstance(vector, Motion):
        return (MOTION,)
    dimension_names: list[str] = []
    for part in vector:
        positions = range(part.dims) if part.select is None else part.select
        dimension_names += part.names or [f"{part.path}[{position}]" for position in positions]
    return tuple(dimension_names)


def dimensions(parts: tuple[Part, ...]) -> list[tuple[str, Part]]:
    """Return the name and the part of each dimension of the vector."""
    owners = [part for part in parts for _ in range(part.dims)]
    return list(zip(part_names(parts), owners, strict=True))


def find_fault(schema: pa.Schema, part: Part | Term) -> str | None:
    """Return why the columns of ``steps`` do not have a part, None if they have it."""
    column = feature_column("steps", part.path or "")
    position = schema.get_field_index(column)
    if position < 0:
        return f"column {column!r} is missing"
    arrow_type = schema.field(position).type
    num_values = 1
    if isinstance(arrow_type, pa.FixedSizeListType):
        num_values, arrow_type = arrow_type.list_size, arrow_type.value_type
    if not (pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type) or pa.types.is_boolean(arrow_type)):
        return f"column {column!r} is {schema.field(position).type}, expected numbers"
    if part.select is None and part.dims != num_values:
        return f"column {column!r} has {num_values} values, expected {part.dims}"
    if part.select is not None and max(part.select) >= num_values:
        return f"column {column!r} has {num_values} values, expected at least {max(part.select) + 1}"
    return None


def derive_vector(raw_columns: pa.Table | pa.RecordBatch, vector: Vector) -> np.ndarray:
    """Return the vector of each row, float32 [rows, dimensions]; NaN for missing values.

    ``raw_columns`` are those of ``steps`` of complete episodes, with which ``find_fault`` finds nothing.
    """

    def read(part: Part | Term) -> np.ndarray:
        numbers = column_values(raw_columns.column(feature_column("steps", part.path or "")))
        return numbers if part.select is None else numbers[:, list(part.select)]

    def join(vector_parts: Sequence[Part]) -> np.ndarray:
        return np.hstack([np.empty((raw_columns.num_rows, 0), np.float32), *map(read, vector_parts)])

    if isinstance(vector, tuple):
        return join(vector)
    episodes = np.asarray(raw_columns.column("episode"))
    if isinstance(vector, MappedVector):
        return map_vector(vector, Rows.of(episodes, vector.rate), read)
    return distance(join(vector.parts), Rows.of(episodes, None), is_change=vector.is_change)


def column_values(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return a column of numbers as float32 [rows, values]; NaN for missing values."""
    if isinstance(column, pa.ChunkedArray):
        return column_values(column.combine_chunks())
    values, values_per_row = column, 1
    if isinstance(column.type, pa.FixedSizeListType):
        values_per_row = column.type.list_size
        # Not flatten(), which drops the values of null rows.
        values = column.values.slice(column.offset * values_per_row, len(column) * values_per_row)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    # Not fill_null(), which older versions of Arrow do not have for half precision.
    stored_values = pa.Array.from_buffers(values.type, len(values), [None, values.buffers()[1]], offset=values.offset)
    numbers = stored_values.to_numpy().astype(np.float32).reshape(len(column), values_per_row)
    if values.null_count:
        numbers[np.asarray(values.is_null()).reshape(numbers.shape)] = np.nan
    if column.null_count:
        numbers[np.asarray(column.is_null())] = np.nan
    return numbers
