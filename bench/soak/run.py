"""A long run of the loader with trouble: workers killed and stopped, states set, evaluation in between."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from bench.measure.child import ChildFailed
from bench.measure.machine import own_set
from bench.measure.memory import MemoryLog, slope
from bench.measure.session import wait_until
from bench.soak.check import differences
from stream import WorkerError, digest, make_loader

CHECKED = 24
"""Batches between two events to compare with a fresh loader: the first and last few, and random others."""
_ENDS = 4
_FARTHEST = 10**8
_PAUSE_S = 1.0
_GONE_S = 5.0
_MORE_HANDLES = 8
_FEWEST = 20
"""Samples of memory below which growth is not judged."""
_WARM_UP = 0.1
"""Share of memory samples at the start that the slope leaves out: shards are opened, pools fill."""


class Soak:
    """A run of the loader for some time; ``result`` has the findings.

    Args:
        train: Arguments of ``make_loader``.
        val: Arguments of ``make_loader`` for evaluation loops, with ``num_steps``.
        seconds: Time to run.
        event_every: Seconds of streaming between two events.
        seed: Seed of events and of the batches to check.
        say: Takes lines of progress.
    """

    def __init__(
        self,
        train: Mapping[str, Any],
        val: Mapping[str, Any],
        *,
        seconds: float,
        event_every: float,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self._train, self._val = dict(train), dict(val)
        self._seconds, self._event_every, self._say = seconds, event_every, say
        self._random = random.Random(seed)
        self._shm = _shared_memory()
        self._memory, self._own = MemoryLog(None), MemoryLog(None, measure=own_set)
        self._times: list[float] = []
        self._handles: list[int] = []
        self._events: Counter[str] = Counter()
        self._recovery: defaultdict[str, list[float]] = defaultdict(list)
        self._problems: list[str] = []
        self._seen: dict[int, str] = {}
        self._batches = self._checked = 0
        self._val_digest: str | None = None
        self._loader = make_loader(**self._train)
        self._iterator = iter(self._loader)
        self._began = time.monotonic()
        self._kinds = {
            "worker killed": self._kill_worker,
            "worker stopped, continued": self._stop_worker,
            "iterator rebuilt from its state": self._rebuild,
            "new loader": self._renew,
            "state of a random step set": self._seek,
            "evaluation loop": self._evaluate,
        }

    def run(self) -> None:
        """Stream until the time is over, or Ctrl-C."""
        waiting: list[str] = []
        try:
            while self._elapsed() < self._seconds:
                self._stream()
                self._look()
                self._check()
                if not waiting:
                    waiting = self._random.sample(sorted(self._kinds), len(self._kinds))
                kind = waiting.pop()
                self._events[kind] += 1
                began = time.monotonic()
                self._kinds[kind]()
                self._next()
                self._recovery[kind].append(time.monotonic() - began)
                megabytes = (self._own.samples[-1].total or 0) / 1e6
                self._say(f"{self._elapsed() / 60:.1f} min, {self._batches:,} batches, {megabytes:,.0f} MB; {kind}")
            self._check()
        except (WorkerError, ChildFailed) as error:
            self._problems.append(f"{type(error).__name__}: {' '.join(str(error).split())}")
        finally:
            self._iterator.close()
        self._look_for_leftovers()

    @property
    def result(self) -> dict[str, Any]:
        """Return the findings for JSON; ``problems`` is empty if all is well."""
        skipped = int(len(self._times) * _WARM_UP)
        totals, own = ([sample.total or 0 for sample in log.samples] for log in (self._memory, self._own))
        rise, error = slope(self._times[skipped:], own[skipped:])
        hourly, hourly_error = (None if value is None else value * 3600 for value in (rise, error))
        problems = list(self._problems)
        if len(totals) >= _FEWEST and hourly is not None and hourly_error is not None:
            if hourly > max(3 * hourly_error, 1e6):
                problems.append(
                    f"memory grows by {hourly / 1e6:.1f} MB an hour, standard error {hourly_error / 1e6:.1f}"
                )
            # Some states give the ring a few more slots; it must not grow further.
            first, last = max(self._handles[: len(totals) // 2]), self._handles[-1]
            if last > first + _MORE_HANDLES:
                problems.append(f"open files of the trainer: at most {first} in the first half, {last} at last")
        samples = zip(self._times, totals, own, self._handles, strict=True)
        return {
            "seconds": self._elapsed(),
            "batches": self._batches,
            "samples": self._batches * self._loader.batch_size,
            "checked": self._checked,
            "events": dict(sorted(self._events.items())),
            "recovery_s": {
                kind: {"median": statistics.median(found), "max": max(found)}
                for kind, found in sorted(self._recovery.items())
            },
            "memory": {
                "peak_pss_bytes": max(totals, default=None),
                "final_pss_bytes": totals[-1] if totals else None,
                "final_own_bytes": own[-1] if own else None,
                "slope_bytes_per_hour": hourly,
                "slope_error_per_hour": hourly_error,
                "left_out_samples": skipped,
                "over_time": [[round(at, 1), *figures] for at, *figures in samples],
            },
            "problems": problems,
        }

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _stream(self) -> None:
        end = min(self._elapsed() + self._event_every, self._seconds)
        while self._elapsed() < end:
            self._next()

    def _next(self) -> None:
        step = self._iterator.step
        found = digest(next(self._iterator))
        self._batches += 1
        # A repeated step must give the same batch.
        if self._seen.setdefault(step, found) != found:
            self._problems.append(f"step {step} gave {self._seen[step][:16]}, then {found[:16]}")

    def _look(self) -> None:
        self._memory.look(self._batches)
        self._own.look(self._batches)
        self._times.append(self._elapsed())
        self._handles.append(len(os.listdir("/proc/self/fd")))

    def _check(self) -> None:
        steps = list(self._seen)
        chosen = {*steps[:_ENDS], *steps[-_ENDS:]}
        chosen.update(self._random.sample(steps, min(len(steps), CHECKED - 2 * _ENDS)))
        if chosen:
            self._problems += differences(self._train, {step: self._seen[step] for step in chosen})
            self._checked += len(chosen)
        self._seen.clear()

    def _kill_worker(self) -> None:
        self._random.choice(_workers()).kill()
        state = self._iterator.get_state()
        for _ in range(20):
            try:
                state = self._iterator.get_state()
                self._next()
            except WorkerError:
                break
        else:
            self._problems.append("a worker was killed and 20 batches came without an error")
        if self._iterator.get_state() != state:
            self._problems.append(f"the error moved the state from {state} to {self._iterator.get_state()}")
        self._iterator.set_state(state)

    def _stop_worker(self) -> None:
        worker = self._random.choice(_workers())
        worker.suspend()
        time.sleep(_PAUSE_S)
        worker.resume()

    def _rebuild(self) -> None:
        state = self._iterator.get_state()
        self._iterator = iter(self._loader)
        self._iterator.set_state(state)

    def _renew(self) -> None:
        state = self._iterator.get_state()
        self._iterator.close()
        self._loader = make_loader(**self._train)
        self._iterator = iter(self._loader)
        self._iterator.set_state(state)

    def _seek(self) -> None:
        self._iterator.set_state(self._loader.state_at(self._random.randrange(_FARTHEST)))

    def _evaluate(self) -> None:
        found = "".join(digest(batch) for batch in make_loader(**self._val))
        self._val_digest = self._val_digest or found
        if found != self._val_digest:
            self._problems.append("an evaluation loop had other batches than the first one")

    def _look_for_leftovers(self) -> None:
        gc.collect()
        if not wait_until(lambda: not _workers(), seconds=_GONE_S, poll=0.05):
            self._problems.append(f"worker processes left: {[worker.pid for worker in _workers()]}")
        if new := sorted(_shared_memory() - self._shm):
            self._problems.append(f"left in /dev/shm: {', '.join(new)}")


def _workers() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "stream.worker" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
