"""How long steps took, as figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def step_times(seconds: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Return mean, median, percentiles and maximum in milliseconds.

    >>> step_times([0.25, 0.5, 0.75])
    {'mean': 500.0, 'p50': 500.0, 'p90': 700.0, 'p99': 745.0, 'max': 750.0}
    """
    times = 1000 * np.asarray(seconds, np.float64)
    p50, p90, p99 = np.percentile(times, (50, 90, 99)).tolist()
    return {"mean": float(times.mean()), "p50": p50, "p90": p90, "p99": p99, "max": float(times.max())}
