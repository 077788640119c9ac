"""One measurement of a point, which ``bench.loader`` makes in a fresh process.

The speed of a shared machine changes within seconds, so the loader and its limit are measured in turns, in short
slices. Between its slices the iterator stays open, and the workers fill the ring and stop. Batches that were ready
would count as free: each slice leaves out the first ``depth`` batches and one of each worker (``lanes``). It counts
from the arrival of one batch to the arrival of another, a multiple of ``lanes`` later. At the first arrival all
workers have just begun a batch; at the last one each may be up to a batch further, so the rate is right or slightly
too low.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from bench.loader.parameters import Parameters, open_loader
from bench.measure.child import Turn
from bench.measure.decode_limit import DecodeLimit
from bench.measure.machine import MemoryLog, busy_seconds
from bench.measure.points import step_times
from stream.batch.result import BatchResult
from stream.loader.iterator import LoaderIterator
from stream.loader.loader import Loader

_SLICE_SECONDS = 1.0
_LEAST_SLICES = 4
_LEAST_STEPS = 40


@dataclass(frozen=True, kw_only=True)
class LoaderSlice:
    """One slice of the loader: batches and time between the first and the last arrival, compute included.

    ``wait_seconds`` is the time spent in ``next``; ``others_cpu_seconds`` is of everything else on the machine,
    ``bytes`` of the records.
    """

    batches: int
    seconds: float
    step_seconds: tuple[float, ...]
    wait_seconds: float
    trainer_cpu_seconds: float
    worker_cpu_seconds: float
    others_cpu_seconds: float
    bytes: int

    @property
    def cpu_seconds(self) -> float:
        """CPU time of trainer and workers."""
        return self.trainer_cpu_seconds + self.worker_cpu_seconds


class Trainer:
    """A training loop that takes batches of a loader and measures slices."""

    def __init__(self, loader: Loader, *, compute_seconds: float) -> None:
        self.loader = loader
        self.lanes = loader.run_config.workers.num_processes or loader.run_config.workers.num_threads
        self.depth = loader.run_config.workers.prefetch + 1
        self.batches = 0
        # Compact arrays, counted at the end: lists would look like growing memory, and counting would take time.
        self._members = array.array("h")
        self._times = array.array("d")
        self._compute = compute_seconds
        self._batch: Any = None
        loader.counters.watchers.append(self._note)
        began = time.perf_counter()
        self._iterator: LoaderIterator = iter(loader)
        self._step()
        self.first_batch_seconds = time.perf_counter() - began
        self._workers = psutil.Process().children() if loader.run_config.workers.num_processes else []

    @property
    def pids(self) -> tuple[int, ...]:
        """Process numbers of the trainer and the workers."""
        return (os.getpid(), *(worker.pid for worker in self._workers))

    def warm_up(self, steps: int) -> float:
        """Take batches and return the seconds of each."""
        began = time.perf_counter()
        for _ in range(steps):
            self._step()
        return (time.perf_counter() - began) / max(1, steps)

    def rest(self, step_seconds: float) -> None:
        """Wait until the workers have filled the ring and stopped."""
        time.sleep(min(5.0, 0.03 + 2 * self.depth * step_seconds))

    def run(self, steps: int) -> LoaderSlice:
        """Measure ``steps`` batches, after the batches that were ready before."""
        for _ in range(self.depth + self.lanes):
            self._step()
        read = self.loader.stats()["bytes"]
        cpu_seconds = self._cpu()
        arrivals, waited = [time.perf_counter()], 0.0
        for _ in range(steps):
            waited += self._step()
            arrivals.append(time.perf_counter())
        machine_cpu, trainer_cpu, workers_cpu = (self._cpu() - cpu_seconds).tolist()
        return LoaderSlice(
            batches=steps,
            seconds=arrivals[-1] - arrivals[0],
            step_seconds=tuple(np.diff(arrivals).tolist()),
            wait_seconds=waited,
            trainer_cpu_seconds=trainer_cpu,
            worker_cpu_seconds=workers_cpu,
            others_cpu_seconds=max(0.0, machine_cpu - trainer_cpu - workers_cpu),
            bytes=self.loader.stats()["bytes"] - read,
        )

    def log(self, measured: set[int]) -> list[dict[str, Any]]:
        """Return a line for each batch: its times, its rows of each dataset, and whether it was measured."""
        members = np.frombuffer(self._members, np.int16).reshape(-1, self.loader.batch_size)
        began, ended = np.asarray(self._times).reshape(-1, 2).T
        return [
            {
                "step": step,
                "at_s": ended[step] - began[0],
                "step_s": ended[step] - (ended[step - 1] if step else began[0]),
                "wait_s": ended[step] - began[step],
                "measured": step in measured,
                "rows": np.bincount(batch, minlength=len(self.loader.dataset_names)).tolist(),
            }
            for step, batch in enumerate(members)
        ]

    def close(self) -> float:
        """End the workers and return the seconds until the last one was gone."""
        began = time.perf_counter()
        self._iterator.close()
        psutil.wait_procs(self._workers, timeout=30)
        return time.perf_counter() - began

    def _note(self, _: int, made: BatchResult) -> None:
        self._members.frombytes(made.rows.member.tobytes())

    def _step(self) -> float:
        if self._compute and self.batches:
            time.sleep(self._compute)
        began = time.perf_counter()
        # The previous batch is released when the next one has arrived, as in `for batch in loader`.
        self._batch = next(self._iterator)
        ended = time.perf_counter()
        self._times.extend((began, ended))
        self.batches += 1
        return ended - began

    def _cpu(self) -> np.ndarray:
        """Return the CPU time of the machine, of the trainer, and of the workers."""
        workers = sum(sum(worker.cpu_times()[:2]) for worker in self._workers)
        return np.array([busy_seconds(), time.process_time(), workers])


def plan_slices(steps: int, *, step_seconds: float, lanes: int) -> list[int]:
    """Divide the measured batches into slices of at least a second, each a multiple of ``lanes``.

    >>> plan_slices(160, step_seconds=0.018, lanes=2)
    [40, 40, 40, 40]
    >>> plan_slices(400, step_seconds=0.010, lanes=3)
    [102, 102, 102, 102]
    """
    least_steps = max(_LEAST_STEPS, math.ceil(_SLICE_SECONDS / max(step_seconds, 1e-6)))
    slice_steps = max(1, min(least_steps, math.ceil(steps / _LEAST_SLICES)))
    slice_steps = math.ceil(slice_steps / lanes) * lanes
    return [slice_steps] * math.ceil(steps / slice_steps)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Measure a point, for ``ask``."""
    return measure_point(Parameters(**request))


