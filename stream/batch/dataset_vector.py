"""Action and state of a dataset: those of the registry, or columns that a caller chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from stream.base.errors import ArgumentError, FormatError, closest, first_fault
from stream.batch.spaces import space_vector
from stream.batch.vectors import DatasetVector
from stream.format.catalog import Dataset
from stream.format.fields import Part
from stream.format.names import DERIVED, VectorName
from stream.format.schema import feature_column
from stream.format.spaces import derived_column
from stream.format.table import Column, Table
from stream.order.vector import Vector


def dataset_vector(
    dataset: Dataset,
    vector_name: VectorName,
    vector: Vector,
    *,
    steps: Table,
) -> DatasetVector:
    """Return the vector of a dataset.

    Args:
        dataset: Open dataset.
        vector_name: ``action`` or ``state``.
        vector: Its columns, which are names of columns, ``(column, [indices])``, or mappings like the registry's
            parts; or else its canonical space, None for the registry's vector.
        steps: Table ``steps`` of one split.

    Raises:
        ArgumentError: A column was not converted, has no numbers, or an index is out of range.
        FormatError: The derived column does not fit the registry's entry in the manifest.
    """
    columns, space = vector.columns, vector.space
    if columns is None:
        if space is None:
            derived_vector = _make_vector(dataset.fields.action if vector_name == "action" else dataset.fields.state)
        else:
            derived_vector = space_vector(dataset, vector_name, space)
        column_name = derived_column(vector_name, space)
        derived, num_dims = steps.columns.get(column_name), derived_vector.size
        if num_dims and (derived is None or (derived.dtype, derived.width) != ("<f4", num_dims)):
            raise FormatError(
                f"{steps.path}: column {column_name!r} is not the {num_dims} numbers of the manifest's spec; run "
                "`pairstream reindex` on this root"
            )
        return derived_vector
    context = f"dataset {dataset.name}: {vector_name}"
    if not isinstance(columns, Sequence) or isinstance(columns, str):
        raise ArgumentError(f"{context}: columns are {columns!r:.100}; expected a list of them")
    return _make_vector([_chosen_part(column_name, steps, context) for column_name in columns], chosen=True)


def _make_vector(parts: Sequence[Part], *, chosen: bool = False) -> DatasetVector:
    dim_names: list[str] = []
    for part in parts:
        dim_names += part.names or [f"{part.path}[{index}]" for index in part.indices]
    kinds = tuple(part.kind for part in parts for _ in part.indices)
    quantities = tuple(part.quantity for part in parts for _ in part.indices)
    columns = tuple((feature_column("steps", part.path), tuple(part.indices)) for part in parts)
    return DatasetVector(tuple(dim_names), kinds, columns if chosen else None, quantities)


def _has_numbers(table_column: Column) -> bool:
    return table_column.dtype is not None and table_column.texts is None


def _chosen_part(column: Any, steps: Table, context: str) -> Part:
    if isinstance(column, str):
        column = {"path": column}
    elif isinstance(column, Sequence) and len(column) == 2:
        column = {"path": column[0], "select": column[1]}
    elif not isinstance(column, Mapping):
        raise ArgumentError(f"{context}: {column!r:.100}; expected a column, (column, [indices]) or a mapping")
    column_name = column.get("path")
    table_column = steps.columns.get(feature_column("steps", str(column_name)))
    if table_column is None:
        available = [name for name, column in steps.columns.items() if name not in DERIVED and _has_numbers(column)]
        hint = closest(str(column_name), available, noun="columns")
        raise ArgumentError(f"{context}: no column {column_name!r}; {hint}")
    if not _has_numbers(table_column):
        raise ArgumentError(f"{context}: column {column_name!r} is not of numbers, one or a fixed number a step")
    num_dims = table_column.width or 1
    try:
        part = Part.model_validate({"kind": "absolute", **column, "dims": num_dims})
    except ValidationError as error:
        raise ArgumentError(f"{context}: {column_name!r} has {num_dims} values, {first_fault(error)}") from None
    if max(part.indices) >= num_dims:
        raise ArgumentError(f"{context}: {column_name!r} has {num_dims} values, select is {list(part.indices)!r:.100}")
    return part
