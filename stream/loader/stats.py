"""What a loader did and waited for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stream.batch.assemble import Work
from stream.storage.errors import RecordError
from stream.workers.ring import Ring
from stream.workers.source import Made

_KEPT = 100


class Stats:
    """Figures of all iterators of a loader."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._counts = np.zeros(len(names), np.int64)
        self._sums = dict.fromkeys(("batches", "replaced"), 0)
        self._work = Work()
        self._waited = 0.0
        self._errors: deque[str] = deque(maxlen=_KEPT)
        self.on_batch: Callable[[Made], None] | None = None
        """Called with each batch that is handed out."""
        self.ring: Ring | None = None
        """Of the newest iterator."""

    def add(self, made: Made, waited: float) -> None:
        """Count a batch that was handed out after ``waited`` seconds."""
        with self._lock:
            self._counts += np.bincount(made.rows.member, minlength=len(self._names))
            self._sums["batches"] += 1
            self._waited += waited
            self._work.add(made.work)
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
            slots = [] if self.ring is None else [slot.size for slot in self.ring.slots]
            return {
                **self._sums,
                "samples": int(self._counts.sum()),
                "wait_s": self._waited,
                **vars(self._work),
                "ring_slots": len(slots),
                "ring_bytes": sum(slots),
                "per_dataset": dict(zip(self._names, self._counts.tolist(), strict=True)),
                "replaced_records": list(self._errors),
            }