def measure_point(parameters: Parameters) -> dict[str, Any]:
    """Measure a point once and return its figures (see ``summarise``), raw data and memory; see ``Trainer.log``."""
    began = time.perf_counter()
    loader = open_loader(parameters)
    open_seconds = time.perf_counter() - began
    with contextlib.ExitStack() as stack:
        trainer = Trainer(loader, compute_seconds=parameters.compute_sleep_ms / 1000)
        stack.callback(trainer.close)
        memory = MemoryLog(trainer.pids)
        limit = None
        if parameters.limit_s:
            config = loader.run_config
            limit = DecodeLimit(loader, processes=config.workers.num_processes or 1, threads=config.workers.num_threads)
            stack.enter_context(limit)
        step_seconds = trainer.warm_up(parameters.warmup - 1 + trainer.depth)
        slices: list[LoaderSlice] = []
        limits: list[Turn] = []
        measured: set[int] = set()
        # The limit is measured before each slice and after the last one.
        for steps in (*plan_slices(parameters.steps, step_seconds=step_seconds, lanes=trainer.lanes), 0):
            trainer.rest(step_seconds)
            memory.look(trainer.batches)
            if limit is not None:
                limits.append(limit.measure(parameters.limit_s))
            if steps:
                slices.append(trainer.run(steps))
                measured.update(range(trainer.batches - steps, trainer.batches))
                step_seconds = slices[-1].seconds / steps
        stats = loader.stats()
        close_seconds = trainer.close()
    figures = summarise(slices, limits, rows=loader.batch_size)
    return {
        "open_s": open_seconds,
        "first_batch_s": trainer.first_batch_seconds,
        "close_s": close_seconds,
        **figures,
        **memory.summary(),
        "datasets": list(loader.dataset_names),
        "batch_log": trainer.log(measured),
        "stats": stats,
        "slices": [dataclasses.asdict(part) for part in slices],
        "limit_slices": [dataclasses.asdict(part) for part in limits],
        "memory_samples": memory.samples,
    }


def summarise(slices: Sequence[LoaderSlice], limits: Sequence[Turn], *, rows: int) -> dict[str, Any]:
    """Return the figures of a point: rates are medians of the slices, step times are of all slices together.

    ``ratio`` and ``cpu_ratio`` (CPU time of a pair, the limit's divided by the loader's) are None without a limit.
    """
    batches = statistics.median(part.batches / part.seconds for part in slices)
    pairs = sum(part.batches for part in slices) * rows
    cpu_seconds = sum(part.cpu_seconds for part in slices) / pairs
    limit = statistics.median(part.pairs_per_s for part in limits) if limits else None
    limit_cpu = sum(part.cpu_seconds for part in limits) / sum(part.pairs for part in limits) if limits else None
    parts: list[LoaderSlice | Turn] = [*slices, *limits]
    others_cpu = sum(part.others_cpu_seconds for part in parts)
    return {
        "batches_per_s": batches,
        "samples_per_s": batches * rows,
        "limit_samples_per_s": limit,
        "ratio": batches * rows / limit if limit else None,
        "cpu_ratio": limit_cpu / cpu_seconds if limit_cpu and cpu_seconds else None,
        "others_cpu_share": others_cpu / max(1e-9, others_cpu + sum(part.cpu_seconds for part in parts)),
        "step_ms": step_times(np.concatenate([part.step_seconds for part in slices])),
        "wait_share": sum(part.wait_seconds for part in slices) / sum(part.seconds for part in slices),
        "cpu_s_per_1000_pairs": 1000 * cpu_seconds,
        "trainer_cpu_s_per_1000_pairs": 1000 * sum(part.trainer_cpu_seconds for part in slices) / pairs,
        "limit_cpu_s_per_1000_pairs": None if limit_cpu is None else 1000 * limit_cpu,
        "storage_bytes_per_s": sum(part.bytes for part in slices) / sum(part.seconds for part in slices),
        "bytes_per_pair": sum(part.bytes for part in slices) / pairs,
    }
