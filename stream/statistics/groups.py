"""Datasets whose statistics are taken together, and the dimensions that they share."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal

import numpy as np

from stream.base.errors import ArgumentError
from stream.batch.vectors import DatasetVector
from stream.format.names import VectorName
from stream.statistics.chunks import Chunks
from stream.statistics.mixture import Mixture

Per = Literal["dataset", "robot", "control", "mixture"]
_MEASURED_WORDS = ("target", "absolute")


def group_members(mixture: Mixture, vector_key: VectorName, *, per: Per) -> list[list[int]]:
    """Return the members of each group that have the vector, in the order of the mixture."""
    groups: dict[Hashable, list[int]] = {}
    for member, vector in enumerate(mixture.spec.vectors(vector_key)):
        if not vector.size:
            continue
        # A dataset whose episodes name several robots is a separate group.
        robot = mixture.datasets[member].manifest.spec.get("robot") or member
        group: dict[Per, Hashable] = {"dataset": member, "robot": robot, "mixture": ""}
        group["control"] = (robot, kind_of_control(vector))
        groups.setdefault(group[per], []).append(member)
    return list(groups.values())


def kind_of_control(vector: DatasetVector) -> frozenset[str]:
    """Return what a vector controls: joint positions, joint velocities, poses, changes of poses, and so on.

    Grippers and flags do not count. Dimensions of unknown quantity count by their names.

    >>> sorted(kind_of_control(DatasetVector(("a", "grip"), ("target",) * 2, quantities=("joint_position", "gripper"))))
    ['joint_position absolute']
    """
    quantities = (*vector.quantities, *[""] * (vector.size - len(vector.quantities)))
    words = set()
    for name, kind, quantity in zip(vector.names, vector.kinds, quantities, strict=True):
        if kind == "flag" or quantity in ("gripper", "terminate"):
            continue
        subject = "pose" if quantity in ("ee_position", "ee_pose_matrix") or "ee_rotation" in quantity else quantity
        words.add(f"{subject or name} {'absolute' if kind in _MEASURED_WORDS else kind}")
    return frozenset(words)


class SharedColumns:
    """Columns of the statistics of some members together, and the dimension of each member in each column.

    Without a layout the members have the same dimensions. In a layout with named slots a column is a number of the
    layout that a member fills.

    Args:
        mixture: Mixture.
        vector_key: Vector.
        members: Members.
        per: Choice of the groups, for messages.

    Attributes:
        count: Count of the columns.
        dims: Dimension of each member in each column, -1 for none; by member.

    Raises:
        ArgumentError: The members have other dimensions, and no layout says which belong together.
    """

    def __init__(self, mixture: Mixture, vector_key: VectorName, members: Sequence[int], *, per: Per) -> None:
        vectors, slots = mixture.spec.vectors(vector_key), mixture.spec.slots.get(vector_key)
        self._is_pooled = len(members) > 1 and slots is not None and not slots[0].is_padding
        if slots is not None and self._is_pooled:
            positions = sorted({position for member in members for position in slots[member].positions} - {-1})
            self.dims = {member: tuple(slots[member].dims[positions].tolist()) for member in members}
            self.count = len(positions)
            return
        first_member, names = members[0], mixture.names
        for member in members[1:]:
            if vectors[member].names != vectors[first_member].names:
                dims = [f"{names[number]} is {', '.join(vectors[number].names)}" for number in (member, first_member)]
                raise ArgumentError(
                    f"per={per!r}: {vector_key} of {dims[0]}, that of {dims[1]}; take one space for all, a layout with "
                    "named slots, or per='dataset'"
                )
        self.count = vectors[first_member].size
        self.dims = dict.fromkeys(members, tuple(range(self.count)))

    def spread(self, chunks: Chunks, member: int) -> Chunks:
        """Yield the chunks of a member in the columns; the mask is False in those that it lacks."""
        if not self._is_pooled:
            yield from chunks
            return
        dims = np.array(self.dims[member], np.int64)
        for values, mask in chunks:
            # Chunks that are pooled have counts of each value as their mask.
            yield values[..., np.maximum(dims, 0)], mask[..., np.maximum(dims, 0)] * (dims >= 0)

    def pick(self, numbers: np.ndarray, member: int, *, size: int) -> np.ndarray:
        """Return the numbers of a member's dimensions, [..., columns] to [..., size]; NaN without a column."""
        if not self._is_pooled:
            return numbers
        picked: Any = np.full((*numbers.shape[:-1], size), np.nan)
        for column, dim in enumerate(self.dims[member]):
            if dim >= 0:
                picked[..., dim] = numbers[..., column]
        return np.asarray(picked)
