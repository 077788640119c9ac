"""Histograms of the dimensions of actions and states, from a sample of the steps of a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from pairstream.browse.browsed_root import BrowsedRoot
from pairstream.browse.facts import first_split
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


class Histogram(NamedTuple):
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


class Comparison(NamedTuple):
    """Histograms of several datasets; all histograms of a dimension have the same bins.

    Attributes:
        names: Names of the dimensions.
        rows: Histograms of each dataset in the order of ``names``; None for a dimension that it lacks.
        sampled: Count of the steps in the sample of each dataset.
    """

    names: tuple[str, ...]
    rows: Mapping[str, Sequence[Histogram | None]]
    sampled: Mapping[str, int]


def compare(
    root: BrowsedRoot, reference: tuple[str, str], other_datasets: Sequence[str], vector_name: DerivedName, scale: Scale
) -> Comparison:
    """Return the histograms of the dimensions of a vector of one split next to those of the first split of others.

    Values are ``raw`` as stored, or ``normalised`` by the quantiles of each dataset's statistics.

    Raises:
        ArgumentError: The dataset or split does not exist.
        FormatError: The index of the reference is damaged; other damaged datasets are left out.
    """
    others = {name: first_split(root.dataset(name)) for name in other_datasets}
    split_names = dict([reference]) | others | dict([reference])
    samples = {}
    for name, split_name in split_names.items():
        try:
            if sample := _sample(root, name, split_name, vector_name, scale):
                samples[name] = sample
        except (FormatError, OSError):
            # The pages of a damaged dataset report the damage; the pages of other datasets omit the dataset.
            if name == reference[0]:
                raise
    if reference[0] not in samples:
        return Comparison((), {}, {})
    names = samples[reference[0]][0]
    histograms: dict[str, list[Histogram | None]] = {name: [] for name in samples}
    for label in names:
        # Dimensions of several datasets are compared by name, and have the same bins.
        columns = {name: values[:, dims.index(label)] for name, (dims, values) in samples.items() if label in dims}
        ends = _bounds(list(columns.values()))
        for name, row in histograms.items():
            row.append(_histogram(columns[name], *ends) if name in columns else None)
    return Comparison(names, histograms, {name: len(values) for name, (_, values) in samples.items()})


def _sample(
    root: BrowsedRoot, dataset_name: str, split_name: str, vector_name: DerivedName, scale: Scale
) -> tuple[tuple[str, ...], np.ndarray] | None:
    """Return the names of the dimensions and values of some steps, float64 [n, dims]; None without the vector."""
    step_table = root.index(dataset_name, split_name).steps
    if vector_name not in step_table.columns or not len(step_table):
        return None
    values = step_table.take(vector_name, sample_rows(len(step_table))).astype(np.float64)
    values = values.reshape(len(values), -1)
    # The kernel maps a large part of the file around each row.
    step_table.forget()
    dataset = root.dataset(dataset_name)
    splits = dataset.manifest.statistics.values()
    names = next((split[vector_name].names for split in splits if vector_name in split), EEF_NAMES)
    return names, _normalise(dataset, split_name, vector_name, values) if scale == "normalised" else values


def sample_rows(num_rows: int) -> np.ndarray:
    """Return the rows of a sample of a table: all of a small one, else runs of neighbours, equally far apart.

    >>> len(sample_rows(100)), len(sample_rows(10_000_000))
    (100, 16384)
    """
    if num_rows <= _BLOCKS * _BLOCK:
        return np.arange(num_rows)
    run_starts = np.linspace(0, num_rows - _BLOCK, _BLOCKS).astype(np.int64)
    return (run_starts[:, None] + np.arange(_BLOCK)).ravel()


def _normalise(dataset: Dataset, split_name: str, vector_name: DerivedName, raw_values: np.ndarray) -> np.ndarray:
    """Return values as ``normalize="q01_q99"`` gives them, grippers and flags as they are."""
    stored_statistics = dataset.manifest.statistics.get(split_name, {}).get(vector_name)
    if stored_statistics is None:
        return raw_values
    numbers: dict[str, Any] = {name: np.array(getattr(stored_statistics, name), np.float64) for name in NUMBERS}
    statistics = VectorStatistics(names=stored_statistics.names, count=stored_statistics.count, **numbers)
    parts = [part for part in getattr(dataset.fields, vector_name, ()) for _ in part.indices]
    is_unscaled = np.array([name.rpartition("/")[2] == "gripper" for name in stored_statistics.names])
    is_flag = np.zeros(len(is_unscaled), bool)
    if len(parts) == len(is_unscaled):
        is_unscaled |= np.array([part.quantity == "gripper" for part in parts])
        is_flag |= np.array([part.kind == "flag" for part in parts])
    statistics = replace(statistics, mask=_METHOD.mask(statistics, kept_dims=is_unscaled, flag_dims=is_flag))
    affine = Affine.identity(1, raw_values.shape[1])
    _METHOD.fill(affine, 0, statistics, clip=_METHOD.clip)
    return np.asarray(affine.apply(raw_values))


def _bounds(columns: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the ends of the bins, which span almost all values of the first dataset and of most others."""
    finite_columns = [finite for column in columns if len(finite := column[np.isfinite(column)])]
    if not finite_columns:
        return 0.0, 1.0
    low_ends, high_ends = np.array([np.percentile(finite, (0.5, 99.5)) for finite in finite_columns]).T
    low_end = float(min(low_ends[0], np.percentile(low_ends, 20)))
    high_end = float(max(high_ends[0], np.percentile(high_ends, 80)))
    return (low_end - 0.5, high_end + 0.5) if low_end == high_end else (low_end, high_end)


def _histogram(values: np.ndarray, low_end: float, high_end: float) -> Histogram | None:
    finite_values = values[np.isfinite(values)]
    if not len(finite_values):
        return None
    bin_counts, _ = np.histogram(np.clip(finite_values, low_end, high_end), BINS, (low_end, high_end))
    least, most = float(finite_values.min()), float(finite_values.max())
    num_nonfinite = len(values) - len(finite_values)
    return Histogram(bin_counts / len(finite_values), low_end, high_end, least, most, num_nonfinite)
