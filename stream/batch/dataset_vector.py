"""Action and state of a dataset: of the registry, in a canonical space, or of columns that a caller chose."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from stream.base.errors import ArgumentError, FormatError, closest, first_fault
from stream.batch.vectors import DatasetVector
from stream.format.catalog import Dataset
from stream.format.fields import Part
from stream.format.names import DERIVED, VectorName
from stream.format.schema import feature_column
from stream.format.spaces import SpaceName, derived_column
from stream.format.table import Column, Table
from stream.sample.relative import RelativeVector
from stream.sample.vector import Vector

_log = logging.getLogger("stream")


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


def converted_vector(conversion: RelativeVector) -> DatasetVector:
    """Return the vector that a conversion gives."""
    return DatasetVector(conversion.names, conversion.kinds, None, conversion.quantities, conversion.units)


def _make_vector(parts: Sequence[Part], *, chosen: bool = False) -> DatasetVector:
    dim_names: list[str] = []
    for part in parts:
        dim_names += part.names or [f"{part.path}[{index}]" for index in part.indices]
    kinds = tuple(part.kind for part in parts for _ in part.indices)
    quantities = tuple(part.quantity for part in parts for _ in part.indices)
    columns = tuple((feature_column("steps", part.path), tuple(part.indices)) for part in parts)
    units = tuple(part.unit or "" for part in parts for _ in part.indices)
    orders = tuple(part.order or "" for part in parts for _ in part.indices)
    return DatasetVector(tuple(dim_names), kinds, columns if chosen else None, quantities, units, orders)


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


def check_spaces(datasets: Sequence[Dataset], vectors: Mapping[VectorName, Sequence[Vector]]) -> list[bool]:
    """Return which datasets stay in the mixture.

    Args:
        datasets: Datasets of the members.
        vectors: Vectors that are loaded, by member; those without a space or with columns need no mapping.

    Raises:
        ArgumentError: A dataset does not map to its space, or has dimensions of unknown units; lists all of them.
    """
    dropped: dict[str, str] = {}
    for vector_name, member_vectors in vectors.items():
        dropped |= _unmapped(datasets, vector_name, member_vectors)
    if len(dropped) == len(datasets):
        listed = "\n  ".join(dropped.values())
        raise ArgumentError(f"on_unmapped='drop' leaves no dataset:\n  {listed}")
    if dropped:
        _log.info("without the datasets that do not map: %s", ", ".join(sorted(dropped)))
    for vector_name, member_vectors in vectors.items():
        _check_units(datasets, vector_name, member_vectors, dropped)
    return [dataset.name not in dropped for dataset in datasets]


def _unmapped(datasets: Sequence[Dataset], vector_name: VectorName, vectors: Sequence[Vector]) -> dict[str, str]:
    """Return the datasets to drop and why they do not map to the space of a vector; or raise ArgumentError."""
    reasons: dict[str, str] = {}
    for dataset, vector in zip(datasets, vectors, strict=True):
        if vector.space is None or vector.columns is not None:
            continue
        fields = dataset.fields.spaces.get(vector.space)
        if fields is None:
            reason = "its manifest has no such space; run `pairstream reindex` if its registry entry has one"
        elif not fields.names(vector.space, vector_name):
            reason = fields.unmapped or f"it has no {vector_name} of this space"
        else:
            continue
        reasons[dataset.name] = f"{dataset.name}: {vector_name}=Vector(space={vector.space!r}): {reason}"
    policy = vectors[0].on_unmapped
    if reasons and policy == "error":
        listed = "\n  ".join(reasons.values())
        raise ArgumentError(
            f"{len(reasons)} of {len(datasets)} datasets do not map; take on_unmapped='mask' (zeros, mask False) or "
            f"'drop' (without them), or give their columns in {vector_name}=Vector(columns=...):\n  {listed}"
        )
    return reasons if policy == "drop" else {}


def _check_units(
    datasets: Sequence[Dataset], vector_name: VectorName, vectors: Sequence[Vector], dropped: Collection[str]
) -> None:
    lines = []
    for dataset, vector in zip(datasets, vectors, strict=True):
        fields = dataset.fields.spaces.get(vector.space) if vector.space and vector.columns is None else None
        if fields is None or dataset.name in dropped or vector.on_unknown_units == "keep" or vector.space is None:
            continue
        if dims := [name for name in fields.names(vector.space, vector_name) if name in fields.unknown_units]:
            lines.append(f"{dataset.name}: {', '.join(dims)}")
    if lines:
        raise ArgumentError(
            f"{vector_name}=Vector(space={vectors[0].space!r}): the units of these are unknown; take "
            "on_unknown_units='keep' to load them as stored, or leave the datasets out:\n  " + "\n  ".join(lines)
        )


def dropped_steps(dataset: Dataset, space: SpaceName) -> tuple[int, int]:
    """Return the count of steps without an action in a space, at the start and the end of an episode."""
    fields = dataset.fields.spaces.get(space)
    return (fields.drop_first, fields.drop_last) if fields else (0, 0)


def space_vector(dataset: Dataset, vector_name: VectorName, space: SpaceName) -> DatasetVector:
    """Return the vector of a dataset in a space, without dimensions if the dataset does not map to it."""
    fields = dataset.fields.spaces.get(space)
    names = fields.names(space, vector_name) if fields else ()
    moving_kind = "displacement" if space == "eef_delta" else "absolute"
    kinds = tuple("absolute" if "gripper" in dim_name else moving_kind for dim_name in names)
    # Of two arms they are called left_gripper and right_gripper.
    quantities = tuple("gripper" if "gripper" in dim_name else "" for dim_name in names)
    if space == "joint":
        quantities = tuple(quantity or "joint_position" for quantity in quantities)
    elif space == "eef" and len(names) > 6:
        quantities = (*["ee_position"] * 3, *["ee_rotation_euler"] * 3, *quantities[6:])
    return DatasetVector(names, kinds, None, quantities)
