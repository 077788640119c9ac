"""The device of a training run: its work, its use, and copies of a batch to it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_REPEATS = 20
_QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=200")


@contextmanager
def gpu_log() -> Iterator[list[float]]:
    """Give a list that has the readings of all GPUs, 0 to 1, after the block; it stays empty without nvidia-smi."""
    readings: list[float] = []
    if shutil.which(_QUERY[0]) is None:
        yield readings
        return
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(_QUERY, stdout=log, stderr=subprocess.DEVNULL)
        try:
            yield readings
        finally:
            process.terminate()
            process.wait()
            log.seek(0)
            readings += [int(line) / 100 for line in log.read().decode().split() if line.isdigit()]


def measure_copies(frames: torch.Tensor, device: str) -> dict[str, float | None]:
    """Return ``copy_ms`` and ``copy_gb_s`` from page-locked memory, and ``pageable_gb_s``; None without CUDA.

    Figures are medians of 20 copies on an idle device, by the device's clock; GB are 10^9 bytes.

    Args:
        frames: Frames of a batch, uint8, in any memory.
        device: Target of the copies.
    """
    if not device.startswith("cuda"):
        return {"copy_ms": None, "copy_gb_s": None, "pageable_gb_s": None}
    pageable = frames.cpu().clone()
    locked_ms, pageable_ms = (_copy_ms(source, device) for source in (pageable.pin_memory(), pageable))
    megabytes = pageable.nbytes / 1e6
    return {"copy_ms": locked_ms, "copy_gb_s": megabytes / locked_ms, "pageable_gb_s": megabytes / pageable_ms}


def _copy_ms(source: torch.Tensor, device: str) -> float:
    target = torch.empty_like(source, device=device)
    times = []
    for _ in range(_REPEATS):
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        target.copy_(source, non_blocking=True)
        ended.record()
        ended.synchronize()
        times.append(begun.elapsed_time(ended))
    return sorted(times)[len(times) // 2]


def overlap(copies: dict[str, Any], beyond_ms: float) -> float | None:
    """Return the part of a copy's time that the training step did not wait for, 0 to 1; None without CUDA.

    >>> overlap({"copy_ms": 4.0}, 1.0), overlap({"copy_ms": 4.0}, 9.0), overlap({"copy_ms": None}, 1.0)
    (0.75, 0.0, None)

    Args:
        copies: Result of ``measure_copies``.
        beyond_ms: Time that a step takes longer with the loader than on a ready batch.
    """
    if copies["copy_ms"] is None:
        return None
    return min(1.0, max(0.0, 1.0 - beyond_ms / copies["copy_ms"]))


def busy(device: str, seconds: float) -> Callable[[], None]:
    """Return a function that keeps a device busy: products of matrices on CUDA, a sleep otherwise."""
    if not device.startswith("cuda"):
        return lambda: time.sleep(seconds)
    matrix = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    multiply(20)
    torch.cuda.synchronize()
    began = time.perf_counter()
    multiply(100)
    torch.cuda.synchronize()
    times = max(1, round(100 * seconds / (time.perf_counter() - began)))
    return lambda: multiply(times)


def settle(device: str) -> None:
    """Wait until a CUDA device has done its work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
