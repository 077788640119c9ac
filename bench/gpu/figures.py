"""One measured figure, which ``bench.gpu`` makes in a fresh process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.gpu.command import DATASETS
from bench.measure.points import lasting
from stream import Frames, make_loader

_WARMUP = 4
"""Batches in addition to one of each worker: they come in bursts of as many as there are workers."""
_ALONE = 10


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Measure, for ``ask``."""
    return _jax(request) if request["library"] == "jax" else _torch(request)


def _torch(request: dict[str, Any]) -> dict[str, Any]:
    import torch

    from bench.loader.train import TrainParameters
    from bench.loader.train_run import measure

    names = ("root", "batch_size", "num_workers", "steps", "device", "decode", "step_ms")
    settings = {name: request[name] for name in names}
    figures = measure(
        TrainParameters(mixture=DATASETS, warmup=_WARMUP + request["num_workers"], val_every=0, **settings)
    )
    device = request["device"]
    on_cuda = device.startswith("cuda")
    loader = make_loader(request["root"], DATASETS, batch_size=request["batch_size"])
    ring = ring_copies(torch.from_numpy(loader.batch_at(0)["frames"]), device) if on_cuda else {}
    return {
        "device": torch.cuda.get_device_name(device) if on_cuda else "cpu",
        "pairs_per_s": figures["samples_per_s"],
        "step_p50_ms": figures["step_ms"]["p50"],
        **{name: figures[name] for name in ("wait_share", "beyond_ms", "gpu_use", "overlap")},
        "copies": {"page_locked": figures["copy_gb_s"], "pageable": figures["pageable_gb_s"], **ring},
    }


def ring_copies(frames: Any, device: str) -> dict[str, float | None]:
    """Return GB/s (10^9) of copying into page-locked memory on the host, and directly from a page-locked ring."""
    import torch
    from torch.utils.benchmark import Timer

    locking = Timer("frames.pin_memory()", globals={"frames": frames}).timeit(20).mean
    runtime: Any = torch.cuda.cudart()
    direct = None
    if int(runtime.cudaHostRegister(frames.data_ptr(), frames.nbytes, 0)) == 0:
        try:
            target = torch.empty_like(frames, device=device)
            names = {"target": target, "frames": frames}
            seconds = Timer("target.copy_(frames, non_blocking=True)", globals=names).timeit(20).mean
            direct = frames.nbytes / 1e9 / seconds
        finally:
            torch.cuda.synchronize()
            runtime.cudaHostUnregister(frames.data_ptr())
    return {"into_page_locked": frames.nbytes / 1e9 / locking, "from_a_page_locked_ring": direct}


def _jax(request: dict[str, Any]) -> dict[str, Any]:
    from bench.gpu.jax_checks import begin

    jax = begin(request["device"])
    from stream.jax import to_devices

    size = {name: request[name] for name in ("batch_size", "num_workers")}
    loader = make_loader(request["root"], DATASETS, frames=Frames(decode=request["decode"]), **size)
    compute = _busy(jax, request["step_ms"] / 1000)
    batches = to_devices(loader)
    for _ in range(_WARMUP + request["num_workers"]):
        jax.block_until_ready(next(batches)["frames"])
    steps, waits = [], []
    for _ in range(request["steps"]):
        began = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - began)
        compute()
        jax.block_until_ready(batch["frames"])
        steps.append(time.perf_counter() - began)
    batches.close()
    began = time.perf_counter()
    for _ in range(_ALONE):
        compute()
        jax.block_until_ready(batch["frames"])
    alone = (time.perf_counter() - began) / _ALONE
    return {
        "device": str(jax.devices()[0].device_kind),
        "pairs_per_s": len(steps) * request["batch_size"] / sum(steps),
        "wait_share": sum(waits) / sum(steps),
        "beyond_ms": 1000 * (float(np.mean(steps)) - alone),
        "step_p50_ms": 1000 * float(np.median(steps)),
    }


def _busy(jax: Any, seconds: float) -> Callable[[], object]:
    """Return a function that keeps a device busy for some time, as ``bench.loader.train_run.busy``."""
    if jax.default_backend() != "gpu":
        return lambda: time.sleep(seconds)
    matrix = jax.random.normal(jax.random.key(0), (4096, 4096), jax.numpy.bfloat16)
    multiply = jax.jit(lambda left: left @ matrix)

    def work(times: int) -> None:
        out = matrix
        for _ in range(times):
            out = multiply(out)
        jax.block_until_ready(out)

    return lasting(work, seconds, lambda: None)
