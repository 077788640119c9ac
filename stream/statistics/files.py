"""JSON files of statistics: ours, and the sets of numbers in those of other trainers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stream.base.errors import ArgumentError
from stream.base.reading import read_whole
from stream.format.statistics import NUMBERS
from stream.statistics.vectors import VectorStatistics
from stream.storage.files import write_whole

_MAX_BYTES = 50_000_000
_HEAD = {"format": "stream-normalize", "version": 1}


def encode_statistics(statistics: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of ``Normalize.save``."""
    sets = {key: {name: _to_json(one) for name, one in each.items()} for key, each in statistics.items()}
    return {**_HEAD, "settings": dict(settings), "statistics": sets}


def decode_statistics(
    content: Any, *, where: str | Path
) -> tuple[dict[Any, dict[str, VectorStatistics]], dict[str, Any]]:
    """Return statistics by key and dataset, and settings; raise ArgumentError if ``content`` is something else."""
    if not isinstance(content, Mapping) or {name: content.get(name) for name in _HEAD} != _HEAD:
        raise ArgumentError(f"{where}: not a normalisation of Normalize.save of version {_HEAD['version']}")
    try:
        sets = {
            key: {name: from_json(one, tuple(one["names"]), f"{where}: {key} of {name}") for name, one in each.items()}
            for key, each in content["statistics"].items()
        }
        return sets, dict(content["settings"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ArgumentError(f"{where}: field missing or of the wrong type ({error!r:.100})") from None


def from_json(content: Any, names: tuple[str, ...], where: str) -> VectorStatistics:
    """Return a set of statistics; numbers that it lacks are NaN, and without ``mask`` all dimensions are normalised.

    Args:
        content: JSON.
        names: Names of the dimensions.
        where: File and place, for messages.

    Raises:
        ArgumentError: It is no set of statistics, or has another count of dimensions.
    """
    try:
        size = len(names)
        found = {name: np.array(content.get(name) or [math.nan] * size, np.float64) for name in NUMBERS}
        found["mask"] = np.array(content.get("mask", [True] * size), bool)
        count, source = int(content.get("count", 0)), dict(content.get("source", {"names": list(names)}))
    except (AttributeError, TypeError, ValueError) as error:
        raise ArgumentError(f"{where}: not a set of statistics ({error!r:.100})") from None
    for name, values in found.items():
        if values.shape != (size,):
            raise ArgumentError(f"{where}: {name} has {values.size} numbers, expected {size}: {', '.join(names)}")
    return VectorStatistics(names=names, count=count, source=source, **found)


def plain_numbers(values: np.ndarray) -> list[float | None]:
    """Return numbers as JSON has them, None for NaN."""
    return [None if math.isnan(value) else value for value in values.tolist()]


def _to_json(found: VectorStatistics) -> dict[str, Any]:
    numbers = {name: plain_numbers(getattr(found, name)) for name in NUMBERS}
    return {"names": found.names, "count": found.count, **numbers, "mask": found.mask.tolist(), "source": found.source}


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, and make its folder."""
    write_whole(Path(path), json.dumps(content, indent=1) + "\n", parents=True)


def read_json(path: str | Path) -> dict[str, Any]:
    """Return the object of a JSON file; raise ArgumentError if it cannot be read or is none."""
    try:
        content = json.loads(read_whole(path, _MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path}: not a JSON file of statistics ({error!s:.100})") from None
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be read ({error.strerror})") from None
    if not isinstance(content, dict):
        raise ArgumentError(f"{path}: not a JSON file of statistics")
    return content
