"""Linear maps of actions and states, one for each dataset; workers apply them without knowing of statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream.batch.spec import Batch


@dataclass(frozen=True, eq=False)
class Affine:
    """``value * scale + shift`` for each dataset, float32 [D, size]; ``low`` and ``high`` bound the result.

    Dimensions that do not vary, that have no statistics, or that are flags keep their values.
    """

    scale: np.ndarray
    shift: np.ndarray
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
    """Return a batch with normalised vectors; ``xp`` is ``numpy`` or ``jax.numpy``, of which its arrays are."""
    result = dict(batch)
    for key, table in tables.items():
        values, mask = batch[key], batch[f"{key}_mask"]
        scale, shift, low, high = (
            xp.expand_dims(xp.asarray(part)[batch["dataset"]], tuple(range(1, values.ndim - 1)))
            for part in (table.scale, table.shift, table.low, table.high)
        )
        result[key] = xp.where(mask, xp.clip(values * scale + shift, low, high), np.float32(0))
    return result
