"""One hash of a batch, to compare two runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


def digest(batch: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a batch in hex: its keys in alphabetical order, dtypes, shapes and contents. A
    key in a dict inside is ``outer/inner``.

    Args:
        batch: Arrays and tensors on the CPU enter by their bytes, lists and texts by their JSON.
    """
    total = hashlib.sha256()
    for key, value in sorted(_flat(batch), key=lambda item: item[0]):
        if isinstance(value, list | str | int | float | bool | None):
            total.update(json.dumps([key, value], ensure_ascii=False).encode())
            continue
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject:  # its bytes are addresses
            total.update(json.dumps([key, repr(array.tolist())]).encode())
            continue
        total.update(json.dumps([key, array.dtype.str, list(np.shape(value))]).encode())
        total.update(array.data if array.size else b"")
    return total.hexdigest()


def _flat(batch: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in batch.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value
