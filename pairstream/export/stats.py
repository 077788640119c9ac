"""Statistics of features as LeRobot stores them: per episode in ``meta/episodes``, of all in ``meta/stats.json``."""

from __future__ import annotations

from typing import Any

import numpy as np

_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_FRAMES, _PIXELS = 32, 96
"""Frames of an episode that are sampled, and pixels of a side of each."""
Statistics = dict[str, list[Any]]


def describe_numbers(values: np.ndarray) -> Statistics:
    """Return the statistics of each dimension of [n] or [n, dims], without values that are not finite; 0 without any.

    >>> describe_numbers(np.array([1.0, 3.0]))["mean"], describe_numbers(np.array([1.0, 3.0]))["count"]
    ([2.0], [2])
    """
    table = np.asarray(values, np.float64).reshape(len(values), -1)
    columns = [column[np.isfinite(column)] for column in table.T]
    columns = [column if len(column) else np.zeros(1) for column in columns]
    statistics: Statistics = {}
    for name, reduce in (("min", np.min), ("max", np.max), ("mean", np.mean), ("std", np.std)):
        statistics[name] = [float(reduce(column)) for column in columns]
    quantiles = np.array([np.quantile(column, list(_QUANTILES.values())) for column in columns])
    statistics |= dict(zip(_QUANTILES, quantiles.T.tolist(), strict=True))
    return {**statistics, "count": [len(table)]}


class PixelCounts:
    """Histogram of the pixels of a camera, of some frames of each episode and not of every pixel."""

    def __init__(self) -> None:
        self.frames = 0
        self._counts = np.zeros((3, 256), np.int64)

    @staticmethod
    def sampled(num_steps: int) -> set[int]:
        """Return the steps of an episode whose frames are sampled, evenly spread."""
        return set(np.linspace(0, num_steps - 1, min(num_steps, _FRAMES)).round().astype(int).tolist())

    def add(self, pixels: np.ndarray) -> None:
        """Add a frame, uint8 [H, W, 3]."""
        stride = max(1, -(-max(pixels.shape[:2]) // _PIXELS))
        for channel, channel_counts in enumerate(self._counts):
            channel_counts += np.bincount(pixels[::stride, ::stride, channel].ravel(), minlength=256)
        self.frames += 1

    def merge(self, episode_counts: PixelCounts) -> None:
        """Add the frames of another histogram."""
        self.frames += episode_counts.frames
        self._counts += episode_counts._counts

    def describe(self) -> Statistics:
        """Return the statistics of each channel, from 0 to 1, each [3][1][1]; 0 without frames."""
        levels = np.arange(256) / 255
        totals = np.maximum(self._counts.sum(axis=1), 1)
        means = self._counts @ levels / totals
        statistics = {"mean": means, "std": np.sqrt(np.maximum(self._counts @ levels**2 / totals - means**2, 0))}
        share = self._counts.cumsum(axis=1) / totals[:, None]
        # The smallest level with at least this share of pixels at or below it.
        for name, quantile in _QUANTILES.items():
            statistics[name] = levels[np.minimum((share < quantile).sum(axis=1), 255)]
        seen = self._counts > 0
        statistics |= {"min": levels[seen.argmax(axis=1)], "max": levels[255 - seen[:, ::-1].argmax(axis=1)]}
        if not self.frames:
            statistics = {name: np.zeros(3) for name in statistics}
        shaped = {name: values.reshape(3, 1, 1).tolist() for name, values in statistics.items()}
        return {**shaped, "count": [self.frames]}
