"""One measured training run, which ``bench.loader.train`` makes in a fresh process."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.benchmark import Timer

from bench.loader.train import TrainParameters, open_loaders
from bench.measure.machine import MemoryLog, family
from bench.measure.points import lasting, step_times
from examples.train_latent_action import LatentAction
from stream.loader.loader import Loader
from stream.torch import to_device

_QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=200")
_ALONE = 10
_VALIDATION = ("seconds", "first_batch_s", "step_after_s")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Measure a run, for ``ask``."""
    return measure(TrainParameters(**request))


def measure(parameters: TrainParameters) -> dict[str, Any]:
    """Train and validate once and return the figures; seconds are of the host's clock.

    ``wait_share`` is the share of the time of the training steps that ``next`` took. ``alone_ms`` is the mean of steps
    on a ready batch, ``beyond_ms`` the time that the mean step takes longer: the cost of the loader, waiting and copies
    included. ``validation`` has means of the seconds of a validation, of its first batch, and of the step after it.
    """
    device = parameters.device or "cpu"
    train_loader, val_loader = open_loaders(parameters)
    torch.manual_seed(parameters.seed)
    step, validate_step = _work(parameters, device)
    began = time.perf_counter()
    batches = to_device(train_loader, device)
    step(next(batches))
    first_step = time.perf_counter() - began
    for _ in range(parameters.warmup - 1):
        step(next(batches))
    settle(device)
    memory = MemoryLog(family())
    waits: list[float] = []
    steps: list[float] = []
    validations: list[dict[str, float]] = []
    with gpu_log() as gpu_readings:
        for number in range(parameters.steps):
            began = time.perf_counter()
            batch = next(batches)
            arrived = time.perf_counter()
            step(batch)
            settle(device)
            if number < parameters.steps - 1:
                del batch
            steps.append(time.perf_counter() - began)
            waits.append(arrived - began)
            if validations:
                validations[-1].setdefault("step_after_s", steps[-1])
            if val_loader is not None and (number + 1) % parameters.val_every == 0:
                validations.append(_validate(val_loader, parameters.val_steps, device, validate_step))
                memory.look(number + 1)
    memory.look(parameters.steps)
    batches.close()
    began = time.perf_counter()
    for _ in range(_ALONE):
        step(batch)
        settle(device)
    alone = (time.perf_counter() - began) / _ALONE
    copies = measure_copies(batch["frames"], device)
    seconds = sum(steps)
    beyond = 1000 * (seconds / len(steps) - alone)
    return {
        "steps": len(steps),
        "steps_per_s": len(steps) / seconds,
        "samples_per_s": len(steps) * parameters.batch_size / seconds,
        "wait_share": sum(waits) / seconds,
        "wait_ms": 1000 * sum(waits) / len(waits),
        "step_ms": step_times(steps),
        "alone_ms": 1000 * alone,
        "beyond_ms": beyond,
        **copies,
        "overlap": overlap(copies, beyond),
        "first_step_s": first_step,
        "validation": {
            "count": len(validations),
            **{key: _mean([run[key] for run in validations if key in run]) for key in _VALIDATION},
        },
        "gpu_use": _mean(gpu_readings),
        "datasets": len(train_loader.dataset_names),
        **memory.summary(),
    }


def _work(parameters: TrainParameters, device: str) -> tuple[Callable[[Any], object], Callable[[Any], object]]:
    """Return the step of training and the step of validation."""
    if parameters.step_ms is not None:
        compute = busy(device, parameters.step_ms / 1000)
        return (lambda batch: compute(),) * 2
    model = LatentAction().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def train(batch: Any) -> None:
        loss = model(batch)[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    @torch.no_grad()
    def look(batch: Any) -> None:
        model(batch)

    return train, look


def _validate(loader: Loader, steps: int, device: str, validate_step: Callable[[Any], object]) -> dict[str, float]:
    began = time.perf_counter()
    batches = to_device(loader, device)
    batch = next(batches)
    first = time.perf_counter() - began
    validate_step(batch)
    del batch
    for _ in range(steps - 1):
        validate_step(next(batches))
    settle(device)
    batches.close()
    return {"seconds": time.perf_counter() - began, "first_batch_s": first}


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


@contextmanager
def gpu_log() -> Iterator[list[float]]:
    """Give a list that has the readings of all GPUs, 0 to 1, after the block; it stays empty without nvidia-smi."""
    readings: list[float] = []
    if shutil.which(_QUERY[0]) is None:
        yield readings
        return
    with tempfile.TemporaryFile() as log_lines:
        process = subprocess.Popen(_QUERY, stdout=log_lines, stderr=subprocess.DEVNULL)
        try:
            yield readings
        finally:
            process.terminate()
            process.wait()
            log_lines.seek(0)
            readings += [int(line) / 100 for line in log_lines.read().decode().split() if line.isdigit()]


def measure_copies(frames: torch.Tensor, device: str) -> dict[str, float | None]:
    """Return ``copy_ms`` and ``copy_gb_s`` from page-locked memory, and ``pageable_gb_s``; None without CUDA.

    Figures are means of 20 copies on an idle device; GB are 10^9 bytes.
    """
    if not device.startswith("cuda"):
        return {"copy_ms": None, "copy_gb_s": None, "pageable_gb_s": None}
    pageable = frames.cpu().clone()
    target = torch.empty_like(pageable, device=device)
    locked_ms, pageable_ms = (
        1000
        * Timer("target.copy_(source, non_blocking=True)", globals={"target": target, "source": source}).timeit(20).mean
        for source in (pageable.pin_memory(), pageable)
    )
    megabytes = pageable.nbytes / 1e6
    return {"copy_ms": locked_ms, "copy_gb_s": megabytes / locked_ms, "pageable_gb_s": megabytes / pageable_ms}


def overlap(copies: dict[str, Any], beyond_ms: float) -> float | None:
    """Return the part of a copy's time that the training step did not wait for, 0 to 1; None without CUDA.

    >>> overlap({"copy_ms": 4.0}, 1.0), overlap({"copy_ms": 4.0}, 9.0), overlap({"copy_ms": None}, 1.0)
    (0.75, 0.0, None)
    """
    if copies["copy_ms"] is None:
        return None
    return min(1.0, max(0.0, 1.0 - beyond_ms / copies["copy_ms"]))


def busy(device: str, seconds: float) -> Callable[[], object]:
    """Return a function that keeps a device busy: products of matrices on CUDA, a sleep otherwise."""
    if not device.startswith("cuda"):
        return lambda: time.sleep(seconds)
    matrix = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    return lasting(multiply, seconds, torch.cuda.synchronize)


def settle(device: str) -> None:
    """Wait until a CUDA device has done its work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
