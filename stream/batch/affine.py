"""Linear maps of actions and states, one for each dataset. Workers apply them without knowing the statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream.batch.spec import Batch


@dataclass(frozen=True, eq=False)
class Affine:
    """A linear map of one vector for each of D datasets: ``(value - centre) * scale``, clipped to [low, high].

    The maps keep dimensions that do not vary, have no statistics, or are flags.

    Attributes:
        centre: float32 [D, size].
        scale: float32 [D, size].
        low: float32 [D, size].
        high: float32 [D, size].
    """

    centre: np.ndarray
    scale: np.ndarray
    low: np.ndarray
    high: np.ndarray


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
        xp: ``numpy``, ``jax.numpy`` or ``torch``.
    """
    result = dict(batch)
    dataset = batch["dataset"]
    for key, table in tables.items():
        values = batch[key]
        rows = dataset.reshape(tuple(dataset.shape) + (1,) * (values.ndim - 1 - dataset.ndim))
        centre, scale, low, high = (xp.asarray(part)[rows] for part in vars(table).values())
        result[key] = xp.where(batch[f"{key}_mask"], xp.clip((values - centre) * scale, low, high), 0.0)
    return result
