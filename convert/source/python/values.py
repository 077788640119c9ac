"""Plain values by name from what a function of a user yields."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from convert.errors import MalformedEpisode
from convert.picture import PICTURES
from convert.source.files.plain import describe, is_array


def flatten(values: object, *, context: str) -> dict[str, Any]:
    """Return nested mappings as one, names joined with a slash; raises MalformedEpisode if it is none."""
    if not isinstance(values, Mapping):
        raise MalformedEpisode(f"{context} is {describe(values)}, expected a mapping of names to values")
    flattened: dict[str, Any] = {}
    for value_name, value in values.items():
        if isinstance(value, Mapping):
            nested = flatten(value, context=f"{context}/{value_name}")
            flattened |= {f"{value_name}/{name}": nested_value for name, nested_value in nested.items()}
        else:
            flattened[str(value_name)] = _normalise(value)
    return flattened


def _normalise(value: Any) -> Any:
    """Return tensors and lists of equal arrays as one array, and an array of encoded pictures as a list."""
    if isinstance(value, list | tuple) and value and isinstance(value[0], np.ndarray):
        with contextlib.suppress(ValueError):
            return np.stack(value)
    if hasattr(value, "__array__") and not is_array(value):
        return np.asarray(value)
    is_bytes = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "OS" and len(value) > 0
    return list(value) if is_bytes and isinstance(value[0], bytes) and value[0].startswith(PICTURES) else value
