"""Which dimensions of a vector are measured against which of the state, by quantity, name and unit."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from stream.base.errors import ArgumentError
from stream.sample.relative import Group, Poses, RelativeTo, RelativeVector
from stream.sample.rotations import NAMES, SIZES, Rotation, Stored

ROTATION_QUANTITIES: dict[str, Stored] = {
    "ee_rotation_euler": "euler_xyz",
    "ee_rotation_axis_angle": "rotvec",
    "ee_rotation_quaternion": "quat_xyzw",
    "ee_rotation_rot6d_rows": "rot6d_rows",
    "ee_rotation_rot6d_columns": "rot6d_columns",
}
"""Form of a rotation, by quantity of the registry."""
QUANTITY_OF_FORM = {form: quantity for quantity, form in ROTATION_QUANTITIES.items()}
_UNKNOWN = ("", "other")
"""Quantities that say nothing."""
_MEASURED = ("torque", "force", "velocity")
"""Endings of quantities of a state that are no positions, and stay as they are."""


class Dimensions(Protocol):
    """Description of each dimension of a vector, as ``stream.batch.vectors.DatasetVector`` has it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds: displacement, velocity, target, absolute or flag."""

    @property
    def quantities(self) -> tuple[str, ...]:
        """Quantities of the registry, such as joint_position; empty if unknown."""

    @property
    def units(self) -> tuple[str, ...]:
        """Units, empty where unknown."""


def plan_relative(
    vector: Dimensions,
    reference: Dimensions,
    *,
    relative_to: RelativeTo | None,
    poses: Poses = "componentwise",
    rotation: Rotation | None = None,
    absolute: Sequence[str] = ("gripper",),
    context: str,
    is_state: bool = False,
) -> RelativeVector:
    """Return the conversion of a dataset's vector; names, quantities and units decide which dimensions belong together.

    Args:
        vector: Dimensions of the action, or of the state.
        reference: Dimensions of the state.
        relative_to: Reference: the state at t, the first action, or the step before, which is the state for the first.
        poses: ``componentwise`` subtracts every number; ``body`` and ``world`` compose positions and rotations.
        rotation: Form of rotations in the result, None for that of the dataset.
        absolute: Names or quantities of dimensions that stay as they are; ``*`` matches any text. Flags always do.
        context: Dataset and vector, for messages.
        is_state: Whether the vector is the state itself; its velocities, forces and torques stay as they are.

    Raises:
        ArgumentError: A dimension has no counterpart in the state, or another unit; or it is relative already.
    """
    find = _Finder(vector, reference, relative_to=relative_to, absolute=absolute, context=context, is_state=is_state)
    groups, blocks = [], _blocks(vector)
    used: set[int] = set()
    for number, block in enumerate(blocks):
        if number in used:
            continue
        quantity = vector.quantities[block[0]] if vector.quantities else ""
        composes = poses != "componentwise" or (relative_to is None and rotation is not None)
        if quantity == "ee_position" and composes:
            partner = next(
                (n for n in range(number + 1, len(blocks)) if n not in used and _form(vector, blocks[n])), None
            )
            if partner is not None and len(block) == 3:
                used.add(partner)
                groups.append(find.pose(block, blocks[partner], rotation))
                continue
            if poses == "body" and find.is_relative(block[0]):
                raise ArgumentError(
                    f"{context}: {', '.join(vector.names[dim] for dim in block)}: no rotation belongs to this "
                    "position, so the frame of its tool is unknown; take poses='world', or name it in absolute="
                )
        if _form(vector, block) and composes:
            groups.append(find.pose((), block, rotation))
            continue
        if _form(vector, block) in ("quat_xyzw", "quat_wxyz") and find.is_relative(block[0]):
            raise ArgumentError(
                f"{context}: {', '.join(vector.names[dim] for dim in block)}: quaternions cannot be subtracted; take "
                "poses='body' or 'world'"
            )
        if quantity == "ee_pose_matrix" and find.is_relative(block[0]):
            raise ArgumentError(
                f"{context}: {vector.names[block[0]]} is of a matrix, whose numbers cannot be subtracted or composed; "
                "take space='eef', or name it in absolute="
            )
        groups += [find.single(dim) for dim in block]
    _check_composed(vector, groups, poses=poses, rotation=rotation, context=context)
    return _describe(vector, groups, relative_to, poses)


def _check_composed(
    vector: Dimensions, groups: Sequence[Group], *, poses: Poses, rotation: Rotation | None, context: str
) -> None:
    """Raise ArgumentError if nothing is a pose, and dimensions of unknown quantity may have been meant."""
    unknown = [name for dim, name in enumerate(vector.names) if _at(vector.quantities, dim) in _UNKNOWN]
    chosen = f"poses={poses!r}" if poses != "componentwise" else f"rotation={rotation!r}"
    if (poses != "componentwise" or rotation) and unknown and not any(group.is_pose for group in groups):
        raise ArgumentError(
            f"{context}: {chosen} finds no rotation, as the quantity of {', '.join(unknown)!s:.100} is unknown; "
            "declare it in the registry, or give columns as {'path': ..., 'quantity': 'ee_rotation_euler', ...}"
        )


class _Finder:
    """Finder of the reference of each dimension."""

    def __init__(
        self,
        vector: Dimensions,
        reference: Dimensions,
        *,
        relative_to: RelativeTo | None,
        absolute: Sequence[str],
        context: str,
        is_state: bool,
    ) -> None:
        self._vector, self._context, self._is_state = vector, context, is_state
        self._is_own = is_state or relative_to == "first"
        self._reference = vector if self._is_own else reference
        self._relative_to, self._absolute = relative_to, absolute

    def is_relative(self, dim: int) -> bool:
        """Return whether a dimension is measured against the reference; raise ArgumentError if it is one already."""
        vector = self._vector
        quantity, name, kind = _at(vector.quantities, dim), vector.names[dim], vector.kinds[dim]
        stays = any(fnmatchcase(text, pattern) for text in (name, quantity) for pattern in self._absolute)
        # Columns that a caller chose, and LeRobot's without a declaration: only their names tell a gripper.
        stays |= quantity in _UNKNOWN and any(pattern in name for pattern in self._absolute)
        is_measured = self._is_state and (quantity.endswith(_MEASURED) or kind in ("velocity", "displacement"))
        if self._relative_to is None or stays or kind == "flag" or is_measured:
            return False
        if kind in ("displacement", "velocity"):
            raise ArgumentError(
                f"{self._context}: {name} is a {kind}, so it is relative already; leave relative_to out, or name it in "
                "absolute="
            )
        return True

    def single(self, dim: int) -> Group:
        """Return the group of one dimension."""
        return Group((dim,), reference_position=self._match((dim,)) if self.is_relative(dim) else ())

    def pose(self, position: tuple[int, ...], block: tuple[int, ...], rotation: Rotation | None) -> Group:
        """Return the group of a position and a rotation."""
        stored = _form(self._vector, block)
        assert stored is not None
        self._check_radians(block, stored)
        _check_order(self._vector, block, stored, context=self._context)
        result = rotation or stored
        group = Group(position, block, stored=stored, result=result, is_pose=True)
        relative = {self.is_relative(dim) for dim in (*position, *block)}
        if relative == {False}:
            return group
        if len(relative) == 2:
            raise ArgumentError(f"{self._context}: position and rotation of a pose are both absolute, or none of them")
        reference_block = self._match(block, is_rotation=True)
        reference_stored = _form(self._reference, reference_block) or stored
        _check_order(self._reference, reference_block, reference_stored, context=f"{self._context}: state")
        return Group(
            position,
            block,
            self._match(position) if position else (),
            reference_block,
            stored,
            reference_stored,
            result,
            is_pose=True,
        )

    def _match(self, dims: tuple[int, ...], *, is_rotation: bool = False) -> tuple[int, ...]:
        """Return the dimensions of the reference for those of a group."""
        if self._is_own:
            return dims
        vector, reference = self._vector, self._reference
        if is_rotation:
            parts = [dims]
            candidates = [block for block in _blocks(vector) if _form(vector, block)]
            targets = [block for block in _blocks(reference) if _form(reference, block)]
        else:
            quantity = _at(vector.quantities, dims[0])
            parts = [(dim,) for dim in dims]
            candidates = [(dim,) for dim in _dims_of(vector, quantity) if self._is_target(dim)]
            targets = [(dim,) for dim in _dims_of(reference, quantity) if reference.kinds[dim] == "absolute"]
        matches = tuple(dim for block in _counterparts(vector, candidates, reference, targets, parts) for dim in block)
        if matches:
            if not is_rotation:
                self._check_units(dims, matches)
            return matches
        names = ", ".join(f"{vector.names[dim]} ({_at(vector.quantities, dim) or 'unknown'})" for dim in dims)
        available = ", ".join(
            f"{name} ({_at(reference.quantities, dim) or 'unknown'})" for dim, name in enumerate(reference.names)
        )
        raise ArgumentError(
            f"{self._context}: no counterpart of {names} in the state, which has {available or 'nothing'}; choose the "
            "state with state=Vector(columns=...) or a space, or name the dimensions in absolute="
        )

    def _is_target(self, dim: int) -> bool:
        return self._vector.kinds[dim] in ("target", "absolute")

    def _check_units(self, dims: Sequence[int], matches: Sequence[int]) -> None:
        for dim, match in zip(dims, matches, strict=True):
            unit, other = _at(self._vector.units, dim), _at(self._reference.units, match)
            if unit and other and unit != other:
                raise ArgumentError(
                    f"{self._context}: {self._vector.names[dim]} is in {unit}, {self._reference.names[match]} of the "
                    f"state in {other}; declare one unit for both"
                )

    def _check_radians(self, block: Sequence[int], stored: Stored) -> None:
        units = {_at(self._vector.units, dim) for dim in block} - {"", "rad"}
        if units and stored in ("euler_xyz", "rotvec"):
            raise ArgumentError(f"{self._context}: angles are in {units.pop()}; rotations are composed of radians")


def _check_order(dimensions: Dimensions, block: Sequence[int], stored: Stored, *, context: str) -> None:
    """Raise ArgumentError if a rotation has an order that cannot be composed; without one it is the usual one."""
    order = _at(getattr(dimensions, "orders", ()), block[0])
    is_euler = stored == "euler_xyz"
    if order in ("", "xyz") if is_euler else order != "unknown":
        return
    expected = "xyz" if is_euler else "xyzw or wxyz"
    raise ArgumentError(
        f"{context}: the order of {', '.join(dimensions.names[dim] for dim in block)} is {order}; expected {expected}; "
        "correct it in the registry, or take space='eef'"
    )


def _at(texts: Sequence[str], dim: int) -> str:
    return texts[dim] if dim < len(texts) else ""


def _dims_of(vector: Dimensions, quantity: str) -> list[int]:
    return [dim for dim, other in enumerate(vector.quantities) if other == quantity]


def _counterparts(
    vector: Dimensions,
    candidates: Sequence[tuple[int, ...]],
    reference: Dimensions,
    targets: Sequence[tuple[int, ...]],
    parts: Sequence[tuple[int, ...]],
) -> list[tuple[int, ...]]:
    """Return the target of each part, by names that tell all candidates apart, or by order if the counts are equal."""

    def names(dimensions: Dimensions, block: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(dimensions.names[dim] for dim in block)

    by_names = {names(reference, target): target for target in targets}
    if len(by_names) == len(targets) and all(names(vector, candidate) in by_names for candidate in candidates):
        return [by_names[names(vector, part)] for part in parts]
    if len(candidates) == len(targets):
        return [targets[candidates.index(part)] for part in parts]
    return []


def _form(vector: Dimensions, block: Sequence[int]) -> Stored | None:
    """Return the form of a block of dimensions that is one rotation, else None."""
    quantity = _at(vector.quantities, block[0]) if block else ""
    stored = ROTATION_QUANTITIES.get(quantity)
    if stored == "quat_xyzw" and _at(getattr(vector, "orders", ()), block[0]) == "wxyz":
        stored = "quat_wxyz"
    return stored if stored is not None and len(block) == SIZES[stored] else None


def _blocks(vector: Dimensions) -> list[tuple[int, ...]]:
    """Return successive dimensions of one quantity: positions by three, rotations by the size of their form."""
    blocks: list[tuple[int, ...]] = []
    dim = 0
    while dim < len(vector.names):
        quantity = _at(vector.quantities, dim)
        size = 3 if quantity == "ee_position" else SIZES.get(ROTATION_QUANTITIES.get(quantity, "matrix"), 1)
        size = size if quantity == "ee_position" or quantity in ROTATION_QUANTITIES else 1
        stop = dim
        while stop < min(dim + size, len(vector.names)) and _at(vector.quantities, stop) == quantity:
            stop += 1
        blocks.append(tuple(range(dim, stop)))
        dim = stop
    return blocks


def _describe(
    vector: Dimensions, groups: Sequence[Group], relative_to: RelativeTo | None, poses: Poses
) -> RelativeVector:
    """Return the conversion with the description of its result."""
    names: list[str] = []
    kinds: list[str] = []
    quantities: list[str] = []
    units: list[str] = []
    positions = []
    for group in groups:
        first = len(names)
        for dim in group.position:
            names.append(vector.names[dim])
            kinds.append("displacement" if group.is_relative else vector.kinds[dim])
            quantities.append(_at(vector.quantities, dim))
            units.append(_at(vector.units, dim))
        middle = len(names)
        if group.rotation:
            own_names = [vector.names[dim] for dim in group.rotation]
            keeps_form = not group.is_pose or group.result == group.stored
            prefix = _shared_prefix(own_names)
            names += own_names if keeps_form else [prefix + name for name in NAMES[group.result]]
            size = len(names) - middle
            kinds += ["displacement" if group.is_relative else vector.kinds[group.rotation[0]]] * size
            quantities += [QUANTITY_OF_FORM.get(group.result, "") if group.is_pose else ""] * size
            units += [""] * size
        positions.append((slice(first, middle), slice(middle, len(names))))
    described = (tuple(names), tuple(kinds), tuple(quantities), tuple(units))
    return RelativeVector(*described, tuple(groups), tuple(positions), len(vector.names), relative_to, poses)


def _shared_prefix(names: Sequence[str]) -> str:
    """Return the start that all names share, up to the last underscore: ``left_`` of an arm, or nothing."""
    starts = {name.rpartition("_")[0] for name in names}
    return f"{starts.pop()}_" if len(starts) == 1 and "" not in starts else ""
