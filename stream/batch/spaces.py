"""The choice of a canonical space, whose columns ``convert`` computed: which datasets of a mixture map to it."""

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
"""The space of each vector that is loaded in one."""


def check_spaces(
    datasets: Sequence[Dataset],
    spaces: Chosen,
    own: Mapping[VectorName, Mapping[str, object]],
    *,
    unmapped: Unmapped,
    unknown_units: UnknownUnits,
) -> list[bool]:
    """Return which datasets stay in the mixture.

    Args:
        datasets: Datasets of the members.
        spaces: Space of each vector.
        own: Datasets with columns of their own, by vector; they need no mapping.
        unmapped: What to do with a dataset that does not map: ``drop`` leaves it out.
        unknown_units: Whether dimensions whose unit is not known are refused.

    Raises:
        ArgumentError: A dataset does not map to its space, or has dimensions of unknown units; lists all of them.
    """
    missing: dict[str, list[str]] = {}
    unknown: dict[str, list[str]] = {}
    for dataset in datasets:
        for which, space in spaces.items():
            if dataset.name in own.get(which, {}):
                continue
            found = dataset.fields.spaces.get(space)
            if found is None:
                reason = "its manifest has no such space; run `pairstream reindex` if its registry entry has one"
            elif not found.names(space, which):
                reason = found.unmapped or f"it has no {which} of this space"
            else:
                dims = [name for name in found.names(space, which) if name in found.unknown_units]
                if dims:
                    unknown.setdefault(f"{which}_space={space!r}", []).append(f"{dataset.name}: {', '.join(dims)}")
                continue
            missing.setdefault(dataset.name, []).append(f"{dataset.name}: {which}_space={space!r}: {reason}")
    reasons = "\n  ".join(line for lines in missing.values() for line in lines)
    if missing and unmapped == "error":
        raise ArgumentError(
            f"{len(missing)} of {len(datasets)} datasets do not map; take unmapped='mask' (zeros, mask False) or "
            "'drop' (without them), or give their columns in action_columns:\n  " + reasons
        )
    dropped = set(missing) if unmapped == "drop" else set()
    if len(dropped) == len(datasets):
        raise ArgumentError(f"unmapped='drop' leaves no dataset:\n  {reasons}")
    if dropped:
        _log.info("without the datasets that do not map: %s", ", ".join(sorted(dropped)))
    for where, lines in unknown.items():
        kept = [line for line in lines if line.partition(":")[0] not in dropped]
        if kept and unknown_units == "refuse":
            raise ArgumentError(
                f"{where}: no source tells the units of these; take unknown_units='keep' to load them as stored, or "
                "leave the datasets out:\n  " + "\n  ".join(kept)
            )
    return [dataset.name not in dropped for dataset in datasets]


def dropped_steps(dataset: Dataset, space: SpaceName) -> tuple[int, int]:
    """Return how many steps at the begin and the end of an episode have no action in a space."""
    found = dataset.fields.spaces.get(space)
    return (found.drop_first, found.drop_last) if found else (0, 0)


def space_vector(dataset: Dataset, which: VectorName, space: SpaceName) -> Vector:
    """Return the vector of a dataset in a space, without dimensions if the dataset does not map to it."""
    found = dataset.fields.spaces.get(space)
    names = found.names(space, which) if found else ()
    moves = "displacement" if space == "eef_delta" else "absolute"
    kinds = tuple("absolute" if name == "gripper" else moves for name in names)
    return Vector(names, kinds, None, tuple("gripper" if name == "gripper" else "" for name in names))
