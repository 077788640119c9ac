"""Seconds and memory of the exact statistics of relative chunks, measured by ``bench.scale``."""

from __future__ import annotations

import resource
import time
from typing import Any

from bench.scale.memory import anonymous_peak
from bench.synthetic import DATASETS
from stream import Normalize, Vector, make_loader

STEPS = 16


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compute the statistics of the 16 steps from each step of a root of `bench.synthetic`, relative to the first.

    ``chunk_values`` is the count of values of a dimension, of all datasets. ``chunks_s`` is elapsed time, and
    ``chunks_cpu_s`` that of the processors. ``chunks_anonymous_bytes`` is the largest memory without mapped files, such
    as the index, and ``chunks_peak_bytes`` that with them.
    """
    mixture = {f"synthetic_{number:02}": 1.0 for number in range(DATASETS)}
    state = Vector(STEPS, relative_to="first")
    loader = make_loader(request["root"], mixture, batch_size=1, frames=None, action=None, state=state)
    with anonymous_peak() as samples:
        began, began_cpu = time.perf_counter(), time.process_time()
        numbers = Normalize(loader).statistics["state"]
        seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    return {
        "chunk_values": sum(statistics.count for statistics in numbers.values()),
        "chunks_s": seconds,
        "chunks_cpu_s": cpu,
        "chunks_anonymous_bytes": max(samples),
        "chunks_peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
