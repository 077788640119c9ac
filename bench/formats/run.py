"""One process of the format study: ``python -m bench.formats.run``, started by ``bench.formats`` for each point.

It measures a point, or reads a store once and tells which pairs came (``check``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import sys
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import psutil

from bench.formats.frames import PairFile
from bench.formats.readers import Reading, batches_under_way, import_libraries, open_batches, read_pair_file
from bench.formats.stores import Store
from bench.measure.child import answer
from bench.measure.machine import busy_seconds
from bench.measure.memory import MemoryLog
from bench.measure.step_times import step_times


def measure_request(store: Store, reading: Reading, *, steps: int, warmup: int) -> dict[str, Any]:
    """What ``ask`` takes to measure a point: ``steps`` batches, after ``warmup`` that are not measured."""
    asked = {"store": dataclasses.asdict(store), "reading": dataclasses.asdict(reading)}
    return {"measure": {**asked, "steps": steps, "warmup": warmup}}


def check_request(store: Store, readings: Iterable[Reading]) -> dict[str, Any]:
    """What ``ask`` takes to read a store; the answer has ``passes``, a list of hashes of pairs for each reading."""
    return {"check": {"store": dataclasses.asdict(store), "readings": [dataclasses.asdict(one) for one in readings]}}


def source_request(pairs: PairFile) -> dict[str, Any]:
    """What ``ask`` takes for the hashes of the pairs themselves, ``passes`` with one list."""
    return {"source": dataclasses.asdict(pairs)}


def measure_point(store: Store, reading: Reading, *, steps: int, warmup: int) -> dict[str, Any]:
    """Measure ``steps`` batches of a store, after ``warmup``, or as many as may be under way if those are more.

    Returns:
        samples_per_s; first_batch_s, from opening the store to the first batch, without imports; step_ms with mean,
        p50, p90, p99, max, from one batch to the next; cpu_cores: CPU time of this process and its workers for each
        second that was measured (the kernel counts in steps of 10 ms); machine_cpu_cores: of everything on the machine;
        pss_bytes: of all processes, after the last step; processes; began, ended: on the monotonic clock, of the steps.

    Raises:
        ValueError: a batch has another shape than it should.
    """
    import_libraries(store.format)
    shape = (reading.batch_size, 2, store.height, store.width, 3)
    began = time.perf_counter()
    with open_batches(store, reading) as batches:
        _take(batches, shape)
        first = time.perf_counter() - began
        for _ in range(max(warmup, batches_under_way(reading.workers)) - 1):
            _take(batches, shape)
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        start = time.monotonic()
        busy, cpu = busy_seconds(), _cpu_seconds(processes)
        arrivals = [time.perf_counter()]
        for _ in range(steps):
            _take(batches, shape)
            arrivals.append(time.perf_counter())
        busy, cpu = busy_seconds() - busy, _cpu_seconds(processes) - cpu
        end = time.monotonic()
        memory = MemoryLog([process.pid for process in processes])
        memory.look(steps)
    seconds = arrivals[-1] - arrivals[0]
    return {
        "samples_per_s": steps * reading.batch_size / seconds,
        "first_batch_s": first,
        "step_ms": step_times(np.diff(arrivals)),
        "cpu_cores": cpu / (end - start),
        "machine_cpu_cores": busy / (end - start),
        "pss_bytes": memory.summary()["final_pss_bytes"],
        "processes": len(processes),
        "began": start,
        "ended": end,
    }


def hash_pairs(rows: Iterable[np.ndarray]) -> list[str]:
    """Return a hash of the pixels of each pair, uint8 [2, H, W, 3]."""
    return [hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).hexdigest() for row in rows]


def read_hashes(store: Store, reading: Reading) -> list[str]:
    """Read a store as often as the reading says; returns the hash of each pair, in the order in which they came."""
    import_libraries(store.format)
    with open_batches(store, reading) as batches:
        return hash_pairs(itertools.chain.from_iterable(map(np.asarray, batches)))


def _take(batches: Any, shape: tuple[int, ...]) -> None:
    found = tuple(next(batches).shape)
    if found != shape:
        raise ValueError(f"a batch of shape {list(found)}, expected {list(shape)}")


def _cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    if source := asked.get("source"):
        return {"passes": [hash_pairs(read_pair_file(PairFile(**source)))]}
    if check := asked.get("check"):
        store = Store(**check["store"])
        return {"passes": [read_hashes(store, Reading(**one)) for one in check["readings"]]}
    measure = asked["measure"]
    return measure_point(
        Store(**measure["store"]), Reading(**measure["reading"]), steps=measure["steps"], warmup=measure["warmup"]
    )


if __name__ == "__main__":
    sys.exit(answer(_answer))
