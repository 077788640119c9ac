"""Chunks of actions, or states, relative to the state at t, to the first action or to the step before; and back.

Joints and positions are subtracted. Poses are composed: ``body`` is ``T0^-1 T[k]``, the pose in the frame of the tool
at t, and ``world`` is ``p[k] - p0`` with ``R[k] R0^-1``, both about the axes of the base. Only numpy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from stream.base.errors import ArgumentError
from stream.sample.rotations import Stored, from_matrix, inverse, to_matrix

RelativeTo = Literal["state", "first", "previous"]
Poses = Literal["componentwise", "body", "world"]


@dataclass(frozen=True)
class Group:
    """Dimensions that are converted together: one, or a position, a rotation or both as a pose.

    Attributes:
        position, rotation: Numbers of the dimensions in the vector; empty for none.
        reference_position, reference_rotation: Numbers in the reference; empty if the group stays absolute.
        stored, reference_stored, result: Forms of the rotation in the vector, in the reference and in the result.
        is_pose: True if rotations are composed, and positions with them; False if all numbers are subtracted or kept.
    """

    position: tuple[int, ...]
    rotation: tuple[int, ...] = ()
    reference_position: tuple[int, ...] = ()
    reference_rotation: tuple[int, ...] = ()
    stored: Stored = "matrix"
    reference_stored: Stored = "matrix"
    result: Stored = "matrix"
    is_pose: bool = False

    @property
    def is_relative(self) -> bool:
        """True if the group is measured against a reference."""
        return bool(self.reference_position or self.reference_rotation)


@dataclass(frozen=True)
class RelativeVector:
    """Conversion of one dataset's action or state to what a policy takes, and back.

    Attributes:
        names, kinds, quantities, units: Description of each dimension of the result.
        groups: Groups of dimensions, in the order of the result.
        positions: Numbers of each group's dimensions in the result: of the position, then of the rotation.
        size: Dimensions of the vector.
        relative_to: Reference, None if only rotations change their form.
        poses: Composition of poses.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    quantities: tuple[str, ...]
    units: tuple[str, ...]
    groups: tuple[Group, ...]
    positions: tuple[tuple[slice, slice], ...]
    size: int
    relative_to: RelativeTo | None
    poses: Poses

    def to_json(self) -> dict[str, Any]:
        """Return the conversion as JSON."""
        content = asdict(self)
        content["positions"] = [[part.stop - part.start for part in parts] for parts in self.positions]
        return dict(json.loads(json.dumps(content)))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RelativeVector:
        """Return the conversion of ``to_json``; raises KeyError or TypeError for anything else."""
        groups = []
        for group in content["groups"]:
            fields: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in group.items()}
            groups.append(Group(**fields))
        positions, first = [], 0
        for num_positions, num_rotations in content["positions"]:
            middle, last = first + num_positions, first + num_positions + num_rotations
            positions.append((slice(first, middle), slice(middle, last)))
            first = last
        texts: Any = {name: tuple(content[name]) for name in ("names", "kinds", "quantities", "units")}
        settings: Any = {name: content[name] for name in ("size", "relative_to", "poses")}
        return cls(**texts, groups=tuple(groups), positions=tuple(positions), **settings)

    @property
    def needs_state(self) -> bool:
        """True if a conversion reads the state at t."""
        return self.relative_to in ("state", "previous") and any(group.is_relative for group in self.groups)

    def forward(
        self,
        values: np.ndarray,
        mask: np.ndarray,
        reference: np.ndarray | None = None,
        reference_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return windows as the policy takes them, float32 [n, W, len(names)], and their mask; 0 where it is False.

        A pose whose rotation is none, such as a quaternion of zeros, has mask False.

        Args:
            values: float32 [n, W, size].
            mask: bool [n, W, size].
            reference: State at t, float32 [n, S]; for ``first`` and without a reference it is not read.
            reference_mask: bool [n, S].
        """
        # Infinities of the data, and rotations that are none, give NaN without a warning.
        with np.errstate(invalid="ignore", over="ignore"):
            return self._forward(values, mask, reference, reference_mask)

    def _forward(
        self,
        values: np.ndarray,
        mask: np.ndarray,
        reference: np.ndarray | None,
        reference_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        shape = (*values.shape[:2], len(self.names))
        result, result_mask = np.zeros(shape, np.float32), np.zeros(shape, bool)
        for group, (position, rotation) in zip(self.groups, self.positions, strict=True):
            dims = [*group.position, *group.rotation]
            valid = mask[..., dims]
            origin, origin_valid = self._reference(group, values, mask, reference, reference_mask)
            if group.is_pose:
                valid = np.broadcast_to(valid.all(axis=-1, keepdims=True), valid.shape)
            if group.is_relative:
                known = origin_valid.all(axis=-1, keepdims=True) if group.is_pose else origin_valid
                valid = valid & known
            new_position, new_rotation = self._convert(group, values, origin)
            if new_rotation is not None and group.is_pose:
                # A quaternion of zeros, which is no rotation, gives NaN, also in the positions that it turns.
                valid = valid & np.isfinite(new_rotation).all(axis=-1, keepdims=True)
            for part, numbers, part_valid in (
                (position, new_position, valid[..., : len(group.position)]),
                (rotation, new_rotation, valid[..., len(group.position) :]),
            ):
                if numbers is not None:
                    part_mask = part_valid if part_valid.shape == numbers.shape else part_valid[..., :1]
                    result[..., part] = np.where(part_mask, numbers, 0)
                    result_mask[..., part] = part_mask
        return result, result_mask

    def backward(self, values: np.ndarray, reference: np.ndarray | None = None) -> np.ndarray:
        """Return absolute values, the inverse of ``forward``, in the dtype of ``values``.

        Args:
            values: float [..., W, len(names)].
            reference: State of the observation of the chunk, float [..., S]; for ``first`` the first action.

        Raises:
            ArgumentError: The reference is missing, or a shape is wrong.
        """
        if reference is None and any(group.is_relative for group in self.groups):
            raise ArgumentError("relative actions need the state of the observation that the chunk was predicted from")
        self._check_shapes(values, reference)
        steps: list[np.ndarray] = []
        for step in range(values.shape[-2]):
            absolute = np.zeros((*values.shape[:-2], self.size))
            for group, (position, rotation) in zip(self.groups, self.positions, strict=True):
                origin = None
                if group.is_relative and reference is not None:
                    is_later = self.relative_to == "previous" and bool(steps)
                    dims = [*group.position, *group.rotation]
                    from_reference = [*group.reference_position, *group.reference_rotation]
                    origin = (
                        steps[-1][..., dims] if is_later else np.asarray(reference, np.float64)[..., from_reference]
                    )
                    stored = group.stored if is_later else group.reference_stored
                    origin = _with_form(origin, group, stored)
                absolute[..., list(group.position)], new_rotation = self._invert(
                    group, values[..., step, position], values[..., step, rotation], origin
                )
                if group.rotation:
                    absolute[..., list(group.rotation)] = new_rotation
            steps.append(absolute)
        return np.stack(steps, axis=-2).astype(values.dtype)

    def _check_shapes(self, values: np.ndarray, reference: np.ndarray | None) -> None:
        if values.ndim < 2 or values.shape[-1] != len(self.names):
            raise ArgumentError(f"values of shape {list(values.shape)}; expected [..., W, {len(self.names)}]")
        used = [dim for group in self.groups for dim in (*group.reference_position, *group.reference_rotation)]
        if reference is None or not used:
            return
        shape = np.shape(reference)
        is_one = len(shape) <= max(1, values.ndim - 1)
        if not shape or shape[-1] <= max(used) or not is_one:
            raise ArgumentError(
                f"a state of shape {list(shape)}; expected [..., dims] of at least {max(used) + 1} dims, one state for "
                "each chunk"
            )

    def _reference(
        self,
        group: Group,
        values: np.ndarray,
        mask: np.ndarray,
        reference: np.ndarray | None,
        reference_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the reference of each step of a group, [n, W, k], with rotations in the form of the vector."""
        dims = [*group.position, *group.rotation]
        if not group.is_relative:
            return values[..., dims], mask[..., dims]
        if self.relative_to == "first":
            return np.broadcast_to(values[:, :1, dims], values[..., dims].shape), np.broadcast_to(
                mask[:, :1, dims], mask[..., dims].shape
            )
        assert reference is not None and reference_mask is not None, "the state is read where it is needed"
        from_reference = [*group.reference_position, *group.reference_rotation]
        origin = _with_form(reference[:, None, from_reference].astype(np.float64), group, group.reference_stored)
        known = reference_mask[:, None, from_reference]
        if known.shape[-1] != len(dims):
            known = np.broadcast_to(known.all(axis=-1, keepdims=True), (*known.shape[:-1], len(dims)))
        if self.relative_to == "previous":
            earlier = values[:, :-1, dims].astype(np.float64)
            return np.concatenate([origin, earlier], axis=1), np.concatenate([known, mask[:, :-1, dims]], axis=1)
        shape = values[..., dims].shape
        return np.broadcast_to(origin, shape), np.broadcast_to(known, shape)

    def _convert(
        self, group: Group, values: np.ndarray, origin: np.ndarray
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return position and rotation of the result."""
        num_positions = len(group.position)
        position = values[..., list(group.position)] if group.position else None
        if not group.is_pose:
            numbers = values[..., [*group.position, *group.rotation]]
            if group.is_relative:
                numbers = numbers.astype(np.float64) - origin
            first = numbers[..., :num_positions] if num_positions else None
            return first, numbers[..., num_positions:] if group.rotation else None
        matrices = to_matrix(values[..., list(group.rotation)], group.stored)
        if not group.is_relative:
            return position, from_matrix(matrices, group.result)
        origin_matrices = inverse(to_matrix(origin[..., num_positions:], group.stored))
        if position is not None:
            position = position.astype(np.float64) - origin[..., :num_positions]
        if self.poses == "world":
            return position, from_matrix(matrices @ origin_matrices, group.result)
        if position is not None:
            position = (origin_matrices @ position[..., None])[..., 0]
        return position, from_matrix(origin_matrices @ matrices, group.result)

    def _invert(
        self, group: Group, position: np.ndarray, rotation: np.ndarray, origin: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return absolute position and rotation of a group at one step."""
        position, rotation = position.astype(np.float64), rotation.astype(np.float64)
        num_positions = len(group.position)
        if not group.is_pose:
            if origin is not None:
                position, rotation = position + origin[..., :num_positions], rotation + origin[..., num_positions:]
            return position, rotation
        matrices = to_matrix(rotation, group.result)
        if origin is not None:
            origin_matrices = to_matrix(origin[..., num_positions:], group.stored)
            is_body = self.poses == "body"
            matrices = origin_matrices @ matrices if is_body else matrices @ origin_matrices
            if num_positions:
                turned = (origin_matrices @ position[..., None])[..., 0] if is_body else position
                position = turned + origin[..., :num_positions]
        return position, from_matrix(matrices, group.stored)


def _with_form(origin: np.ndarray, group: Group, stored: Stored) -> np.ndarray:
    """Return a reference with its rotation in the form of the vector's."""
    if not group.is_pose or stored == group.stored:
        return origin
    num_positions = len(group.position)
    turned = from_matrix(to_matrix(origin[..., num_positions:], stored), group.stored)
    return np.concatenate([origin[..., :num_positions], turned], axis=-1)
