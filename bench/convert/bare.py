"""The bare codec work of a conversion: decode, resize, encode the same frames; no files, no Beam, no pairs.

The calls are written out here and do not go through `convert.shard.images`, so that its overhead shows. They leave out
what is not needed: OpenCV's own order of colours is kept from decoder to encoder.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import cv2
import numpy as np
import simplejpeg

from bench.convert.source import BenchSource, Case, read_episodes, used_steps
from bench.measure.machine import busy_seconds

SIZE = 256
QUALITY = 95

_OPTIONS = [
    cv2.IMWRITE_JPEG_QUALITY,
    QUALITY,
    cv2.IMWRITE_JPEG_OPTIMIZE,
    1,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
]


@dataclass(frozen=True, kw_only=True)
class BareRun:
    """What the bare work took.

    seconds: from the first start to the last end. cpu_seconds: CPU time of its processes in that time;
    others_cpu_seconds: of everything else on the machine.
    """

    seconds: float
    cpu_seconds: float
    others_cpu_seconds: float
    frames: int


def transcode(data: bytes, case: Case) -> bytes:
    """Do the codec work of one frame; returns the JPEG that is to be stored (of pass-through the frame itself)."""
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
    """Choose as the converter does: one thread a process, and code that gives the same pixels on every processor."""
    cv2.setNumThreads(1)
    cv2.ipp.setUseIPP(False)


def run_bare(source: BenchSource, *, num_workers: int) -> BareRun:
    """Transcode every frame that a conversion of ``source`` uses, once, in ``num_workers`` processes.

    Each process takes the same number of shards and has its frames in memory before any of them starts.
    """
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    try:
        for index in range(num_workers):
            ours, theirs = context.Pipe()
            files = source.files[index::num_workers]
            process = context.Process(target=_work, args=(files, source.case, theirs), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        frames = sum(_receive(pipe)[0] for pipe in pipes)
        busy = busy_seconds()
        for pipe in pipes:
            pipe.send("go")
        times = [_receive(pipe) for pipe in pipes]
        busy = busy_seconds() - busy
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.terminate()
            process.join()
    cpu = sum(cpu for _, _, cpu in times)
    return BareRun(
        seconds=max(stop for _, stop, _ in times) - min(start for start, _, _ in times),
        cpu_seconds=cpu,
        others_cpu_seconds=max(0.0, busy - cpu),
        frames=frames,
    )


def _receive(pipe: Connection) -> tuple:
    try:
        return tuple(pipe.recv())
    except EOFError:
        raise RuntimeError("a process of the bare codec work died; is there enough memory?") from None


def _work(files: Sequence[Path], case: Case, pipe: Connection) -> None:
    set_up_opencv()
    episodes = read_episodes(files, case)
    frames = [episode[step] for episode in episodes for step in used_steps(len(episode))]
    pipe.send((len(frames),))
    pipe.recv()
    start, cpu = time.monotonic(), time.process_time()
    for frame in frames:
        transcode(frame, case)
    pipe.send((start, time.monotonic(), time.process_time() - cpu))
