"""Bare codec work of a conversion: decode, resize and encode the same frames; no files, no Beam, no pairs.

The calls do not go through `convert.shard.images`, so that its overhead shows. They keep OpenCV's own order of colours
from decoder to encoder.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg

from bench.convert.source import BenchSource, Case, read_episodes, used_steps
from bench.measure.machine import busy_seconds

SIZE = 256
QUALITY = 95

_OPTIONS = [cv2.IMWRITE_JPEG_QUALITY, QUALITY, cv2.IMWRITE_JPEG_OPTIMIZE, 1]
_OPTIONS += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420]

_barrier: threading.Barrier


def transcode(data: bytes, case: Case) -> bytes:
    """Do the codec work of one frame and return the JPEG to store; pass-through returns the frame itself."""
    if not case.transcoded:
        simplejpeg.decode_jpeg(data)
        return data
    if case.encoding == "png":
        pixels = np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_BGR))
    else:
        pixels = simplejpeg.decode_jpeg(data, colorspace="BGR")
    small = cv2.resize(pixels, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
    return cv2.imencode(".jpg", small, _OPTIONS)[1].tobytes()


def set_up_opencv() -> None:
    """Set OpenCV as the converter does: one thread a process, and the same pixels on every processor."""
    cv2.setNumThreads(1)
    cv2.ipp.setUseIPP(False)


def run_bare(source: BenchSource, *, num_workers: int) -> dict[str, Any]:
    """Transcode every frame that a conversion of ``source`` uses, once, in ``num_workers`` processes.

    Each process takes the same number of shards and has its frames in memory before any process starts.

    Returns:
        seconds: From the first start to the last end.
        cpu_seconds: CPU time of the processes in this time.
        others_cpu_seconds: CPU time of everything else on the machine.
        frames: Number of frames.
    """
    context = multiprocessing.get_context("spawn")
    slices = [source.files[index::num_workers] for index in range(num_workers)]
    barrier = context.Barrier(num_workers)
    with ProcessPoolExecutor(num_workers, mp_context=context, initializer=_set_up, initargs=(barrier,)) as pool:
        done = list(pool.map(partial(_work, case=source.case), slices))
    cpu = sum(run["cpu"] for run in done)
    busy = max(run["busy"][1] for run in done) - min(run["busy"][0] for run in done)
    return {
        "seconds": max(run["time"][1] for run in done) - min(run["time"][0] for run in done),
        "cpu_seconds": cpu,
        "others_cpu_seconds": max(0.0, busy - cpu),
        "frames": sum(run["frames"] for run in done),
    }


def _set_up(barrier: threading.Barrier) -> None:
    global _barrier
    _barrier = barrier
    set_up_opencv()


def _work(files: Sequence[Path], case: Case) -> dict[str, Any]:
    frames = [episode[step] for episode in read_episodes(files, case) for step in used_steps(len(episode))]
    _barrier.wait()
    began, busy, cpu = time.monotonic(), busy_seconds(), time.process_time()
    for frame in frames:
        transcode(frame, case)
    cpu = time.process_time() - cpu
    return {"frames": len(frames), "time": (began, time.monotonic()), "busy": (busy, busy_seconds()), "cpu": cpu}
