"""What a manifest says of the vectors and instructions of its dataset, dimension by dimension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from convert.dataset import Gripper
from stream.format import FormatError
from stream.vectors import Vector, make_vector


@dataclass(frozen=True)
class Dimension:
    """One dimension of an action or state. gripper: which values are open and closed, where the registry knows."""

    name: str
    path: str
    mode: str
    quantity: str
    gripper: Gripper | None


@dataclass(frozen=True)
class Description:
    """What is known of a dataset. informative: whether its instructions are there and say something."""

    vectors: dict[str, Vector]
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
        """Dimensions of a vector that are grippers with a convention."""
        return [
            (dim, found, found.gripper) for dim, found in enumerate(self.dimensions[which]) if found.gripper is not None
        ]


def describe(spec: Mapping[str, Any]) -> Description:
    """Take what is needed of the registry entry in a manifest. Raises FormatError if it is of another form."""
    try:
        vectors = {which: make_vector(spec.get(which) or ()) for which in ("action", "state")}
        dimensions = {}
        for which, vector in vectors.items():
            parts = [part for part in spec.get(which) or () for _ in range(part["dims"])]
            dimensions[which] = tuple(
                Dimension(
                    name,
                    str(part["path"]),
                    mode,
                    str(part.get("quantity", "other")),
                    Gripper.model_validate(part["gripper"]) if part.get("gripper") else None,
                )
                for name, mode, part in zip(vector.names, vector.modes, parts, strict=True)
            )
        instruction = spec.get("instruction")
        return Description(vectors, dimensions, bool(instruction and instruction.get("informative", True)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"field spec: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from None
