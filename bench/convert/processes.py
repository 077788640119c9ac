"""Work that is measured in processes which start together: seconds, CPU and memory, ours beside the bare work."""

from __future__ import annotations

import importlib
import multiprocessing
import resource
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import cv2

from convert.report import format_table

JPEG = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_OPTIMIZE, 1]
JPEG += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420]
"""Options with which ``convert`` encodes."""
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


def summarise(runs: Sequence[Mapping[str, Mapping[str, float]]], *, frames: int) -> dict[str, Any]:
    """Return the medians of ``timed`` results of ``ours`` and ``bare`` work, each run of so many frames."""
    return {
        "frames": frames,
        "frames_per_s": {
            name: frames / statistics.median(run[name]["seconds"] for run in runs) for name in ("ours", "bare")
        },
        "ratio": statistics.median(run["bare"]["seconds"] / run["ours"]["seconds"] for run in runs),
        "cpu_ratio": statistics.median(run["bare"]["cpu"] / run["ours"]["cpu"] for run in runs),
        "peak_worker_bytes": max(run["ours"]["peak"] for run in runs),
        "runs": runs,
    }


def to_table(result: Mapping[str, Any], first: Mapping[str, str]) -> str:
    """Return a table of what ``summarise`` returned; ``first`` is what was measured, by the head of its column."""
    rates = result["frames_per_s"]
    row = {
        **first,
        "frames": result["frames"],
        "ours frames/s": round(rates["ours"]),
        "bare frames/s": round(rates["bare"]),
        "ratio": f"{result['ratio']:.3f}",
        "CPU ratio": f"{result['cpu_ratio']:.3f}",
        "worker MB": round(result["peak_worker_bytes"] / 1e6),
    }
    return format_table(list(row), [list(row.values())])


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
