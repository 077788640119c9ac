"""One measured point: ``python -m bench.loader.run``, started by ``bench.loader`` in a process of its own.

The machine is shared and its speed changes within seconds, so the loader and its limit are measured in short slices
in turns. Between its slices the loader's iterator stays open and its workers fill the ring and stop. What they had
ready by then would be free: each slice leaves out the first ``depth`` batches and one of every worker (``lanes``), and
counts from the arrival of one batch to the arrival of another, a multiple of ``lanes`` later. At the first mark all
workers have just begun with a batch; at the last one each may be up to a batch further, so the rate is right or a
little too low.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from bench.loader.sweep import Parameters, open_loader
from bench.measure.child import answer
from bench.measure.decode_limit import DecodeLimit, LimitSlice, decode_costs
from bench.measure.machine import busy_seconds
from bench.measure.memory import MemoryLog
from bench.measure.step_times import step_times
from stream.loader.iterator import LoaderIterator
from stream.loader.loader import Loader
from stream.workers.source import Made

_SLICE_SECONDS = 1.0
_LEAST_SLICES = 4
_LEAST_STEPS = 40


@dataclass(frozen=True, kw_only=True)
class LoaderSlice:
    """What the loader gave in one slice.

    batches, seconds: between two arrivals. step_seconds: from each arrival to the next, compute included.
    wait_seconds: spent in ``next``. trainer_cpu_seconds, worker_cpu_seconds: CPU time; others_cpu_seconds: of
    everything else on the machine. bytes: of records that were read for these batches.
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
    """Takes batches of a loader as a training loop does, and measures slices of that.

    Args:
        loader: to be iterated; the first batch is taken here.
        compute_seconds: sleep after each batch, as if a device computed.
    """

    def __init__(self, loader: Loader, *, compute_seconds: float) -> None:
        self.loader = loader
        self.lanes = loader.running.num_workers or loader.running.thread_count
        self.depth = loader.running.prefetch + 1
        self.batches = 0
        # Arrays: lists of these would grow by half a kilobyte a batch, which is what the loader must not do. Counted at
        # the end: done after each batch it took a tenth of the trainer's time.
        self._members = array.array("h")
        self._times = array.array("d")
        self._compute = compute_seconds
        self._batch: Any = None
        loader.counters.on_batch = self._note
        began = time.perf_counter()
        self._iterator: LoaderIterator = iter(loader)
        self._step()
        self.first_batch_seconds = time.perf_counter() - began
        self._workers = psutil.Process().children() if loader.running.num_workers else []

    @property
    def rows(self) -> list[list[int]]:
        """Of each batch, its rows of each dataset."""
        members = np.frombuffer(self._members, np.int16).reshape(-1, self.loader.batch_size)
        return [np.bincount(batch, minlength=len(self.loader.dataset_names)).tolist() for batch in members]

    @property
    def waits(self) -> list[tuple[int, float, float]]:
        """Of each batch, its step, and from when to when it was waited for."""
        times = self._times.tolist()
        return list(zip(range(self.batches), times[::2], times[1::2], strict=True))

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the trainer and the workers."""
        return (os.getpid(), *(worker.pid for worker in self._workers))

    def warm_up(self, steps: int) -> float:
        """Take batches; returns the seconds that one took."""
        began = time.perf_counter()
        for _ in range(steps):
            self._step()
        return (time.perf_counter() - began) / max(1, steps)

    def rest(self, step_seconds: float) -> None:
        """Wait until the workers have filled the ring and stopped."""
        time.sleep(min(5.0, 0.03 + 2 * self.depth * step_seconds))

    def run(self, steps: int) -> LoaderSlice:
        """Measure so many batches, after those that were ready before."""
        for _ in range(self.depth + self.lanes):
            self._step()
        read = self.loader.stats()["bytes"]
        busy, mine, theirs = busy_seconds(), time.process_time(), self._worker_cpu()
        arrivals, waited = [time.perf_counter()], 0.0
        for _ in range(steps):
            waited += self._step()
            arrivals.append(time.perf_counter())
        busy, mine, theirs = busy_seconds() - busy, time.process_time() - mine, self._worker_cpu() - theirs
        return LoaderSlice(
            batches=steps,
            seconds=arrivals[-1] - arrivals[0],
            step_seconds=tuple(np.diff(arrivals).tolist()),
            wait_seconds=waited,
            trainer_cpu_seconds=mine,
            worker_cpu_seconds=theirs,
            others_cpu_seconds=max(0.0, busy - mine - theirs),
            bytes=self.loader.stats()["bytes"] - read,
        )

    def close(self) -> float:
        """End the workers; returns the seconds until the last of them was gone."""
        began = time.perf_counter()
        self._iterator.close()
        psutil.wait_procs(self._workers, timeout=30)
        return time.perf_counter() - began

    def _note(self, made: Made) -> None:
        self._members.frombytes(made.rows.member.tobytes())

    def _step(self) -> float:
        if self._compute and self.batches:
            time.sleep(self._compute)
        began = time.perf_counter()
        # The batch before is let go of only when the next one is there, as `for batch in loader` does.
        self._batch = next(self._iterator)
        ended = time.perf_counter()
        self._times.extend((began, ended))
        self.batches += 1
        return ended - began

    def _worker_cpu(self) -> float:
        total = 0.0
        for worker in self._workers:
            with contextlib.suppress(psutil.Error):
                times = worker.cpu_times()
                total += times.user + times.system
        return total


def plan_slices(steps: int, *, step_seconds: float, lanes: int) -> list[int]:
    """Divide the measured batches into slices of a second or more, each a multiple of ``lanes``.

    >>> plan_slices(160, step_seconds=0.018, lanes=2)
    [40, 40, 40, 40]
    >>> plan_slices(400, step_seconds=0.010, lanes=3)
    [102, 102, 102, 102]
    """
    wanted = max(_LEAST_STEPS, math.ceil(_SLICE_SECONDS / max(step_seconds, 1e-6)))
    each = max(1, min(wanted, math.ceil(steps / _LEAST_SLICES)))
    each = math.ceil(each / lanes) * lanes
    return [each] * math.ceil(steps / each)


def measure_point(parameters: Parameters) -> dict[str, Any]:
    """Measure a point once; returns its figures, see ``summarise``, and ``close_s``: seconds until all workers were
    gone.

    ``batch_log`` has of each batch taken its step, when it came, how long it took (compute included) and was waited
    for, its rows of each dataset, and whether it was measured.

    Raises:
        StreamError, FormatError, LimitFailed, OSError: what the loader or the limit raises.
    """
    began = time.perf_counter()
    loader = open_loader(parameters)
    open_seconds = time.perf_counter() - began
    with contextlib.ExitStack() as stack:
        trainer = Trainer(loader, compute_seconds=parameters.compute_sleep_ms / 1000)
        stack.callback(trainer.close)
        memory = MemoryLog(trainer.pids)
        limit = None
        if parameters.limit_s:
            shape = (loader.running.num_workers or 1, loader.running.thread_count)
            limit = stack.enter_context(DecodeLimit(loader, processes=shape[0], threads=shape[1]))
        step_seconds = trainer.warm_up(parameters.warmup - 1 + trainer.depth)
        ours: list[LoaderSlice] = []
        limits: list[LimitSlice] = []
        measured: set[int] = set()
        for steps in plan_slices(parameters.steps, step_seconds=step_seconds, lanes=trainer.lanes):
            trainer.rest(step_seconds)
            memory.look(trainer.batches)
            if limit is not None:
                limits.append(limit.measure(parameters.limit_s))
            ours.append(trainer.run(steps))
            measured.update(range(trainer.batches - steps, trainer.batches))
            step_seconds = ours[-1].seconds / steps
        trainer.rest(step_seconds)
        memory.look(trainer.batches)
        if limit is not None:
            limits.append(limit.measure(parameters.limit_s))
        stats = loader.stats()
        close_seconds = trainer.close()
    figures = summarise(ours, limits, rows=loader.batch_size)
    return {
        "open_s": open_seconds,
        "first_batch_s": trainer.first_batch_seconds,
        "close_s": close_seconds,
        **figures,
        **memory.summary(),
        "datasets": list(loader.dataset_names),
        "weights": [loader.weights[name] for name in loader.dataset_names],
        "decode_costs": decode_costs(loader) if parameters.costs else None,
        "batch_log": _batch_log(trainer, measured),
        "stats": stats,
        "slices": [dataclasses.asdict(part) for part in ours],
        "limit_slices": [dataclasses.asdict(part) for part in limits],
        "memory_samples": [dataclasses.asdict(sample) for sample in memory.samples],
    }


def _batch_log(trainer: Trainer, measured: set[int]) -> list[dict[str, Any]]:
    log = []
    waits = trainer.waits
    zero = before = waits[0][1]
    for (step, began, ended), rows in zip(waits, trainer.rows, strict=True):
        entry = {"step": step, "at_s": ended - zero, "step_s": ended - before, "wait_s": ended - began}
        log.append({**entry, "measured": step in measured, "rows": rows})
        before = ended
    return log


def summarise(ours: Sequence[LoaderSlice], limits: Sequence[LimitSlice], *, rows: int) -> dict[str, Any]:
    """Return the figures of a point: rates are medians of the slices, step times those of all slices together.

    ratio: of the medians, loader to limit, None without a limit. cpu_ratio: CPU seconds per pair, limit to loader: the
    part of the loader's work that is decoding, whatever else the machine does. others_cpu_share: the part of the
    machine's CPU time that neither took. storage_bytes_per_s: of records, what the storage has to give.
    """
    batches = statistics.median(part.batches / part.seconds for part in ours)
    pairs = sum(part.batches for part in ours) * rows
    cpu = sum(part.cpu_seconds for part in ours) / pairs
    limit = statistics.median(part.pairs_per_s for part in limits) if limits else None
    limit_cpu = sum(part.cpu_seconds for part in limits) / sum(part.pairs for part in limits) if limits else None
    parts: list[LoaderSlice | LimitSlice] = [*ours, *limits]
    others = sum(part.others_cpu_seconds for part in parts)
    return {
        "batches_per_s": batches,
        "samples_per_s": batches * rows,
        "limit_samples_per_s": limit,
        "ratio": batches * rows / limit if limit else None,
        "cpu_ratio": limit_cpu / cpu if limit_cpu and cpu else None,
        "others_cpu_share": others / max(1e-9, others + sum(part.cpu_seconds for part in parts)),
        "step_ms": step_times(np.concatenate([part.step_seconds for part in ours])),
        "wait_share": sum(part.wait_seconds for part in ours) / sum(part.seconds for part in ours),
        "cpu_s_per_1000_pairs": 1000 * cpu,
        "trainer_cpu_s_per_1000_pairs": 1000 * sum(part.trainer_cpu_seconds for part in ours) / pairs,
        "limit_cpu_s_per_1000_pairs": None if limit_cpu is None else 1000 * limit_cpu,
        "storage_bytes_per_s": sum(part.bytes for part in ours) / sum(part.seconds for part in ours),
        "bytes_per_pair": sum(part.bytes for part in ours) / pairs,
    }


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Measure the point of a request of ``bench.loader``."""
    return measure_point(Parameters(**request))


if __name__ == "__main__":
    sys.exit(answer(run))
