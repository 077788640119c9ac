"""Exact statistics of one dimension of a vector, in little memory beyond its values."""

from __future__ import annotations

import math

import numpy as np

_DIGITS = 9
_CHUNK = 1 << 16
"""Count of numbers that are added up at once, the same on every machine."""
_QUANTILES = {"q01": 0.01, "q99": 0.99}
EXTREME_RANGES = 20.0
"""Distance from q01 or q99, in units of q99 - q01, beyond which a value ruins scaling by minimum and maximum."""
NUMBERS = ("mean", "std", "min", "max", *_QUANTILES)


def describe_values(values: np.ndarray) -> dict[str, float | int | None]:
    """Return the statistics of one dimension, float32 [n]; ``values`` may be reordered.

    Numbers are rounded to nine digits, more than a float32 has: the last bits of sums depend on the processor.

    Returns:
        ``nonfinite``, the count of values left out; ``mean``, ``std`` (ddof 0), ``min``, ``max``, ``q01`` and ``q99``
        of the others, None if there are none.
    """
    counted = np.isfinite(values)
    finite = values if counted.all() else values[counted]
    nonfinite = len(values) - len(finite)
    if not len(finite):
        return {"nonfinite": nonfinite, **dict.fromkeys(NUMBERS)}
    mean = _sum(finite, 0.0, power=1) / len(finite)
    numbers = {
        "mean": mean,
        "std": math.sqrt(_sum(finite, mean, power=2) / len(finite)),
        "min": float(finite.min()),
        "max": float(finite.max()),
        **_quantiles(finite),
    }
    return {"nonfinite": nonfinite, **{key: float(f"{number:.{_DIGITS}g}") for key, number in numbers.items()}}


def describe_weighted(values: np.ndarray, weights: np.ndarray) -> dict[str, float | int | None]:
    """Return the statistics of values with weights, as ``describe_values`` does; equal weights give the same.

    The quantiles interpolate between the middles of the weights that values have on the line of all weights.

    Args:
        values: float32 [n].
        weights: float64 [n]; values of weight 0 do not count.
    """
    finite = np.isfinite(values)
    kept = finite & (weights > 0)
    nonfinite = int((~finite).sum())
    if not kept.any():
        return {"nonfinite": nonfinite, **dict.fromkeys(NUMBERS)}
    order = np.flatnonzero(kept)[np.argsort(values[kept], kind="stable")]
    values, weights = values[order].astype(np.float64), weights[order] / weights[order].sum()
    mean = float(values @ weights)
    place = weights.cumsum() - (weights + weights[0]) / 2
    numbers = {
        "mean": mean,
        "std": math.sqrt((values - mean) ** 2 @ weights),
        "min": float(values[0]),
        "max": float(values[-1]),
        **{key: float(np.interp(share * place[-1], place, values)) for key, share in _QUANTILES.items()},
    }
    return {"nonfinite": nonfinite, **{key: float(f"{number:.{_DIGITS}g}") for key, number in numbers.items()}}


def _sum(values: np.ndarray, less: float, *, power: int) -> float:
    chunks = (values[start : start + _CHUNK].astype(np.float64) - less for start in range(0, len(values), _CHUNK))
    return math.fsum(float((chunk**power).sum()) for chunk in chunks)


def _quantiles(values: np.ndarray) -> dict[str, float]:
    """Return the quantiles as numpy interpolates them in float64; reorders the values."""
    last = len(values) - 1
    ranks = {key: share * last for key, share in _QUANTILES.items()}
    values.partition(sorted({min(int(rank) + more, last) for rank in ranks.values() for more in (0, 1)}))
    found = {}
    for key, rank in ranks.items():
        low, high = float(values[int(rank)]), float(values[min(int(rank) + 1, last)])
        found[key] = low + (high - low) * (rank - int(rank))
    return found
