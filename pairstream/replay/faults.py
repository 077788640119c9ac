"""Values of a batch that no training should see: NaN, infinity, and numbers far outside the dataset's range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pairstream.view.window import steps_text
from stream.batch.vector_windows import interval_positions
from stream.format.names import VECTORS, VectorName
from stream.format.spaces import derived_column
from stream.format.statistics import EXTREME_RANGES
from stream.loader.open_mixture import OpenMixture
from stream.order.reference import SampleRef

_MOST = 3
"""Dimensions that are named for a row."""


def find_faults(batch: Mapping[str, Any], sample_refs: list[SampleRef], mixture: OpenMixture) -> dict[int, list[str]]:
    """Return the faults of ``action`` and ``state`` of a batch before its transforms, by row."""
    faults_by_row: dict[int, list[str]] = {}
    for vector_name in VECTORS:
        if vector_name not in batch:
            continue
        for row, sample_ref in enumerate(sample_refs):
            values, mask = (np.asarray(batch[batch_key][row]) for batch_key in (vector_name, f"{vector_name}_mask"))
            # The intervals between frames follow one another.
            shape = math.prod(values.shape[:-1]), values.shape[-1]
            for message in _vector_faults(values.reshape(shape), mask.reshape(shape), vector_name, sample_ref, mixture):
                faults_by_row.setdefault(row, []).append(message)
    return faults_by_row


def find_nonfinite(batch: Mapping[str, Any], num_rows: int) -> dict[int, list[str]]:
    """Return the faults of rows with NaN or infinity under any key of a batch, by row."""
    faults_by_row: dict[int, list[str]] = {}
    for batch_key, values in arrays_of(batch, num_rows):
        if values.dtype.kind in "fc":
            is_bad = ~np.isfinite(values.reshape(num_rows, -1))
            for row in np.flatnonzero(is_bad.any(axis=1)).tolist():
                fault = f"{batch_key}: {int(is_bad[row].sum()):,} values are NaN or infinite"
                faults_by_row.setdefault(row, []).append(fault)
    return faults_by_row


def arrays_of(batch: Mapping[str, Any], num_rows: int, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield every array of a batch with a row for each sample; keys of nested dicts are joined by ``/``."""
    for batch_key, value in batch.items():
        if isinstance(value, Mapping):
            yield from arrays_of(value, num_rows, f"{prefix}{batch_key}/")
        elif hasattr(value, "shape") and len(value.shape) and value.shape[0] == num_rows:
            yield f"{prefix}{batch_key}", np.asarray(value)


def _vector_faults(
    values: np.ndarray, mask: np.ndarray, vector_name: VectorName, sample_ref: SampleRef, mixture: OpenMixture
) -> Iterator[str]:
    member_number = mixture.names.index(sample_ref.dataset)
    dimension_names = (mixture.spec.actions if vector_name == "action" else mixture.spec.states)[member_number].names
    steps = sample_ref.step + _distances(vector_name, mixture, member_number, len(values))
    is_finite = np.isfinite(values)
    for fault_name, is_bad in (("NaN", np.isnan(values) & mask), ("infinite", ~is_finite & ~np.isnan(values) & mask)):
        if is_bad.any():
            bad_steps = steps[is_bad.any(axis=1)]
            context = f" at {steps_text(int(bad_steps[0]), int(bad_steps[-1]))}" if len(values) > 1 else ""
            yield f"{vector_name}: {fault_name} in {_named(dimension_names, is_bad)}{context}"
    lowest, highest = _range(vector_name, sample_ref, mixture, member_number, values.shape[1])
    with np.errstate(invalid="ignore"):
        is_beyond = np.maximum(values - highest, lowest - values) > EXTREME_RANGES * (highest - lowest)
    is_outside = is_beyond & (highest > lowest) & mask & is_finite
    if is_outside.any():
        step, dimension = (int(positions[0]) for positions in np.nonzero(is_outside))
        usual_range = f"98 % of the dataset is from {lowest[dimension]:.4g} to {highest[dimension]:.4g}"
        yield f"{vector_name}: {_named(dimension_names, is_outside)} is {values[step, dimension]:.4g}, {usual_range}"


def _distances(vector_name: VectorName, mixture: OpenMixture, member_number: int, num_rows: int) -> np.ndarray:
    """Return the distance from t of each row of a vector in steps, int64 [num_rows]."""
    spec = mixture.spec
    span = spec.action_span if vector_name == "action" else spec.state_span
    distances = span.strides[member_number] * np.arange(num_rows)
    if vector_name == "action" and spec.has_intervals:
        positions = interval_positions(spec.windows)[member_number]
        distances = (positions if spec.reduction is None else positions[:, :1]).ravel()
    return span.firsts[member_number] + distances


def _named(dimension_names: tuple[str, ...], is_bad: np.ndarray) -> str:
    bad_names = [dimension_names[dimension] for dimension in np.flatnonzero(is_bad.any(axis=0))]
    return ", ".join(bad_names[:_MOST]) + (f" and {len(bad_names) - _MOST} more" if len(bad_names) > _MOST else "")


def _range(
    vector_name: VectorName, sample_ref: SampleRef, mixture: OpenMixture, member_number: int, num_dimensions: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the 1st and 99th percentile of each dimension, or NaN if the manifest lacks it."""
    percentiles = np.full((2, num_dimensions), np.nan)
    vector = mixture.vectors[vector_name][member_number]
    column = derived_column(vector_name, vector.space)
    statistics = mixture.datasets[member_number].manifest.statistics.get(sample_ref.split, {}).get(column)
    if statistics is not None and vector.columns is None:
        for percentile, quantile in zip(percentiles, (statistics.q01, statistics.q99), strict=True):
            percentile[: len(quantile)] = [np.nan if value is None else value for value in quantile]
    return percentiles[0], percentiles[1]
