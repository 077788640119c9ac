"""Cost of opening, planning, batches, resuming and memory, measured by ``bench.scale``."""

from __future__ import annotations

import dataclasses
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.measure.machine import cpu_seconds, own_set, proportional_set
from bench.synthetic import DATASETS
from stream import Normalize, make_loader
from stream.loader.iterator import LoaderIterator
from stream.loader.loader import Loader

FAR = 10**8
_PLANNED = 256
_WEIGHTS = "steps.step"
"""Column of weights: whole numbers from 0 on, of which the first step of each episode is never drawn."""
_FIRST = 100
"""Batches taken right after the page cache was dropped, and again after them."""
_MAPPED_S = 3.0
"""Seconds in which new workers map the index: encoded batches are so fast that mapping would count among them."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Measure a root of `bench.synthetic`.

    ``cold_*`` are measured after the kernel's cache of the index was dropped; ``cold_rate`` is the share of the first
    hundred batches in their time then. ``plan_ms`` is the median of planning 256 samples all over the order. CPU times
    are of a batch, trainer and workers, after the first half; ``encoded_cpu_ms`` with ``decode="device"``. ``resume_s``
    goes from ``set_state`` to the batch of step 10^8. ``weighted_*`` are with weights of all samples. ``*_own_bytes``
    are without mapped files, ``*_pss_bytes`` with their share of them; of workers the largest.
    """
    root, num_batches = request["root"], request["batches"] // 2
    mixture = {f"synthetic_{number:02}": 1.0 + number for number in range(DATASETS)}

    def open_loader(**arguments: Any) -> Loader:
        size = {key: request[key] for key in ("batch_size", "num_workers")}
        return make_loader(root, mixture, **size, seed=1, **arguments)

    # Imports on first use are not part of opening.
    make_loader(root, {"synthetic_00": 1.0}, batch_size=1).batch_at(0)
    gc.collect()
    drop_cache(root)
    cold_open, loader = _timed(open_loader)
    cold_first, cold_hundred = _take_hundred(loader)
    open_seconds, loader = _timed(open_loader)
    first_batch, hundred = _take_hundred(loader)

    def plan(planned_loader: Loader, position: int) -> float:
        samples = planned_loader.data.plan.batch_samples(position, _PLANNED)
        return _timed(lambda: planned_loader.data.plan.rows(samples))[0]

    positions = np.random.default_rng(0).integers(0, FAR, 50).tolist()
    first_plan = plan(loader, 0)
    planned = [plan(loader, position) for position in positions]
    iterator = iter(loader)
    batch_seconds = _batch_cpu(iterator, num_batches)
    processes = (psutil.Process(), *psutil.Process().children())
    anonymous, shared = ([measured(process.pid) for process in processes] for measured in (own_set, proportional_set))
    state = {**iterator.get_state(), "step": FAR}

    def resume() -> None:
        iterator.set_state(state)
        next(iterator)

    resumed, described, normalized = (
        _timed(work)[0] for work in (resume, lambda: loader.describe(FAR), lambda: Normalize(loader))
    )
    iterator.close()
    encoded = iter(Loader(loader.data, dataclasses.replace(loader.run_config, decode="device")))
    next(encoded)
    time.sleep(_MAPPED_S)
    encoded_cpu = _batch_cpu(encoded, num_batches)
    encoded.close()
    weighted_open, weighted = _timed(lambda: open_loader(sample_weights=_WEIGHTS))
    weighted_plans = [plan(weighted, position) for position in positions]
    return {
        "records": sum(loader.sizes.values()),
        "shards": sum(len(split.shards) for split in loader.data.sample_index.splits),
        "cold_open_s": cold_open,
        "cold_first_batch_s": cold_first,
        "cold_hundred_s": cold_hundred,
        "hundred_s": hundred,
        "cold_rate": hundred / cold_hundred,
        "open_s": open_seconds,
        "first_batch_s": first_batch,
        "plan_first_ms": 1000 * first_plan,
        "plan_ms": 1000 * float(np.median(planned)),
        "batch_cpu_ms": 1000 * batch_seconds,
        "encoded_cpu_ms": 1000 * encoded_cpu,
        "resume_s": resumed,
        "describe_ms": 1000 * described,
        "normalize_ms": 1000 * normalized,
        "weighted_open_s": weighted_open,
        "weighted_plan_ms": 1000 * float(np.median(weighted_plans)),
        "weighted_bytes": weighted.data.sample_index.weights.nbytes,
        "trainer_own_bytes": anonymous[0],
        "worker_own_bytes": max(filter(None, anonymous[1:]), default=None),
        "trainer_pss_bytes": shared[0],
        "worker_pss_bytes": max(filter(None, shared[1:]), default=None),
    }


def drop_cache(root: str) -> None:
    """Drop the index files of a root from the kernel's cache, as after a restart of the machine."""
    for path in Path(root).rglob("*.arrow"):
        with path.open("rb") as file:
            # Pages that are not on the disk yet cannot be dropped.
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _take_hundred(loader: Loader) -> tuple[float, float]:
    """Return the seconds to the first and to the hundredth batch of a new iterator."""
    began = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    first = time.perf_counter() - began
    for _ in range(_FIRST - 1):
        next(iterator)
    hundred = time.perf_counter() - began
    iterator.close()
    return first, hundred


def _batch_cpu(iterator: LoaderIterator, count: int) -> float:
    """Return the CPU time of a batch, the mean of ``count`` of them after as many."""
    for _ in range(count):
        next(iterator)
    began = cpu_seconds()
    for _ in range(count):
        next(iterator)
    return (cpu_seconds() - began) / count


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result
