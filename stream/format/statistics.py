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
        of the other values, None if there are no others.
    """
    counted = np.isfinite(values)
    finite_values = values if counted.all() else values[counted]
    nonfinite = len(values) - len(finite_values)
    if not len(finite_values):
        return {"nonfinite": nonfinite, **dict.fromkeys(NUMBERS)}
    mean = _sum(finite_values, 0.0, power=1) / len(finite_values)
    std = math.sqrt(_sum(finite_values, mean, power=2) / len(finite_values))
    extremes = {"min": float(finite_values.min()), "max": float(finite_values.max())}
    return {"nonfinite": nonfinite, **_rounded({"mean": mean, "std": std, **extremes, **_quantiles(finite_values)})}


def describe_weighted(values: np.ndarray, weights: np.ndarray) -> dict[str, float | int | None]:
    """Return the statistics of float32 [n] with weights, float64 [n], as ``describe_values`` does; 0 does not count."""
    is_finite = np.isfinite(values)
    is_counted = is_finite & (weights > 0)
    nonfinite = int((~is_finite).sum())
    if not is_counted.any():
        return {"nonfinite": nonfinite, **dict.fromkeys(NUMBERS)}
    sorted_rows = np.flatnonzero(is_counted)[np.argsort(values[is_counted], kind="stable")]
    values, weights = values[sorted_rows].astype(np.float64), weights[sorted_rows] / weights[sorted_rows].sum()
    mean = float(values @ weights)
    numbers = {
        "mean": mean,
        "std": math.sqrt((values - mean) ** 2 @ weights),
        "min": float(values[0]),
        "max": float(values[-1]),
    }
    # On a line of all weights, each value stands in the middle of its weight; quantiles interpolate between the values.
    positions = weights.cumsum() - (weights + weights[0]) / 2
    for name, quantile in _QUANTILES.items():
        numbers[name] = float(np.interp(quantile * positions[-1], positions, values))
    return {"nonfinite": nonfinite, **_rounded(numbers)}


def _rounded(numbers: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{number:.{_DIGITS}g}") for name, number in numbers.items()}


def _sum(finite_values: np.ndarray, center: float, *, power: int) -> float:
    chunks = (finite_values[start : start + _CHUNK] for start in range(0, len(finite_values), _CHUNK))
    return math.fsum(float(((chunk.astype(np.float64) - center) ** power).sum()) for chunk in chunks)


def _quantiles(values: np.ndarray) -> dict[str, float]:
    """Return the quantiles as numpy interpolates them in float64; reorders the values."""
    last = len(values) - 1
    positions = {name: share * last for name, share in _QUANTILES.items()}
    lower_ranks = {int(position) for position in positions.values()}
    values.partition(sorted(lower_ranks | {min(rank + 1, last) for rank in lower_ranks}))
    quantiles = {}
    for name, position in positions.items():
        rank = int(position)
        lower, upper = float(values[rank]), float(values[min(rank + 1, last)])
        quantiles[name] = lower + (upper - lower) * (position - rank)
    return quantiles
