"""Statistics of the vectors of a loader, for trainers that normalise by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stream.format.names import VectorName
from stream.format.statistics import NUMBERS

if TYPE_CHECKING:
    from stream.loader.loader import Loader


def mixture_statistics(loader: Loader, *, split: str) -> dict[VectorName, dict[str, np.ndarray]]:
    """Return the statistics of all members together.

    Args:
        loader: Loader.
        split: TFDS split of the statistics.

    Returns:
        ``mean``, ``std``, ``min``, ``max``, ``q01`` and ``q99``, float32 [dims], of each vector that there is.

    Raises:
        ArgumentError: The members have different dimensions; load them in one space.
    """
    # Workers import this module, and need no Grain.
    from stream.loader.normalize import Normalize

    names = loader.data.spec.vector_names
    made = Normalize(loader, per="mixture", keys=names, split=split).statistics
    members = {name: next(iter(made[name].values())) for name in names}
    return {name: {kind: getattr(each, kind).astype(np.float32) for kind in NUMBERS} for name, each in members.items()}
