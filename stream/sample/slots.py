"""Positions of a dataset's dimensions in a layout that all datasets of a mixture share. Only numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Slots:
    """Positions of one dataset's dimensions in a layout.

    Attributes:
        size: Numbers of the layout.
        positions: Position of each dimension of the dataset's vector; -1 for one that is left out.
        is_padding: True if the layout names no slots: dimensions keep their order, and a position means something else
            in each dataset.

    >>> Slots(4, (2, 0)).names(("x", "gripper"))
    ('gripper', '', 'x', '')
    """

    size: int
    positions: tuple[int, ...]
    is_padding: bool = False

    @cached_property
    def indices(self) -> np.ndarray:
        """Position of each dimension, int64 [D]; -1 for one that is left out."""
        return np.array(self.positions, np.int64)

    @cached_property
    def dims(self) -> np.ndarray:
        """Dimension at each position, int64 [size]; -1 for none."""
        dims = np.full(self.size, -1, np.int64)
        for dim, position in enumerate(self.positions):
            if position >= 0:
                dims[position] = dim
        return dims

    def names(self, dim_names: Sequence[str]) -> tuple[str, ...]:
        """Return the name of the dimension at each position, empty for none."""
        return tuple(dim_names[dim] if dim >= 0 else "" for dim in self.dims.tolist())

    def take(self, values: np.ndarray) -> np.ndarray:
        """Return the dataset's dimensions of values in the layout, [..., size] to [..., D]; 0 for one left out."""
        taken = values[..., np.maximum(self.indices, 0)]
        return np.where(self.indices >= 0, taken, np.zeros((), values.dtype))

    def to_json(self) -> dict[str, Any]:
        """Return the positions as JSON."""
        return {"size": self.size, "positions": list(self.positions), "is_padding": self.is_padding}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Slots:
        """Return the positions of ``to_json``; raises KeyError, TypeError or ValueError for anything else."""
        slots = cls(int(content["size"]), tuple(map(int, content["positions"])), bool(content["is_padding"]))
        if not all(-1 <= position < slots.size for position in slots.positions):
            raise ValueError(f"positions {slots.positions} in a layout of {slots.size}")
        return slots


class SlotWriter:
    """Writer of vectors into their layouts.

    Args:
        slots: Slots of each member, by vector.
    """

    def __init__(self, slots: Mapping[Any, Sequence[Slots]]) -> None:
        self._slots = slots
        self._num_dims = {name: max(len(slot.positions) for slot in by_member) for name, by_member in slots.items()}
        self._shared = {name: _shared_positions(by_member) for name, by_member in slots.items()}

    def open(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the arrays of a batch, with arrays in the dimensions of the datasets for vectors in a layout."""
        opened = dict(arrays)
        for name, num_dims in self._num_dims.items():
            for key in (name, f"{name}_mask"):
                opened[key] = np.empty((*arrays[key].shape[:-1], num_dims), arrays[key].dtype)
        return opened

    def write(
        self, opened: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray], member_numbers: np.ndarray
    ) -> None:
        """Write the vectors of ``open`` into the arrays of the batch, each row by its member; the rest is 0."""
        for name, by_member in self._slots.items():
            for key in (name, f"{name}_mask"):
                arrays[key][:] = 0
                if (shared := self._shared[name]) is not None:
                    arrays[key][..., shared] = opened[key]
                    continue
                for member in np.unique(member_numbers).tolist():
                    rows, positions = np.flatnonzero(member_numbers == member), by_member[member].indices
                    kept = np.flatnonzero(positions >= 0)
                    block = np.zeros((len(rows), *arrays[key].shape[1:]), arrays[key].dtype)
                    block[..., positions[kept]] = opened[key][rows][..., kept]
                    arrays[key][rows] = block


def _shared_positions(by_member: Sequence[Slots]) -> list[int] | None:
    """Return the positions of the longest member if those of all others are its beginning; else None."""
    longest = max((slot.positions for slot in by_member), key=len)
    is_shared = min(longest, default=0) >= 0 and all(
        slot.positions == longest[: len(slot.positions)] for slot in by_member
    )
    return list(longest) if is_shared else None
