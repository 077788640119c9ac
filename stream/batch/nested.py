"""Batches with dicts inside, as some trainers take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def map_values(function: Callable[[str, Any], Any], batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch with the results of a function of key and value, also in the dicts inside.

    >>> map_values(lambda key, value: value + 1, {"image": {"base": 1}, "state": 2})
    {'image': {'base': 2}, 'state': 3}
    """
    return {
        key: map_values(function, value) if isinstance(value, dict) else function(key, value)
        for key, value in batch.items()
    }
