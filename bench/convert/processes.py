"""Work that is measured in processes which start together: seconds, CPU and memory."""

from __future__ import annotations

import importlib
import multiprocessing
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import cv2

_barrier: threading.Barrier


def timed(work: Callable[[slice], None], *, workers: int, imports: str) -> dict[str, float]:
    """Do the shares of some work in processes that have imported a module.

    Returns:
        Seconds, CPU seconds, and the largest resident set in bytes.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(workers)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_set_up, initargs=(barrier, imports)) as pool:
        done = list(pool.map(_run, [work] * workers, [slice(number, None, workers) for number in range(workers)]))
    began, ended, cpu, peak = zip(*done, strict=True)
    return {"seconds": max(ended) - min(began), "cpu": sum(cpu), "peak": max(peak)}


def _set_up(barrier: threading.Barrier, imports: str) -> None:
    global _barrier
    _barrier = barrier
    cv2.setNumThreads(1)
    cv2.ipp.setUseIPP(False)
    importlib.import_module(imports)


def _run(work: Callable[[slice], None], share: slice) -> tuple[float, float, float, int]:
    _barrier.wait()
    began, cpu = time.monotonic(), time.process_time()
    work(share)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return began, time.monotonic(), time.process_time() - cpu, peak
