"""What a loader did and waited for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stream.errors import RecordError
from stream.source import Made

_KEPT = 100
_TOGETHER = 64
"""Rows of so many batches are counted at a time; the trainer has better things to do after each."""


class Stats:
    """Figures of all iterators of a loader."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._counts = np.zeros(len(names), np.int64)
        self._not_counted: list[np.ndarray] = []
        self._sums = dict.fromkeys(("batches", "bytes", "replaced"), 0)
        self._seconds = dict.fromkeys(("wait_s", "read_s", "decode_s", "metadata_s"), 0.0)
        self._errors: deque[str] = deque(maxlen=_KEPT)
        self.on_batch: Callable[[Made], None] | None = None
        """Called with each batch that is handed out."""
        self.ring_slots = 0
        self.ring_bytes = 0

    def add(self, made: Made, waited: float) -> None:
        """Count a batch that was handed out after ``waited`` seconds."""
        with self._lock:
            self._not_counted.append(made.rows.member)
            if len(self._not_counted) >= _TOGETHER:
                self._count()
            self._sums["batches"] += 1
            self._sums["bytes"] += made.work.bytes
            self._seconds["wait_s"] += waited
            for kind, seconds in made.work.seconds().items():
                self._seconds[f"{kind}_s"] += seconds
        self.add_replaced(made.replaced)
        if self.on_batch is not None:
            self.on_batch(made)

    def add_replaced(self, errors: Sequence[RecordError]) -> None:
        """Count rows that others took the place of."""
        with self._lock:
            self._sums["replaced"] += len(errors)
            self._errors.extend(str(error) for error in errors)

    def as_dict(self) -> dict[str, Any]:
        """See ``Loader.stats``."""
        with self._lock:
            self._count()
            return {
                **self._sums,
                "samples": int(self._counts.sum()),
                **self._seconds,
                "ring_slots": self.ring_slots,
                "ring_bytes": self.ring_bytes,
                "per_dataset": dict(zip(self._names, self._counts.tolist(), strict=True)),
                "replaced_records": list(self._errors),
            }

    def _count(self) -> None:
        if self._not_counted:
            self._counts += np.bincount(np.concatenate(self._not_counted), minlength=len(self._names))
            self._not_counted.clear()
