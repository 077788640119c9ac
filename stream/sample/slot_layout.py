"""Layouts of vectors: named slots, described in YAML, to which datasets map by quantity, side, unit and name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from stream.base.arguments import check_whole_number
from stream.base.configs import CONFIGS, Entry, list_faults, read_given_yaml
from stream.base.errors import ArgumentError, closest
from stream.format.fields import Kind, Quantity
from stream.sample.relative import RelativeVector
from stream.sample.relative_plan import QUANTITY_OF_FORM, Dimensions
from stream.sample.rotations import SIZES, Rotation
from stream.sample.slots import Slots

QUANTITIES: tuple[str, ...] = get_args(Quantity)
MOST_NUMBERS = 4096
_LAYOUTS = CONFIGS / "slots"
_EXPECTED = "a width such as 32, the name of a layout, a YAML file of one, or a mapping like such a file"

Side = Literal["left", "right", "single", "none"]
"""Side in the name of a dimension; ``single``: none, in a dataset that has this quantity without sides."""


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _check_quantity(value: Any) -> Any:
    if value not in QUANTITIES:
        raise ValueError(f"found {value!r:.80}; {closest(value, QUANTITIES, noun='quantities')}")
    return value


_Quantity = Annotated[str, BeforeValidator(_check_quantity)]
_Texts = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class Slot(Entry):
    """A slot: some successive numbers of a layout, and the dimensions that go there.

    A dimension goes to the first slot that takes it. A slot without ``quantity``, ``rotation`` and ``match`` is
    reserved: nothing goes there.

    Attributes:
        first: Its first number.
        length: Count of its numbers; by default that of ``rotation`` or ``names``, or 1.
        quantity: Quantities of the registry that it takes, which follow one another in this order; any if empty.
        rotation: Form of the rotation that it takes.
        side: Sides that it takes; any if empty.
        kind: Kinds that it takes; any if empty. A relative dimension has the kind that the dataset stores.
        unit: Unit of its numbers; None for any.
        names: Ends of the names of its numbers, such as x, y, z. Dimensions with these names go there, others in their
            order if they are as many.
        match: Patterns of names of dimensions, in lower case; ``*`` matches any text. Any name if empty.
    """

    first: Annotated[int, Field(strict=True, ge=0, lt=MOST_NUMBERS)]
    length: Annotated[int, Field(strict=True, ge=1, le=MOST_NUMBERS)] | None = None
    quantity: Annotated[tuple[_Quantity, ...], BeforeValidator(_as_tuple)] = ()
    rotation: Rotation | None = None
    side: Annotated[tuple[Side, ...], BeforeValidator(_as_tuple)] = ()
    kind: Annotated[tuple[Kind, ...], BeforeValidator(_as_tuple)] = ()
    unit: str | None = None
    names: _Texts = ()
    match: _Texts = ()

    @model_validator(mode="after")
    def _check_length(self) -> Slot:
        if self.rotation and self.quantity:
            raise ValueError(f"rotation {self.rotation} with quantity {', '.join(self.quantity)}; leave one out")
        for reason, count in (("rotation", SIZES[self.rotation] if self.rotation else 0), ("names", len(self.names))):
            if count and count != self.size:
                raise ValueError(f"length {self.size}, and {reason} has {count} numbers")
        return self

    @property
    def size(self) -> int:
        """Count of its numbers."""
        return self.length or (SIZES[self.rotation] if self.rotation else len(self.names)) or 1

    @property
    def quantities(self) -> tuple[str, ...]:
        """Quantities that it takes, that of its rotation included."""
        return (QUANTITY_OF_FORM[self.rotation],) if self.rotation else self.quantity

    def takes(self, dim: Dimension) -> bool:
        """Return whether a dimension goes here, whatever its unit."""
        if not self.quantities and not self.match:
            return False
        return (
            (not self.quantities or dim.quantity in self.quantities)
            and (not self.side or not dim.sides.isdisjoint(self.side))
            and (not self.kind or dim.kind in self.kind)
            and (not self.match or any(fnmatchcase(dim.name.lower(), pattern) for pattern in self.match))
        )


class Layout(Entry):
    """A layout; one without slots keeps the order of a dataset's dimensions and pads them.

    Attributes:
        size: Count of its numbers.
        slots: Slots by name.
        description: Model and source.
    """

    size: Annotated[int, Field(strict=True, ge=1, le=MOST_NUMBERS)]
    slots: dict[str, Slot] = Field(default_factory=dict)
    description: str = ""

    @model_validator(mode="after")
    def _check_ends(self) -> Layout:
        for name, slot in self.slots.items():
            if slot.first + slot.size > self.size:
                raise ValueError(f"slot {name} ends at {slot.first + slot.size}, the layout has {self.size} numbers")
        return self


class Dimension(NamedTuple):
    """A dimension of a dataset's vector.

    Attributes:
        number: Its number in the vector.
        name, quantity, kind, unit: Its description.
        sides: Words for its side.
    """

    number: int
    name: str
    quantity: str
    kind: str
    unit: str
    sides: frozenset[str]


def packaged_layouts() -> list[str]:
    """Return the names of the packaged layouts."""
    return sorted(yaml_file.stem for yaml_file in _LAYOUTS.glob("*.yaml"))


def canonical_slots(argument: Any) -> int | str | dict[str, Any]:
    """Return ``slots`` in its JSON form: a width, the name of a packaged layout, or the mapping of a layout.

    Raises:
        ArgumentError: It is something else, or the layout is wrong; the message names each fault.
    """
    if isinstance(argument, str) and not argument.endswith((".yaml", ".yml")):
        if argument not in packaged_layouts():
            hint = closest(argument, packaged_layouts(), noun="layouts")
            raise ArgumentError(f"slots={argument!r:.100}; expected {_EXPECTED}; {hint}")
        return argument
    if isinstance(argument, str | Path):
        return _dump(_read_file(Path(argument)))
    if isinstance(argument, Mapping):
        return _dump(_validate(dict(argument), context="slots"))
    if isinstance(argument, bool) or not hasattr(argument, "__index__"):
        raise ArgumentError(f"slots={argument!r:.100}; expected {_EXPECTED}")
    width = check_whole_number("slots", argument, least=1)
    if width > MOST_NUMBERS:
        raise ArgumentError(f"slots={width}; at most {MOST_NUMBERS:,}")
    return width


def read_layout(slots: Any) -> Layout:
    """Return the layout of ``canonical_slots``."""
    if isinstance(slots, int):
        return Layout(size=slots)
    return _packaged(slots) if isinstance(slots, str) else _validate(dict(slots), context="slots")


@lru_cache
def _packaged(name: str) -> Layout:
    return _read_file(_LAYOUTS / f"{name}.yaml")


def _read_file(layout_path: Path) -> Layout:
    return _validate(read_given_yaml(layout_path, noun="layout", context="slots: "), context=f"slots: {layout_path}")


def _validate(content: Any, *, context: str) -> Layout:
    try:
        return Layout.model_validate(content)
    except ValidationError as error:
        raise ArgumentError(list_faults(error, context=context)) from None


def _dump(layout: Layout) -> dict[str, Any]:
    return layout.model_dump(mode="json", exclude_defaults=True)


def plan_slots(
    vector: Dimensions, layout: Layout, *, conversion: RelativeVector | None = None, keeps_unknown_units: bool = False
) -> tuple[Slots, list[str]]:
    """Return the positions of a dataset's vector in a layout, and why some dimensions have none.

    Args:
        vector: Dimensions as the batch has them.
        layout: Layout.
        conversion: Conversion that made them relative or changed their rotations, if any.
        keeps_unknown_units: Whether slots with a unit take dimensions whose unit no source specifies.

    Returns:
        The slots; a line for each reason, with the names of its dimensions.
    """
    num_dims = len(vector.names)
    if not layout.slots:
        if num_dims <= layout.size:
            return Slots(layout.size, tuple(range(num_dims)), is_padding=True), []
        return Slots(layout.size, (-1,) * num_dims, is_padding=True), [f"{num_dims} numbers: {_shorten(vector.names)}"]
    positions = [-1] * num_dims
    dims_by_slot: dict[str, list[Dimension]] = {}
    reasons: dict[str, list[Dimension]] = {}
    for dim in _describe(vector, conversion):
        name, reason = _find_slot(layout, dim, keeps_unknown_units=keeps_unknown_units)
        (reasons if reason else dims_by_slot).setdefault(reason or name, []).append(dim)
    for name, unsorted_dims in dims_by_slot.items():
        slot = layout.slots[name]
        dims = sorted(unsorted_dims, key=lambda dim: (*slot.quantities, dim.quantity).index(dim.quantity))
        numbers = _order(slot, dims)
        if numbers is None:
            expected = " ".join(filter(None, (str(slot.size), slot.rotation or "", ", ".join(slot.names))))
            reasons.setdefault(f"{len(dims)} numbers for slot {name}, which has {expected}", []).extend(dims)
            continue
        slot_positions = [slot.first + number for number in numbers]
        if not set(slot_positions).isdisjoint(positions):
            reasons.setdefault(f"numbers of slot {name} are taken by another slot", []).extend(dims)
            continue
        for dim, position in zip(dims, slot_positions, strict=True):
            positions[dim.number] = position
    lines = [f"{_list(dims)}: {reason}" for reason, dims in reasons.items()]
    return Slots(layout.size, tuple(positions)), lines


def _describe(vector: Dimensions, conversion: RelativeVector | None) -> list[Dimension]:
    """Return the description of each dimension."""
    num_dims = len(vector.names)
    kinds = list(vector.kinds)
    if conversion is not None:
        # A relative pose goes where the pose would go.
        for group, parts in zip(conversion.groups, conversion.positions, strict=True):
            for part in parts if group.is_relative else ():
                kinds[part] = ["target"] * (part.stop - part.start)
    quantities, units = ((*texts, *[""] * (num_dims - len(texts))) for texts in (vector.quantities, vector.units))
    orders = getattr(vector, "orders", ()) or ("",) * num_dims
    sides = [_side(name) for name in vector.names]
    has_sides = {quantity for quantity, side in zip(quantities, sides, strict=True) if side != "none"}
    described = []
    for number, (name, quantity, side) in enumerate(zip(vector.names, quantities, sides, strict=True)):
        words = {side} | ({"single"} if quantity not in has_sides else set())
        # w comes first there, and no form of ``rotation`` has it.
        quantity += "_wxyz" if orders[number] == "wxyz" else ""
        described.append(Dimension(number, name, quantity, kinds[number], units[number], frozenset(words)))
    return described


def _side(name: str) -> str:
    """Return the side in a name.

    >>> _side("left_waist"), _side("observation/arm_RIGHT[0]"), _side("bright")
    ('left', 'right', 'none')
    """
    sides = {"left", "right"}.intersection(re.split(r"[^a-z]+", name.lower()))
    return sides.pop() if len(sides) == 1 else "none"


def _find_slot(layout: Layout, dim: Dimension, *, keeps_unknown_units: bool) -> tuple[str, str]:
    """Return the slot of a dimension, or why it has none."""
    for name, slot in layout.slots.items():
        if not slot.takes(dim):
            continue
        if not slot.unit or dim.unit in ("", slot.unit) or (dim.unit == "unknown" and keeps_unknown_units):
            return name, ""
        remedy = "; take on_unknown_units='keep'" if dim.unit == "unknown" else ""
        return "", f"the unit is {dim.unit}, slot {name} has {slot.unit}{remedy}"
    if not dim.quantity:
        return "", "the quantity is unknown, and no slot has these names"
    takers = [slot for slot in layout.slots.values() if dim.quantity in slot.quantities]
    if not takers and dim.quantity.startswith("ee_rotation"):
        for form in (slot.rotation for slot in layout.slots.values() if slot.rotation):
            return "", f"the layout has rotations as {form}; take rotation={form!r}"
    if not takers:
        return "", "no slot has this quantity"
    kinds = dict.fromkeys(kind for slot in takers for kind in slot.kind)
    if dim.kind not in kinds and all(slot.kind for slot in takers):
        return "", f"the slots of this quantity take only {' and '.join(kinds)} values"
    sides = dict.fromkeys(side for slot in takers for side in slot.side)
    return "", f"the slots of this quantity have other names, or other sides: {', '.join(sides) or 'any'}"


def _order(slot: Slot, dims: Sequence[Dimension]) -> list[int] | None:
    """Return the number in the slot of each dimension, None if they do not fit."""
    if slot.names:
        ends = [re.split(r"[^A-Za-z0-9]+", dim.name)[-1] for dim in dims]
        if set(ends) <= set(slot.names) and len(set(ends)) == len(ends):
            return [slot.names.index(end) for end in ends]
    is_exact = bool(slot.names or slot.rotation)
    return list(range(len(dims))) if len(dims) == slot.size or (len(dims) < slot.size and not is_exact) else None


def _list(dims: Sequence[Dimension]) -> str:
    """Return names of dimensions with what they are."""
    kinds = dict.fromkeys(f"{dim.quantity or 'unknown quantity'}, {dim.kind}" for dim in dims)
    return f"{_shorten([dim.name for dim in dims])} ({'; '.join(kinds)})"


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
