"""One measured training run: ``python -m bench.train.run``, which ``bench.train`` starts in a fresh process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from bench.measure.child import answer
from bench.measure.machine import family
from bench.measure.memory import MemoryLog
from bench.measure.points import step_times
from bench.train.device import busy, gpu_log, measure_copies, overlap, settle
from bench.train.parameters import TrainParameters
from examples.latent_action import LatentAction
from stream import make_loader
from stream.loader.loader import Loader
from stream.torch import to_device

_ALONE = 10
_VALIDATION = ("seconds", "first_batch_s", "step_after_s")


def measure(parameters: TrainParameters) -> dict[str, Any]:
    """Train and validate once and return the figures; seconds are of the host's clock.

    Returns:
        ``wait_share`` is the share of the time of the training steps that ``next`` took, without validation.
        ``step_ms`` is of complete training steps, each until the device is done. ``alone_ms`` is the mean of steps on
        a ready batch, ``beyond_ms`` the time that the mean step takes longer: the cost of the loader, waiting and
        copies included. ``copy_ms`` to ``overlap`` are from `bench.train.device`. ``validation`` has the count, and
        means of the seconds of a validation, of its first batch (workers start again), and of the training step after
        it, which finds its batches ready.

    Raises:
        StreamError, FormatError, RuntimeError: The loader or the device raises them.
    """
    device = parameters.device or "cpu"
    train_loader = _loader(parameters, parameters.split)
    val_loader = _loader(parameters, parameters.val_split) if parameters.val_every else None
    torch.manual_seed(parameters.seed)
    step, look = _work(parameters, device)
    began = time.perf_counter()
    batches = to_device(train_loader, device)
    step(next(batches))
    first_step = time.perf_counter() - began
    for _ in range(parameters.warmup - 1):
        step(next(batches))
    settle(device)
    memory = MemoryLog(family())
    waits, steps = [], []
    validations: list[dict[str, float]] = []
    after = False
    with gpu_log() as uses:
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
            if after:
                validations[-1]["step_after_s"] = steps[-1]
                after = False
            if val_loader is not None and (number + 1) % parameters.val_every == 0:
                validations.append(_validate(val_loader, parameters.val_steps, device, look))
                after = True
                memory.look(number + 1)
    memory.look(parameters.steps)
    batches.close()
    alone = _alone(step, batch, device)
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
        "gpu_use": _mean(uses),
        "datasets": len(train_loader.dataset_names),
        **memory.summary(),
    }


def _loader(parameters: TrainParameters, split: str) -> Loader:
    return make_loader(
        parameters.root,
        parameters.mixture,
        split=split,
        batch_size=parameters.batch_size,
        seed=parameters.seed,
        num_workers=parameters.num_workers,
        metadata=parameters.metadata,  # type: ignore[arg-type]
        decode=parameters.decode,  # type: ignore[arg-type]
    )


def _work(parameters: TrainParameters, device: str) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
    """Return the step of training and the step of validation."""
    if parameters.step_ms is not None:
        compute = busy(device, parameters.step_ms / 1000)

        def take_time(batch: Any) -> None:
            compute()

        return take_time, take_time
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


def _alone(step: Callable[[Any], None], batch: Any, device: str) -> float:
    """Return the mean seconds of a step on a ready batch."""
    began = time.perf_counter()
    for _ in range(_ALONE):
        step(batch)
        settle(device)
    return (time.perf_counter() - began) / _ALONE


def _validate(loader: Loader, steps: int, device: str, look: Callable[[Any], None]) -> dict[str, float]:
    began = time.perf_counter()
    batches = to_device(loader, device)
    first = 0.0
    for number in range(steps):
        batch = next(batches)
        if number == 0:
            first = time.perf_counter() - began
        look(batch)
        del batch
    settle(device)
    batches.close()
    return {"seconds": time.perf_counter() - began, "first_batch_s": first}


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


if __name__ == "__main__":
    sys.exit(answer(lambda request: measure(TrainParameters(**request))))
