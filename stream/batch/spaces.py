"""Choice of a canonical space, whose columns ``convert`` computed: the datasets of a mixture that map to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from stream.base.errors import ArgumentError
from stream.batch.vectors import Vector
from stream.format.catalog import Dataset
from stream.format.names import VectorName
from stream.format.spaces import SpaceName

ActionSpace = Literal["oxe", "eef_delta", "joint"]
StateSpace = Literal["eef", "joint"]
Unmapped = Literal["error", "mask", "drop"]
UnknownUnits = Literal["refuse", "keep"]
SPACES: dict[VectorName, tuple[SpaceName, ...]] = {"action": get_args(ActionSpace), "state": get_args(StateSpace)}
UNMAPPED: tuple[Unmapped, ...] = get_args(Unmapped)
UNKNOWN_UNITS: tuple[UnknownUnits, ...] = get_args(UnknownUnits)

_log = logging.getLogger("stream")

Chosen = Mapping[VectorName, SpaceName]
"""Canonical space by vector; vectors of the registry are left out."""


def check_spaces(
    datasets: Sequence[Dataset],
    spaces: Chosen,
    own_columns: Mapping[VectorName, Mapping[str, object]],
    *,
    unmapped: Unmapped,
    unknown_units: UnknownUnits,
) -> list[bool]:
    """Return which datasets stay in the mixture.

    Args:
        datasets: Datasets of the members.
        spaces: Space of each vector.
        own_columns: Datasets whose columns the caller chose, by vector; they need no mapping.
        unmapped: What to do with a dataset that does not map: ``drop`` leaves it out.
        unknown_units: ``refuse`` or ``keep`` dimensions whose unit is unknown.

    Raises:
        ArgumentError: A dataset does not map to its space, or has dimensions of unknown units; lists all of them.
    """
    reasons: dict[str, list[str]] = {}
    unknown_dims: dict[str, dict[str, list[str]]] = {}
    for dataset in datasets:
        for vector_name, space in spaces.items():
            if dataset.name in own_columns.get(vector_name, {}):
                continue
            fields = dataset.fields.spaces.get(space)
            if fields is None:
                reason = "its manifest has no such space; run `pairstream reindex` if its registry entry has one"
            elif not fields.names(space, vector_name):
                reason = fields.unmapped or f"it has no {vector_name} of this space"
            else:
                if dims := [name for name in fields.names(space, vector_name) if name in fields.unknown_units]:
                    unknown_dims.setdefault(f"{vector_name}_space={space!r}", {})[dataset.name] = dims
                continue
            reasons.setdefault(dataset.name, []).append(f"{dataset.name}: {vector_name}_space={space!r}: {reason}")
    listed = "\n  ".join(line for lines in reasons.values() for line in lines)
    if reasons and unmapped == "error":
        raise ArgumentError(
            f"{len(reasons)} of {len(datasets)} datasets do not map; take unmapped='mask' (zeros, mask False) or "
            f"'drop' (without them), or give their columns in action_columns:\n  {listed}"
        )
    dropped = set(reasons) if unmapped == "drop" else set()
    if len(dropped) == len(datasets):
        raise ArgumentError(f"unmapped='drop' leaves no dataset:\n  {listed}")
    if dropped:
        _log.info("without the datasets that do not map: %s", ", ".join(sorted(dropped)))
    for argument, by_dataset in unknown_dims.items():
        lines = [f"{name}: {', '.join(dims)}" for name, dims in by_dataset.items() if name not in dropped]
        if lines and unknown_units == "refuse":
            raise ArgumentError(
                f"{argument}: the units of these are unknown; take unknown_units='keep' to load them as stored, or "
                "leave the datasets out:\n  " + "\n  ".join(lines)
            )
    return [dataset.name not in dropped for dataset in datasets]


def dropped_steps(dataset: Dataset, space: SpaceName) -> tuple[int, int]:
    """Return the count of steps without an action in a space, at the start and the end of an episode."""
    fields = dataset.fields.spaces.get(space)
    return (fields.drop_first, fields.drop_last) if fields else (0, 0)


def space_vector(dataset: Dataset, vector_name: VectorName, space: SpaceName) -> Vector:
    """Return the vector of a dataset in a space, without dimensions if the dataset does not map to it."""
    fields = dataset.fields.spaces.get(space)
    names = fields.names(space, vector_name) if fields else ()
    moving_kind = "displacement" if space == "eef_delta" else "absolute"
    kinds = tuple("absolute" if dim_name == "gripper" else moving_kind for dim_name in names)
    return Vector(names, kinds, None, tuple("gripper" if dim_name == "gripper" else "" for dim_name in names))
