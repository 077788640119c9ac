"""Linear maps of actions and states, one for each dataset. Workers apply them without knowing the statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream.batch.spec import Batch


@dataclass(frozen=True, eq=False)
class Affine:
    """A linear map of one vector for each of D datasets: ``(value - centre) * scale + shift``, clipped to [low, high].

    A dimension that keeps its values has the identity. Scale 0 makes all values ``shift``, and back ``centre``.

    Attributes:
        centre, scale, shift, low, high: float64 [D, size].
    """

    centre: np.ndarray
    scale: np.ndarray
    shift: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def identity(cls, datasets: int, size: int) -> Affine:
        """Return the map that keeps all values."""
        return cls(*(np.full((datasets, size), value) for value in (0.0, 1.0, 0.0, -np.inf, np.inf)))

    def inverse(self) -> Affine:
        """Return the way back; it does not know what was clipped."""
        back = np.divide(1, self.scale, out=np.zeros_like(self.scale), where=self.scale != 0)
        unbounded = np.full_like(back, np.inf)
        return Affine(self.shift, back, self.centre, -unbounded, unbounded)

    def apply(self, values: Any) -> Any:
        """Return mapped values, [..., size], of numpy, jax or torch; the parts have their rows and library."""
        return ((values - self.centre) * self.scale + self.shift).clip(self.low, self.high)


@dataclass(frozen=True, eq=False)
class AffineMap:
    """A transform of batches.

    Attributes:
        tables: Linear map of each vector, by key of the batch.
    """

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
    dataset = batch["dataset"]
    for key, table in tables.items():
        values = batch[key]
        rows = dataset.reshape(tuple(dataset.shape) + (1,) * (values.ndim - 1 - dataset.ndim))
        mapped = Affine(*(xp.asarray(part)[rows] for part in vars(table).values())).apply(values)
        found = xp.where(batch[f"{key}_mask"], mapped, 0.0)
        result[key] = found if found.dtype == values.dtype else found.astype(values.dtype)
    return result
