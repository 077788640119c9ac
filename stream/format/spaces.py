"""Canonical spaces of action and state, as the manifest's ``spec`` declares them for a dataset.

Each space that a dataset maps to is a derived column of ``steps``, such as ``action_oxe``. NaN marks a number that
the dataset does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, cast

from pydantic import BaseModel, Field

from stream.format.names import DerivedName, VectorName

SpaceName = Literal["oxe", "eef_delta", "eef", "joint"]
"""The action of OpenVLA and Octo; the same in m and rad a step; a pose as state; positions of joints."""

EEF_NAMES = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
"""Dimensions of every space but ``joint``. The gripper is 1 when open and 0 when closed."""


def derived_column(vector_name: VectorName, space: SpaceName | None) -> DerivedName:
    """Return the column of ``steps`` with a vector in a space, or as the registry has it.

    >>> derived_column("action", "oxe")
    'action_oxe'
    """
    if space == "eef":
        vector_name = "state"  # an action in this space is the measured pose
    return cast(DerivedName, f"{vector_name}_{space}" if space else vector_name)


def space_names(space: SpaceName, terms: Iterable[tuple[int, Sequence[str] | None]]) -> tuple[str, ...]:
    """Return the names of the dimensions of a space, of terms with a count and maybe names; joints count from 1."""
    if space != "joint":
        return EEF_NAMES
    names: list[str] = []
    for dims, term_names in terms:
        names += term_names or [f"joint_{len(names) + 1 + number}" for number in range(dims)]
    return tuple(names)


class SpaceTerm(BaseModel):
    """Some dimensions of a space, from one column or without one."""

    dims: Annotated[int, Field(strict=True, ge=1, le=1000)]
    names: tuple[str, ...] | None = None


_Count = Annotated[int, Field(strict=True, ge=0)]
_Terms = Annotated[tuple[SpaceTerm, ...], Field(max_length=100)]


class Space(BaseModel):
    """A loader's fields of a space; a vector without terms has no column.

    Attributes:
        unknown_units: Names of the dimensions whose unit is not known.
        unmapped: Reason why the dataset does not map to this space.
        drop_first, drop_last: Count of steps without an action at the start and the end of an episode.
    """

    action: _Terms = ()
    state: _Terms = ()
    unknown_units: tuple[str, ...] = ()
    unmapped: str | None = None
    drop_first: _Count = 0
    drop_last: _Count = 0

    def names(self, space: SpaceName, vector: VectorName) -> tuple[str, ...]:
        """Return the names of the dimensions of a column, empty if the column does not exist."""
        vector_terms = self.action if vector == "action" and space != "eef" else self.state
        return space_names(space, ((term.dims, term.names) for term in vector_terms)) if vector_terms else ()
