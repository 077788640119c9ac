"""What a loader did and waited for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stream.batch import Work
from stream.errors import RecordError
from stream.ring import Ring
from stream.source import Made

_KEPT = 100
_TOGETHER = 64
"""So many batches are counted at a time; the trainer has better things to do after each."""


class Stats:
    """Figures of all iterators of a loader."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._counts = np.zeros(len(names), np.int64)
        self._not_counted: list[tuple[np.ndarray, Work]] = []
        self._sums = dict.fromkeys(("batches", "bytes", "replaced"), 0)
        self._seconds = dict.fromkeys(("wait_s", "read_s", "decode_s", "metadata_s"), 0.0)
        self._errors: deque[str] = deque(maxlen=_KEPT)
        self.on_batch: Callable[[Made], None] | None = None
        """Called with each batch that is handed out."""
        self.ring: Ring | None = None
        """Of the newest iterator."""

    def add(self, made: Made, waited: float) -> None:
        """Count a batch that was handed out after ``waited`` seconds."""
        with self._lock:
            self._not_counted.append((made.rows.member, made.work))
            if len(self._not_counted) >= _TOGETHER:
                self._count()
            self._sums["batches"] += 1
            self._seconds["wait_s"] += waited
        if made.replaced:
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
            slots = [] if self.ring is None else [slot.size for slot in self.ring.slots]
            return {
                **self._sums,
                "samples": int(self._counts.sum()),
                **self._seconds,
                "ring_slots": len(slots),
                "ring_bytes": sum(slots),
                "per_dataset": dict(zip(self._names, self._counts.tolist(), strict=True)),
                "replaced_records": list(self._errors),
            }

    def _count(self) -> None:
        if not self._not_counted:
            return
        members, works = zip(*self._not_counted, strict=True)
        self._counts += np.bincount(np.concatenate(members), minlength=len(self._names))
        for work in works:
            self._sums["bytes"] += work.bytes
            for kind, seconds in work.seconds().items():
                self._seconds[f"{kind}_s"] += seconds
        self._not_counted.clear()
