"""Values of a batch that no training should see: NaN, infinity, and numbers far from those of the dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pairstream.view.window import steps_text
from stream.format.names import VECTORS, VectorName
from stream.format.spaces import derived_column
from stream.format.statistics import EXTREME_RANGES
from stream.loader.open_mixture import OpenMixture
from stream.order.reference import SampleRef

_MOST = 3
"""Dimensions that are named for a row."""


def find_faults(batch: Mapping[str, Any], refs: list[SampleRef], data: OpenMixture) -> dict[int, list[str]]:
    """Return what is wrong with rows of a batch before its transforms, by row.

    Args:
        batch: Batch with ``action`` or ``state``.
        refs: Origin of each row.
        data: Mixture of the batch.
    """
    found: dict[int, list[str]] = {}
    for which in VECTORS:
        if which not in batch:
            continue
        for row, ref in enumerate(refs):
            values, mask = (np.asarray(batch[key][row]) for key in (which, f"{which}_mask"))
            for text in _vector_faults(np.atleast_2d(values), np.atleast_2d(mask), which, ref, data):
                found.setdefault(row, []).append(text)
    return found


def find_nonfinite(batch: Mapping[str, Any], rows: int) -> dict[int, list[str]]:
    """Return which rows of a batch have NaN or infinity, whatever its keys are, by row."""
    found: dict[int, list[str]] = {}
    for key, values in arrays_of(batch, rows):
        if values.dtype.kind in "fc":
            bad = ~np.isfinite(values.reshape(rows, -1))
            for row in np.flatnonzero(bad.any(axis=1)).tolist():
                found.setdefault(row, []).append(f"{key}: {int(bad[row].sum()):,} values are NaN or infinite")
    return found


def arrays_of(batch: Mapping[str, Any], rows: int, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield every array of a batch with a row for each sample; keys of nested dicts are joined by ``/``."""
    for key, value in batch.items():
        if isinstance(value, Mapping):
            yield from arrays_of(value, rows, f"{prefix}{key}/")
        elif hasattr(value, "shape") and len(value.shape) and value.shape[0] == rows:
            yield f"{prefix}{key}", np.asarray(value)


def _vector_faults(
    values: np.ndarray, mask: np.ndarray, which: VectorName, ref: SampleRef, data: OpenMixture
) -> Iterator[str]:
    member = data.names.index(ref.dataset)
    names = (data.spec.actions if which == "action" else data.spec.states)[member].names
    span = data.spec.action_span if which == "action" else data.spec.state_span
    first = ref.step + span.firsts[member]
    finite = np.isfinite(values)
    for what, bad in (
        ("NaN", np.isnan(values) & mask),
        ("infinite", ~finite & ~np.isnan(values) & mask),
    ):
        if bad.any():
            steps = first + np.flatnonzero(bad.any(axis=1))
            where = f" at {steps_text(int(steps[0]), int(steps[-1]))}" if len(values) > 1 else ""
            yield f"{which}: {what} in {_named(names, bad)}{where}"
    low, high = _range(which, ref, data, member, values.shape[1])
    with np.errstate(invalid="ignore"):
        beyond = np.maximum(values - high, low - values) > EXTREME_RANGES * (high - low)
    outside = beyond & (high > low) & mask & finite
    if outside.any():
        step, dim = (int(each[0]) for each in np.nonzero(outside))
        usual = f"98 % of the dataset is from {low[dim]:.4g} to {high[dim]:.4g}"
        yield f"{which}: {_named(names, outside)} is {values[step, dim]:.4g}, {usual}"


def _named(names: tuple[str, ...], bad: np.ndarray) -> str:
    dims = [names[dim] for dim in np.flatnonzero(bad.any(axis=0))]
    return ", ".join(dims[:_MOST]) + (f" and {len(dims) - _MOST} more" if len(dims) > _MOST else "")


def _range(
    which: VectorName, ref: SampleRef, data: OpenMixture, member: int, dims: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the 1st and 99th percentile of each dimension, NaN where the manifest has none."""
    ends = np.full((2, dims), np.nan)
    column = derived_column(which, data.sample_spec.spaces.get(which))
    statistics = data.datasets[member].manifest.statistics.get(ref.split, {}).get(column)
    if statistics is not None and ref.dataset not in data.sample_spec.own_columns(which):
        for number, quantile in enumerate((statistics.q01, statistics.q99)):
            ends[number, : len(quantile)] = [np.nan if each is None else each for each in quantile]
    return ends[0], ends[1]
