"""The vectors and instructions of a dataset, dimension by dimension, as the registry entry in a manifest says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from convert.index.derived import part_names
from convert.registry.dataset import Gripper
from convert.verify.vectors import spec_parts
from stream.format.names import DERIVED
from stream.storage.errors import FormatError


@dataclass(frozen=True)
class Dimension:
    """One dimension of an action or state.

    Attributes:
        name: Name of the dimension.
        path: Feature that the dimension comes from.
        mode: Mode of the registry's part.
        quantity: Quantity of the registry's part.
        gripper: Values that mean open and closed, None if the registry does not know.
    """

    name: str
    path: str
    mode: str
    quantity: str
    gripper: Gripper | None


@dataclass(frozen=True)
class Description:
    """What a registry entry says of a dataset.

    Attributes:
        dimensions: Dimensions of ``action`` and of ``state``.
        informative: Whether episodes have instructions that describe them.
    """

    dimensions: dict[str, tuple[Dimension, ...]]
    informative: bool

    @cached_property
    def moving(self) -> list[int]:
        """Dimensions of the action that are no flags."""
        return [dim for dim, found in enumerate(self.dimensions["action"]) if found.mode != "flag"]

    @cached_property
    def smooth(self) -> list[int]:
        """Dimensions of the action that are neither flags nor grippers."""
        return [dim for dim in self.moving if self.dimensions["action"][dim].quantity != "gripper"]

    def grippers(self, which: str) -> list[tuple[int, Dimension, Gripper]]:
        """Return the dimensions of a vector that are grippers with a convention."""
        return [
            (dim, found, found.gripper) for dim, found in enumerate(self.dimensions[which]) if found.gripper is not None
        ]


def describe(spec: Mapping[str, Any]) -> Description:
    """Return what is needed of the registry entry in a manifest. Raises FormatError if it is of another form."""
    dimensions = {}
    for vector in DERIVED:
        parts = spec_parts(spec, vector)
        owners = [part for part in parts for _ in range(part.dims)]
        dimensions[vector] = tuple(
            Dimension(name, part.path, part.mode, part.quantity, part.gripper)
            for name, part in zip(part_names(parts), owners, strict=True)
        )
    instruction = spec.get("instruction")
    if instruction is not None and not isinstance(instruction, Mapping):
        raise FormatError(f"field spec.instruction: found {instruction!r:.80}, expected a mapping or null")
    return Description(dimensions, bool(instruction and instruction.get("informative", True)))
