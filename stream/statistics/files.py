"""JSON files of statistics: ours, and the sets of numbers in files of other trainers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stream.base.errors import ArgumentError
from stream.base.reading import read_limited
from stream.format.statistics import NUMBERS
from stream.statistics.vectors import VectorStatistics
from stream.storage.files import write_atomically

_MAX_BYTES = 50_000_000
_HEAD = {"format": "stream-normalize", "version": 1}


def encode_statistics(statistics: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of ``Normalize.save``."""
    encoded = {
        vector_key: {dataset_name: _to_json(numbers) for dataset_name, numbers in by_dataset.items()}
        for vector_key, by_dataset in statistics.items()
    }
    return {**_HEAD, "settings": dict(settings), "statistics": encoded}


def decode_statistics(
    content: Any, *, context: str | Path
) -> tuple[dict[Any, dict[str, VectorStatistics]], dict[str, Any]]:
    """Return statistics by key and dataset, and settings; raise ArgumentError if ``content`` is something else."""
    if not isinstance(content, Mapping) or {field: content.get(field) for field in _HEAD} != _HEAD:
        raise ArgumentError(f"{context}: not a normalisation of Normalize.save of version {_HEAD['version']}")
    try:
        decoded: dict[Any, dict[str, VectorStatistics]] = {}
        for vector_key, by_dataset in content["statistics"].items():
            decoded[vector_key] = {}
            for dataset_name, numbers in by_dataset.items():
                vector_context = f"{context}: {vector_key} of {dataset_name}"
                decoded[vector_key][dataset_name] = from_json(numbers, tuple(numbers["names"]), vector_context)
        return decoded, dict(content["settings"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ArgumentError(f"{context}: field missing or of the wrong type ({error!r:.100})") from None


def from_json(content: Any, dim_names: tuple[str, ...], context: str) -> VectorStatistics:
    """Return a set of statistics; missing numbers are NaN, and without ``mask`` all dimensions are normalised.

    Raises:
        ArgumentError: It is not a set of statistics, or has another count of dimensions.
    """
    try:
        num_dims = len(dim_names)
        numbers = {name: np.array(content.get(name) or [math.nan] * num_dims, np.float64) for name in NUMBERS}
        numbers["mask"] = np.array(content.get("mask", [True] * num_dims), bool)
        count, source = int(content.get("count", 0)), dict(content.get("source", {"names": list(dim_names)}))
    except (AttributeError, TypeError, ValueError) as error:
        raise ArgumentError(f"{context}: not a set of statistics ({error!r:.100})") from None
    for name, values in numbers.items():
        if values.shape[-1:] != (num_dims,) or values.ndim > 2 or values.shape != numbers["mean"].shape:
            raise ArgumentError(
                f"{context}: {name} has {values.size} numbers, expected {num_dims}: {', '.join(dim_names)}"
            )
    return VectorStatistics(names=dim_names, count=count, source=source, **numbers)


def plain_numbers(values: np.ndarray) -> list[Any]:
    """Return numbers [dims] or [W, dims] as JSON has them, None for NaN."""
    if values.ndim > 1:
        return list(map(plain_numbers, values))
    return [None if math.isnan(value) else value for value in values.tolist()]


def _to_json(statistics: VectorStatistics) -> dict[str, Any]:
    numbers = {name: plain_numbers(getattr(statistics, name)) for name in NUMBERS}
    mask, source = statistics.mask.tolist(), statistics.source
    return {"names": statistics.names, "count": statistics.count, **numbers, "mask": mask, "source": source}


def write_json(json_path: str | Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, and make its folder."""
    write_atomically(Path(json_path), json.dumps(content, indent=1) + "\n", parents=True)


def read_json(json_path: str | Path) -> dict[str, Any]:
    """Return the object of a JSON file; raise ArgumentError if it cannot be read or is not an object."""
    try:
        content = json.loads(read_limited(json_path, _MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{json_path}: not a JSON file of statistics ({error!s:.100})") from None
    except OSError as error:
        raise ArgumentError(f"{json_path}: cannot be read ({error.strerror})") from None
    if not isinstance(content, dict):
        raise ArgumentError(f"{json_path}: not a JSON file of statistics")
    return content
