"""One hash of a batch, to compare two runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def digest(batch: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a batch in hex: its keys in alphabetical order, dtypes, shapes and contents.

    Args:
        batch: Arrays and tensors on the CPU enter by their bytes, lists and texts by their JSON.
    """
    total = hashlib.sha256()
    for key in sorted(batch):
        value = batch[key]
        if isinstance(value, list | str | int | float | bool | None):
            total.update(json.dumps([key, value], ensure_ascii=False).encode())
            continue
        array = np.ascontiguousarray(value)
        total.update(json.dumps([key, array.dtype.str, list(np.shape(value))]).encode())
        total.update(array.data if array.size else b"")
    return total.hexdigest()
