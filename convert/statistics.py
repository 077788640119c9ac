"""Statistics of the action and state vectors of a converted split, exact, from its sidecars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from convert.registry import Part
from stream.format import open_sidecar
from stream.manifest import Statistics

_DIGITS = 9


def column_values(array: pa.Array) -> np.ndarray:
    """Return a numeric sidecar column as float32 [rows, values]; null rows are NaN."""
    rows = len(array)
    nulls = array.null_count
    values = array
    if isinstance(array.type, pa.FixedSizeListType):
        size = array.type.list_size
        values = array.values[array.offset * size : (array.offset + rows) * size]
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float32).reshape(rows, -1)
    if nulls:
        numbers[np.asarray(array.is_null())] = np.nan
    return numbers


def part_names(parts: Sequence[Part]) -> tuple[str, ...]:
    """Return one name a dimension of the vector: the registry's, or ``path[i]``."""
    names: list[str] = []
    for part in parts:
        selected = part.select if part.select is not None else range(part.dims)
        names += part.names if part.names is not None else [f"{part.path}[{i}]" for i in selected]
    return tuple(names)


def vector_statistics(sidecars: Sequence[Path], parts: Sequence[Part]) -> Statistics:
    """Return the statistics of a vector over all steps of the given ``steps`` sidecars.

    One column is in memory at a time (4 bytes x steps x its dimensions); quantiles are exact.
    """
    columns: list[dict[str, float | int | None]] = []
    count = 0
    for part in parts:
        values = _gather(sidecars, part)
        count = len(values)
        columns += [_describe(values[:, dim]) for dim in range(values.shape[1])]
    return Statistics(
        names=part_names(parts),
        count=count,
        **{key: tuple(column[key] for column in columns) for key in _describe(np.zeros(0, np.float32))},
    )


def _gather(sidecars: Sequence[Path], part: Part) -> np.ndarray:
    select = list(part.select) if part.select is not None else slice(None)
    chunks = []
    for path in sidecars:
        table = open_sidecar(path)
        for chunk in table.column(part.path).chunks:
            chunks.append(column_values(chunk)[:, select].copy())
    return np.concatenate(chunks) if chunks else np.zeros((0, part.dims), np.float32)


def _describe(values: np.ndarray) -> dict[str, float | int | None]:
    finite = values[np.isfinite(values)]
    result: dict[str, float | int | None] = {"nonfinite": len(values) - len(finite)}
    if len(finite) == 0:
        return result | dict.fromkeys(("mean", "std", "min", "max", "q01", "q99"))
    exact = finite.astype(np.float64)
    low, high = np.quantile(exact, (0.01, 0.99))
    numbers = {
        "mean": exact.mean(),
        "std": exact.std(),
        "min": exact.min(),
        "max": exact.max(),
        "q01": low,
        "q99": high,
    }
    # Sums depend in their last bits on how a processor orders them; 9 digits are more than a float32 has.
    return result | {key: float(f"{number:.{_DIGITS}g}") for key, number in numbers.items()}
