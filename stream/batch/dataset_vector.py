"""Action and state of a dataset: those of the registry, or columns that a caller chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from stream.base.errors import ArgumentError, FormatError, closest, first_fault
from stream.batch.spaces import space_vector
from stream.batch.vectors import Vector
from stream.format.catalog import Dataset
from stream.format.fields import Part
from stream.format.names import DERIVED, VectorName
from stream.format.schema import feature_column
from stream.format.spaces import SpaceName, derived_column
from stream.format.table import Column, Table


def dataset_vector(
    dataset: Dataset,
    which: VectorName,
    columns: Sequence[Any] | None,
    *,
    steps: Table,
    space: SpaceName | None = None,
) -> Vector:
    """Return the vector of a dataset.

    Args:
        dataset: Open dataset.
        which: ``action`` or ``state``.
        columns: Names of columns, ``(column, [indices])``, or mappings like the registry's parts; None takes the
            registry's.
        space: Canonical space, None for the registry's vector.
        steps: Table ``steps`` of one split.

    Raises:
        ArgumentError: A column was not converted, has no numbers, or an index is out of range.
        FormatError: The derived column does not fit the registry's entry in the manifest.
    """
    if columns is None:
        if space is None:
            vector = _make_vector(dataset.fields.action if which == "action" else dataset.fields.state)
        else:
            vector = space_vector(dataset, which, space)
        column = derived_column(which, space)
        found = steps.columns.get(column)
        if vector.size and (found is None or (found.dtype, found.width) != ("<f4", vector.size)):
            raise FormatError(
                f"{steps.path}: column {column!r} is not the {vector.size} numbers of the manifest's spec; run "
                "`pairstream reindex` on this root"
            )
        return vector
    where = f"dataset {dataset.name}: {which}"
    if not isinstance(columns, Sequence) or isinstance(columns, str):
        raise ArgumentError(f"{where}: columns are {columns!r:.100}; expected a list of them")
    return _make_vector([_chosen_part(column, steps, where) for column in columns], chosen=True)


def _make_vector(parts: Sequence[Part], *, chosen: bool = False) -> Vector:
    names = [name for part in parts for name in part.names or [f"{part.path}[{i}]" for i in part.indices]]
    kinds = [part.kind for part in parts for _ in part.indices]
    quantities = [part.quantity for part in parts for _ in part.indices]
    columns = tuple((feature_column("steps", part.path), tuple(part.indices)) for part in parts)
    return Vector(tuple(names), tuple(kinds), columns if chosen else None, tuple(quantities))


def _has_numbers(column: Column) -> bool:
    return column.dtype is not None and column.texts is None


def _chosen_part(column: Any, steps: Table, where: str) -> Part:
    if isinstance(column, str):
        column = {"path": column}
    elif isinstance(column, Sequence) and len(column) == 2:
        column = {"path": column[0], "select": column[1]}
    elif not isinstance(column, Mapping):
        raise ArgumentError(f"{where}: {column!r:.100}; expected a column, (column, [indices]) or a mapping")
    name = column.get("path")
    found = steps.columns.get(feature_column("steps", str(name)))
    if found is None:
        known = [name for name, column in steps.columns.items() if name not in DERIVED and _has_numbers(column)]
        raise ArgumentError(f"{where}: no column {name!r}; {closest(str(name), known, noun='columns')}")
    if not _has_numbers(found):
        raise ArgumentError(f"{where}: column {name!r} is not of numbers, one or a fixed number a step")
    size = found.width or 1
    try:
        part = Part.model_validate({"kind": "absolute", **column, "dims": size})
    except ValidationError as error:
        raise ArgumentError(f"{where}: {name!r} has {size} values, {first_fault(error)}") from None
    if max(part.indices) >= size:
        raise ArgumentError(f"{where}: {name!r} has {size} values, select is {list(part.indices)!r:.100}")
    return part
