"""Histograms of the dimensions of actions and states, from a sample of the steps of a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from pairstream.browse.facts import first_split
from pairstream.browse.opened import Opened
from stream.base.errors import FormatError
from stream.format.catalog import Dataset
from stream.format.names import DerivedName
from stream.format.spaces import EEF_NAMES
from stream.format.statistics import NUMBERS
from stream.statistics.affine import Affine
from stream.statistics.methods import METHODS
from stream.statistics.vectors import VectorStatistics

Scale = Literal["raw", "normalised"]
SCALES: tuple[Scale, ...] = get_args(Scale)
VECTORS: dict[DerivedName, str] = {
    "action": "action",
    "state": "state",
    "action_oxe": "action, space oxe",
    "action_eef_delta": "action, space eef_delta",
    "action_joint": "action, space joint",
    "state_eef": "state, space eef",
    "state_joint": "state, space joint",
}
"""Columns with histograms, and their titles."""
_BLOCKS, _BLOCK = 64, 256
"""Number of runs of steps that a sample has, and steps in a run: neighbours lie in one page of the disk."""
BINS = 48
_METHOD = METHODS["q01_q99"]


@dataclass(frozen=True, eq=False)
class Histogram:
    """Values of one dimension of a dataset.

    Attributes:
        shares: Share of the values in each bin, float64 [BINS].
        low, high: Ends of the bins; values beyond count in the outermost ones.
        least, most: Least and largest value of the sample.
        nonfinite: Count of NaN and infinite values in the sample.
    """

    shares: np.ndarray
    low: float
    high: float
    least: float
    most: float
    nonfinite: int


@dataclass(frozen=True, eq=False)
class Comparison:
    """Histograms of datasets side by side; all of a dimension have the same bins.

    Attributes:
        names: Names of the dimensions.
        rows: Histograms of each dataset in the order of ``names``; None for a dimension that it lacks.
        sampled: Count of the steps in the sample of each dataset.
    """

    names: tuple[str, ...]
    rows: Mapping[str, Sequence[Histogram | None]]
    sampled: Mapping[str, int]


def compare(
    opened: Opened, first: tuple[str, str], others: Sequence[str], vector: DerivedName, scale: Scale
) -> Comparison:
    """Return the histograms of a vector of one split beside those of other datasets.

    Args:
        opened: Root.
        first: Dataset and split, whose dimensions are shown.
        others: Further datasets, of which the training split is sampled.
        vector: Column of ``steps``.
        scale: ``raw`` as stored, or ``normalised`` by the quantiles of each dataset's own statistics.

    Raises:
        ArgumentError: The dataset or split does not exist.
        FormatError: The index of the dataset is damaged; another that is damaged is left out.
    """
    splits = {name: first_split(opened.dataset(name)) for name in others} | dict([first])
    order = [first[0], *(name for name in others if name != first[0])]
    found = {}
    for name in order:
        try:
            if sample := _sample(opened, name, splits[name], vector, scale):
                found[name] = sample
        except (FormatError, OSError):
            # The pages of a damaged dataset say what is wrong with it; those of the others go without it.
            if name == first[0]:
                raise
    if first[0] not in found:
        return Comparison((), {}, {})
    names = found[first[0]][0]
    rows: dict[str, list[Histogram | None]] = {name: [] for name in found}
    for dim, label in enumerate(names):
        # A dimension of another dataset is the one of the same name; without names of its own, the same number.
        columns = {
            name: values[:, own.index(label) if label in own else dim]
            for name, (own, values) in found.items()
            if label in own or name == first[0]
        }
        low, high = _bounds(list(columns.values()))
        for name, histograms in rows.items():
            histograms.append(_histogram(columns[name], low, high) if name in columns else None)
    return Comparison(names, rows, {name: len(values) for name, (_, values) in found.items()})


def dimension_names(dataset: Dataset, vector: DerivedName) -> tuple[str, ...]:
    """Return the names of the dimensions of a vector, as the statistics in the manifest have them."""
    for statistics in dataset.manifest.statistics.values():
        if vector in statistics:
            return statistics[vector].names
    return EEF_NAMES


def _sample(
    opened: Opened, name: str, split: str, vector: DerivedName, scale: Scale
) -> tuple[tuple[str, ...], np.ndarray] | None:
    """Return the names of the dimensions and values of some steps, float64 [n, dims]; None without the vector."""
    steps = opened.index(name, split).steps
    if vector not in steps.columns or not len(steps):
        return None
    values = steps.take(vector, sample_rows(len(steps))).astype(np.float64)
    values = values.reshape(len(values), -1)
    # The kernel maps a large part of the file around each row.
    steps.forget()
    dataset = opened.dataset(name)
    names = dimension_names(dataset, vector)
    return names, _normalise(dataset, split, vector, values) if scale == "normalised" else values


def sample_rows(count: int) -> np.ndarray:
    """Return the rows of a sample of a table: all of a small one, else runs of neighbours, equally far apart.

    >>> len(sample_rows(100)), len(sample_rows(10_000_000))
    (100, 16384)
    """
    if count <= _BLOCKS * _BLOCK:
        return np.arange(count)
    starts = np.linspace(0, count - _BLOCK, _BLOCKS).astype(np.int64)
    return (starts[:, None] + np.arange(_BLOCK)).ravel()


def _normalise(dataset: Dataset, split: str, vector: DerivedName, values: np.ndarray) -> np.ndarray:
    """Return values as ``normalize="q01_q99"`` gives them, grippers and flags as they are."""
    stored = dataset.manifest.statistics.get(split, {}).get(vector)
    if stored is None:
        return values
    numbers: dict[str, Any] = {key: np.array(getattr(stored, key), np.float64) for key in NUMBERS}
    found = VectorStatistics(names=stored.names, count=stored.count, **numbers)
    kinds = [(part.kind, part.quantity) for part in getattr(dataset.fields, vector, ()) for _ in part.indices]
    left = np.array([name.rpartition("/")[2] == "gripper" for name in stored.names])
    flags = np.zeros(len(left), bool)
    if len(kinds) == len(left):
        left |= np.array([quantity == "gripper" for _, quantity in kinds])
        flags |= np.array([kind == "flag" for kind, _ in kinds])
    found = replace(found, mask=_METHOD.mask(found, kept_dims=left, flag_dims=flags))
    table = Affine.identity(1, values.shape[1])
    _METHOD.fill(table, 0, found, clip=_METHOD.clip)
    return np.asarray(table.apply(values))


def _bounds(columns: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the ends of the bins: almost all values of the first dataset lie between them, and of most others."""
    ends = [np.percentile(values, (0.5, 99.5)) for each in columns if len(values := each[np.isfinite(each)])]
    if not ends:
        return 0.0, 1.0
    lows, highs = np.array(ends).T
    low = float(min(lows[0], np.percentile(lows, 20)))
    high = float(max(highs[0], np.percentile(highs, 80)))
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _histogram(values: np.ndarray, low: float, high: float) -> Histogram | None:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    counts, _ = np.histogram(np.clip(finite, low, high), BINS, (low, high))
    return Histogram(
        shares=counts / len(finite),
        low=low,
        high=high,
        least=float(finite.min()),
        most=float(finite.max()),
        nonfinite=len(values) - len(finite),
    )
