"""One measured training run: ``python -m bench.train.run``, started by ``bench.train`` in a process of its own."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from bench.measure.child import answer
from bench.measure.copies import measure_copies, overlap
from bench.measure.gpu import GpuLog
from bench.measure.memory import MemoryLog
from bench.measure.step_times import step_times
from examples.train_torch import LatentAction, shrink
from stream import make_loader
from stream.loader.loader import Loader
from stream.torch import to_device


@dataclass(frozen=True, kw_only=True)
class TrainParameters:
    """What one run is measured with; `bench.train` says what each is."""

    root: str = "build/demo/oxe"
    mixture: str = "oxe29"
    split: str = "train"
    val_split: str = "val"
    batch_size: int = 64
    num_workers: int = 2
    metadata: str = "full"
    decode: str = "host"
    warmup: int = 8
    steps: int = 160
    step_ms: float | None = None
    device: str = "cpu"
    val_every: int = 80
    val_steps: int = 10
    seed: int = 0


def measure(parameters: TrainParameters) -> dict[str, Any]:
    """Train and validate once; returns the figures.

    Seconds are of the host's clock. wait_share: of the time of the measured training steps, validation not counted,
    what ``next`` of the training batches took, as Lightning's SimpleProfiler counts ``train_dataloader_next``.
    step_ms: of whole training steps, each until the device is done with it. alone_ms: mean of steps on one batch that
    is there already; beyond_ms: how much longer the mean step took than that, and so what the loader costs, waiting and
    copies included. copy_ms and what follows: see ``bench.measure.copies``; overlap: the part of a copy that is not in
    beyond_ms. validation: how often, seconds of each whole one, of its first batch (workers
    started anew), and of the training step after it, which finds its batches waiting.

    Raises:
        StreamError, FormatError, RuntimeError: what the loader or the device raises.
    """
    train_loader = _loader(parameters, parameters.split)
    val_loader = _loader(parameters, parameters.val_split) if parameters.val_every else None
    torch.manual_seed(parameters.seed)
    step, look = _work(parameters)
    began = time.perf_counter()
    batches = to_device(train_loader, parameters.device)
    step(next(batches))
    first_step = time.perf_counter() - began
    for _ in range(parameters.warmup - 1):
        step(next(batches))
    _settle(parameters.device)
    memory = MemoryLog.of_children()
    waits, steps = [], []
    validations: list[dict[str, float]] = []
    after = False
    with GpuLog() as gpu:
        for number in range(parameters.steps):
            began = time.perf_counter()
            batch = next(batches)
            arrived = time.perf_counter()
            step(batch)
            _settle(parameters.device)
            if number < parameters.steps - 1:
                del batch
            steps.append(time.perf_counter() - began)
            waits.append(arrived - began)
            if after:
                validations[-1]["step_after_s"] = steps[-1]
                after = False
            if val_loader is not None and (number + 1) % parameters.val_every == 0:
                _settle(parameters.device)
                validations.append(_validate(val_loader, parameters, look))
                after = True
                memory.look(number + 1)
    memory.look(parameters.steps)
    batches.close()
    alone = _alone(step, batch, parameters)
    copies = measure_copies(batch["frames"], parameters.device)
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
        "gpu_use": gpu.mean,
        "datasets": len(train_loader.dataset_names),
        **memory.summary(),
    }


_ALONE = 10
_VALIDATION = ("seconds", "first_batch_s", "step_after_s")


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


def _work(parameters: TrainParameters) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
    """What is done with a batch of training, and with one of validation."""
    if parameters.step_ms is not None:
        busy = _busy(parameters.device, parameters.step_ms / 1000)

        def take_time(batch: Any) -> None:
            busy()

        return take_time, take_time
    model = LatentAction().to(parameters.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def train(batch: Any) -> None:
        first, last = shrink(batch["frames"])
        loss = F.mse_loss(model(first, last), last)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    @torch.no_grad()
    def look(batch: Any) -> None:
        first, last = shrink(batch["frames"])
        F.mse_loss(model(first, last), last)

    return train, look


def _busy(device: str, seconds: float) -> Callable[[], None]:
    """What keeps a device busy for so long: a sleep in place of a CPU, products of matrices on CUDA."""
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


def _alone(step: Callable[[Any], None], batch: Any, parameters: TrainParameters) -> float:
    """Mean seconds of a step on a batch that is there already."""
    began = time.perf_counter()
    for _ in range(_ALONE):
        step(batch)
        _settle(parameters.device)
    return (time.perf_counter() - began) / _ALONE


def _validate(loader: Loader, parameters: TrainParameters, look: Callable[[Any], None]) -> dict[str, float]:
    began = time.perf_counter()
    batches = to_device(loader, parameters.device)
    first = 0.0
    for number in range(parameters.val_steps):
        batch = next(batches)
        if number == 0:
            first = time.perf_counter() - began
        look(batch)
        del batch
    _settle(parameters.device)
    batches.close()
    return {"seconds": time.perf_counter() - began, "first_batch_s": first}


def _settle(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Measure what a request of ``bench.train`` asks for."""
    known = {field.name for field in dataclasses.fields(TrainParameters)}
    return measure(TrainParameters(**{key: value for key, value in request.items() if key in known}))


if __name__ == "__main__":
    sys.exit(answer(run))
