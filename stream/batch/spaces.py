"""Choice of a canonical space, whose columns ``convert`` computed: the datasets of a mixture that map to it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from stream.base.errors import ArgumentError
from stream.batch.vectors import DatasetVector
from stream.format.catalog import Dataset
from stream.format.names import VectorName
from stream.format.spaces import SpaceName
from stream.order.vector import Vector

_log = logging.getLogger("stream")


def check_spaces(datasets: Sequence[Dataset], vectors: Mapping[VectorName, Sequence[Vector]]) -> list[bool]:
    """Return which datasets stay in the mixture.

    Args:
        datasets: Datasets of the members.
        vectors: Vectors that are loaded, by member; those without a space or with columns need no mapping.

    Raises:
        ArgumentError: A dataset does not map to its space, or has dimensions of unknown units; lists all of them.
    """
    dropped: set[str] = set()
    for vector_name, member_vectors in vectors.items():
        dropped |= _unmapped(datasets, vector_name, member_vectors)
    if dropped:
        _log.info("without the datasets that do not map: %s", ", ".join(sorted(dropped)))
    for vector_name, member_vectors in vectors.items():
        _check_units(datasets, vector_name, member_vectors, dropped)
    return [dataset.name not in dropped for dataset in datasets]


def _unmapped(datasets: Sequence[Dataset], vector_name: VectorName, vectors: Sequence[Vector]) -> set[str]:
    """Return the names of the datasets to drop, as they do not map to the space of a vector; or raise ArgumentError."""
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
    listed = "\n  ".join(reasons.values())
    policy = vectors[0].on_unmapped
    if reasons and policy == "error":
        raise ArgumentError(
            f"{len(reasons)} of {len(datasets)} datasets do not map; take on_unmapped='mask' (zeros, mask False) or "
            f"'drop' (without them), or give their columns in {vector_name}=Vector(columns=...):\n  {listed}"
        )
    if policy == "drop" and len(reasons) == len(datasets):
        raise ArgumentError(f"on_unmapped='drop' leaves no dataset:\n  {listed}")
    return set(reasons) if policy == "drop" else set()


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
    kinds = tuple("absolute" if dim_name == "gripper" else moving_kind for dim_name in names)
    return DatasetVector(names, kinds, None, tuple("gripper" if dim_name == "gripper" else "" for dim_name in names))
