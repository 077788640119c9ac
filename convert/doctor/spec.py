"""Vectors and instructions of a dataset, from the registry entry in its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from convert.index.derived import part_names
from convert.registry.dataset import Part
from convert.verify.vectors import spec_parts
from stream.format.names import VECTORS
from stream.storage.errors import FormatError


class Dimension(NamedTuple):
    """Name of one dimension of an action or state, and the part that it belongs to."""

    name: str
    part: Part


class Description(NamedTuple):
    """Content of a registry entry.

    Attributes:
        dimensions: Dimensions of ``action`` and of ``state``.
        informative: Whether episodes have instructions that describe them.
    """

    dimensions: dict[str, tuple[Dimension, ...]]
    informative: bool


def describe(spec: Mapping[str, Any]) -> Description:
    """Return the description of a registry entry; raises FormatError if it has another form."""
    dimensions: dict[str, tuple[Dimension, ...]] = {}
    for vector in VECTORS:
        parts = spec_parts(spec, vector)
        owners = [part for part in parts for _ in range(part.dims)]
        dimensions[vector] = tuple(map(Dimension, part_names(parts), owners))
    instruction = spec.get("instruction")
    if instruction is not None and not isinstance(instruction, Mapping):
        raise FormatError(f"field spec.instruction: found {instruction!r:.80}, expected a mapping or null")
    return Description(dimensions, bool(instruction and instruction.get("informative", True)))
