"""Peak memory of this process without mapped files, sampled by a thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bench.measure.machine import resident

_EVERY_S = 0.02


@contextmanager
def anonymous_peak() -> Iterator[list[int]]:
    """Yield a list that has the bytes of each sample when the block ends."""
    samples, done = [resident(os.getpid(), "RssAnon") or 0], threading.Event()

    def sample() -> None:
        while not done.wait(_EVERY_S):
            samples.append(resident(os.getpid(), "RssAnon") or 0)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()
