"""Copies of a batch's frames to a CUDA device: from page-locked and from pageable memory."""

from __future__ import annotations

from typing import Any

import torch

_REPEATS = 20


def measure_copies(frames: torch.Tensor, device: str) -> dict[str, float | None]:
    """Return ``copy_ms`` and ``copy_gb_s`` from page-locked memory, and ``pageable_gb_s``; None without CUDA.

    Milliseconds of the device's clock, GB of 10^9 bytes, medians of 20 copies with nothing else under way.

    Args:
        frames: of a batch, uint8, in any memory.
        device: copied to.
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
        copies: of ``measure_copies``.
        beyond_ms: how much longer a step takes with the loader than on a batch that is there already.
    """
    if copies["copy_ms"] is None:
        return None
    return min(1.0, max(0.0, 1.0 - beyond_ms / copies["copy_ms"]))
