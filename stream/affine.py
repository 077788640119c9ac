"""Linear maps of actions and states, one for each dataset; workers apply them without knowing of statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stream.spec import Batch


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
        result = dict(element)
        dataset = element["dataset"]
        for key, table in self.tables.items():
            values, mask = element[key], element[f"{key}_mask"]
            shape = (slice(None), None) if values.ndim == 3 else (slice(None),)
            scaled = values * table.scale[dataset][shape] + table.shift[dataset][shape]
            np.clip(scaled, table.low[dataset][shape], table.high[dataset][shape], out=scaled)
            result[key] = np.where(mask, scaled, np.float32(0))
        return result
