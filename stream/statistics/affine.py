"""Linear maps of actions and states, one for each dataset. Workers apply them without knowing the statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from stream.base.errors import ArgumentError
from stream.batch.spec import Batch
from stream.sample.slots import Slots


@dataclass(frozen=True, eq=False)
class Affine:
    """A linear map of one vector for each of D datasets: ``(value - centre) * scale + shift``, clipped to [low, high].

    A dimension that keeps its values has the identity. Scale 0 makes all values ``shift``, and back ``centre``.

    Attributes:
        centre, scale, shift, low, high: float64 [D, size], or [D, W, size] with a map for each step.
    """

    centre: np.ndarray
    scale: np.ndarray
    shift: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def identity(cls, *shape: int) -> Affine:
        """Return the map that keeps all values."""
        return cls(*(np.full(shape, value) for value in (0.0, 1.0, 0.0, -np.inf, np.inf)))

    def inverse(self) -> Affine:
        """Return the way back; it does not know what was clipped."""
        inverse_scale = np.divide(1, self.scale, out=np.zeros_like(self.scale), where=self.scale != 0)
        unbounded = np.full_like(inverse_scale, np.inf)
        return Affine(self.shift, inverse_scale, self.centre, -unbounded, unbounded)

    def apply(self, values: Any) -> Any:
        """Return mapped values, [..., size], of numpy, jax or torch; the parts have their rows and library."""
        return ((values - self.centre) * self.scale + self.shift).clip(self.low, self.high)


@dataclass(frozen=True, eq=False)
class AffineMap:
    """A transform of batches.

    Attributes:
        tables: Linear map of each vector, by key of the batch.
    """

    is_normalization: ClassVar[bool] = True
    """True, so that states are dropped after it."""

    tables: Mapping[str, Affine]

    def map(self, element: Batch) -> Batch:
        """Return the batch with its vectors mapped, float32 as before; where the mask is False, values are 0."""
        return apply_tables(self.tables, element, xp=np)


def apply_tables(tables: Mapping[str, Affine], batch: Batch, *, xp: Any) -> Batch:
    """Return a batch with normalised vectors.

    Args:
        tables: Linear map of each vector, by key of the batch.
        batch: Arrays of ``xp``.
        xp: ``numpy``, which computes in float64; ``jax.numpy`` or ``torch``, which compute in the type of the tables.
    """
    result = dict(batch)
    dataset_numbers = batch["dataset"]
    for vector_key, affine in tables.items():
        values = batch[vector_key]
        num_own = affine.centre.ndim - 1
        table_rows = dataset_numbers.reshape(
            tuple(dataset_numbers.shape) + (1,) * (values.ndim - num_own - dataset_numbers.ndim)
        )
        mapped = Affine(*(xp.asarray(column)[table_rows] for column in vars(affine).values())).apply(values)
        masked = xp.where(batch[f"{vector_key}_mask"], mapped, 0.0)
        result[vector_key] = masked if masked.dtype == values.dtype else masked.astype(values.dtype)
    return result


def in_layout(
    table: Affine, values: Any, slots: Slots, *, direction: Literal["put", "take"]
) -> tuple[Affine, Any, int]:
    """Return a table and values in the numbers of the layout (``put``) or in the dimensions of the dataset (``take``).

    Numbers that have no source become 0 in the layout, and NaN in the dataset.
    """
    num_expected = len(slots.positions) if direction == "put" else slots.size
    shape = tuple(getattr(values, "shape", ()))
    if not shape or shape[-1] != num_expected:
        side = "dimensions of the dataset" if direction == "put" else "numbers of the layout"
        raise ArgumentError(f"values: shape {shape}; expected [..., {num_expected}], all {side}")
    sources = slots.dims if direction == "put" else slots.indices
    has_source, values = sources >= 0, values[..., np.maximum(sources, 0)]
    parts = vars(table)
    if direction == "take":
        parts = {name: part[..., np.maximum(sources, 0)] for name, part in parts.items()}
    fill = 0.0 if direction == "put" else np.nan
    identity = {"centre": 0.0, "scale": 0.0, "shift": fill, "low": -np.inf, "high": np.inf}
    table = Affine(**{name: np.where(has_source, part, identity[name]) for name, part in parts.items()})
    return table, values, len(sources)
