"""One size measured: ``python -m bench.scale_run``, started by ``bench.scale`` in a process of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.child import answer
from bench.machine import own_set
from bench.scale_root import DATASETS
from stream import Normalize, make_loader
from stream.loader import Loader

FAR = 10**8
_PLANNED = 256
_COLD = 100


def measure(root: str, *, batch_size: int, num_workers: int, batches: int) -> dict[str, Any]:
    """Measure a root of `bench.scale_root`.

    Returns:
        open_s: of ``make_loader``, with all its imports done. first_batch_s: from ``iter`` on, workers started.
        plan_ms: of planning 256 samples, median over steps all over the order; plan_first_ms: the first time.
        batch_cpu_ms: CPU time of a batch, trainer and workers, after the first half. resume_s: from ``set_state`` to
        the batch of step 10^8. describe_ms: of a batch at 10^8. normalize_ms: making the tables of all statistics.
        cold_batch_ms, warm_batch_ms: wall time of a batch, of the first hundred after the index was dropped from the
        page cache and of the rest. trainer_own_bytes, worker_own_bytes: memory of no file, at the end,
        the largest worker's.
    """
    mixture = {f"synthetic_{number:02}": 1.0 + number for number in range(DATASETS)}
    # What is imported when it is first used is not what opening costs.
    make_loader(root, {"synthetic_00": 1.0}, batch_size=1).batch_at(0)

    def open_loader() -> Loader:
        return make_loader(root, mixture, batch_size=batch_size, num_workers=num_workers, seed=1)

    cold, warm = _cold(root, open_loader, batches=batches)
    loader, open_seconds = _timed(open_loader)

    def plan(place: int) -> float:
        samples = loader.data.plan.batch_samples(place, _PLANNED)
        return _timed(lambda: loader.data.plan.rows(samples))[1]

    first_plan = plan(0)
    planned = [plan(place) for place in np.random.default_rng(0).integers(0, FAR, 50).tolist()]
    iterator = iter(loader)
    _, first_batch = _timed(lambda: next(iterator))
    for _ in range(batches // 2):
        next(iterator)
    cpu = _cpu_seconds()
    for _ in range(batches - batches // 2):
        next(iterator)
    cpu = (_cpu_seconds() - cpu) / max(1, batches - batches // 2)
    workers = psutil.Process().children()
    memory = [own_set(process.pid) for process in (psutil.Process(), *workers)]
    state = {**iterator.get_state(), "step": FAR}

    def resume() -> None:
        iterator.set_state(state)
        next(iterator)

    _, resumed = _timed(resume)
    _, described = _timed(lambda: loader.describe(FAR))
    _, normalized = _timed(lambda: Normalize(loader))
    iterator.close()
    return {
        "records": sum(loader.sizes.values()),
        "shards": sum(len(dataset.shards["train"].episodes) for dataset in loader.data.datasets),
        "open_s": open_seconds,
        "first_batch_s": first_batch,
        "plan_first_ms": 1000 * first_plan,
        "plan_ms": 1000 * float(np.median(planned)),
        "batch_cpu_ms": 1000 * cpu,
        "cold_batch_ms": 1000 * cold,
        "warm_batch_ms": 1000 * warm,
        "resume_s": resumed,
        "describe_ms": 1000 * described,
        "normalize_ms": 1000 * normalized,
        "trainer_own_bytes": memory[0],
        "worker_own_bytes": max((own for own in memory[1:] if own is not None), default=None),
    }


def _cold(root: str, open_loader: Callable[[], Loader], *, batches: int) -> tuple[float, float]:
    """Return the seconds of a batch after the index was dropped from the page cache, of the first and of the rest."""
    for path in Path(root).rglob("*.arrow"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    iterator = iter(open_loader())
    first = min(_COLD, batches // 2)
    _, cold = _timed(lambda: [next(iterator) for _ in range(first)])
    _, warm = _timed(lambda: [next(iterator) for _ in range(batches - first)])
    iterator.close()
    return cold / first, warm / (batches - first)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def _cpu_seconds() -> float:
    # In nanoseconds; what is had of processes as a whole counts in hundredths of a second.
    processes = (psutil.Process(), *psutil.Process().children())
    threads = (file for process in processes for file in Path(f"/proc/{process.pid}/task").glob("*/schedstat"))
    return sum(int(file.read_text().split()[0]) for file in threads) / 1e9


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Measure what a request of ``bench.scale`` asks for."""
    return measure(request.pop("root"), **request)


if __name__ == "__main__":
    sys.exit(answer(run))
