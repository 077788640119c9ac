"""Counters of a loader so far: batches, seconds of work and of waiting."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stream.base.errors import RecordError
from stream.batch.result import BatchResult, Timings
from stream.workers.ring import Ring

_MAX_LISTED_ERRORS = 100
"""Replaced records that are listed."""


class Counters:
    """Statistics of all iterators of a loader.

    Args:
        dataset_names: Names of the datasets.

    Attributes:
        watchers: Called with step and batch, for each batch that is returned.
        waited: Seconds that ``next`` waited.
        replaced: Count of replaced rows.
        ring: Ring of the newest iterator.
    """

    def __init__(self, dataset_names: Sequence[str]) -> None:
        self._names = dataset_names
        self._lock = threading.Lock()
        self._counts = np.zeros(len(dataset_names), np.int64)
        self._batches = self.replaced = 0
        self._work = Timings()
        self.waited = 0.0
        self._errors: deque[str] = deque(maxlen=_MAX_LISTED_ERRORS)
        self.watchers: list[Callable[[int, BatchResult], None]] = []
        self.ring: Ring | None = None

    def add(self, step: int, result: BatchResult, wait_seconds: float) -> None:
        """Count the batch of a step, for which ``next`` waited ``wait_seconds``."""
        with self._lock:
            self._counts += np.bincount(result.rows.member, minlength=len(self._names))
            self._batches += 1
            self.waited += wait_seconds
            self._work.add(result.work)
        self.add_replaced(result.replaced)
        for watcher in self.watchers:
            watcher(step, result)

    def add_replaced(self, errors: Sequence[RecordError]) -> None:
        """Count the errors of rows that were replaced."""
        with self._lock:
            self.replaced += len(errors)
            self._errors.extend(str(error) for error in errors)

    def as_dict(self) -> dict[str, Any]:
        """Return the statistics as ``Loader.stats`` documents them."""
        with self._lock:
            slot_sizes = [] if self.ring is None else [ring_slot.size for ring_slot in self.ring.slots]
            return {
                "batches": self._batches,
                "replaced": self.replaced,
                "samples": int(self._counts.sum()),
                "wait_s": self.waited,
                **vars(self._work),
                "ring_slots": len(slot_sizes),
                "ring_bytes": sum(slot_sizes),
                "per_dataset": dict(zip(self._names, self._counts.tolist(), strict=True)),
                "replaced_records": list(self._errors),
            }
