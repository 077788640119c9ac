"""Transforms of batches. They import neither Grain nor pytest, so that workers start as fast as they do in a run."""

from __future__ import annotations

import copy
import sys
import time
from typing import Any

import numpy as np

from stream.base.random_numbers import row_random

Batch = dict[str, Any]


class Jitter:
    """Brightness of each row's frames by its own random number, and the number."""

    def map(self, element: Batch) -> Batch:
        drawn = row_random(element, seed=11, size=2)
        shift = (drawn[:, 0] * 64).astype(np.uint8)
        return {**element, "frames": element["frames"] + shift[:, None, None, None, None], "drawn": drawn}


class Halve:
    """Halves the actions."""

    def map(self, element: Batch) -> Batch:
        return {**element, "action": element["action"] / 2}


class Negative:
    """Another array, another size, and something that is no array and larger than a socket holds."""

    def map(self, element: Batch) -> Batch:
        return {
            "inverse": 255 - element["frames"][:, :1],
            "twice": np.repeat(element["frames"], 2, axis=1),
            "note": {"a": bytes(1 << 20)},
        }


class Noise:
    """Random numbers of each batch."""

    def random_map(self, element: Batch, rng: np.random.Generator) -> Batch:
        return {**element, "noise": rng.random((len(element["sample"]), 3))}


class Slow:
    """Half a second a batch."""

    def map(self, element: Batch) -> Batch:
        time.sleep(0.5)
        return element


class FailsAt:
    """Cannot transform the batch that begins with a sample."""

    def __init__(self, sample: int, error: Exception | None = None) -> None:
        self._sample = sample
        self._error = error or ValueError(f"FailsAt: sample {sample} is unlucky")

    def map(self, element: Batch) -> Batch:
        if element["sample"][0] == self._sample:
            # The traceback of one that is kept would hold the iterator.
            raise copy.copy(self._error)
        return element


class Modules:
    """The modules that are imported where the batch is made."""

    def map(self, element: Batch) -> Batch:
        return {**element, "modules": sorted(name for name in sys.modules if "." not in name)}
