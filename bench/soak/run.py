"""A training run's worth of trouble for the loader: workers killed and stopped, states set, evaluation in between."""

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
from bench.soak.check import differences
from stream import WorkerError, digest, make_loader
from stream.loader.iterator import LoaderIterator

CHECKED = 24
"""Batches between two events that are compared with a fresh loader's: the first and last few, and others by chance."""
_ENDS = 4
_FARTHEST = 10**8
_PAUSE_S = 1.0
_GONE_S = 5.0
_HANDLES = 8
_FEWEST = 20
"""Samples of memory below which nothing is said of growth."""
_WARM_UP = 0.1
"""The share of memory samples at the start that the slope leaves out: shards are opened, pools fill."""


class Soak:
    """Streams for a while; what it saw is in ``result``.

    Args:
        train, val: arguments of ``make_loader``; those of ``val`` with ``num_steps``.
        seconds: how long.
        event_every: seconds of streaming between two events.
        seed: of events and of what is checked.
        say: takes lines of progress.
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
        self._shm = _entries("/dev/shm")
        self._log = MemoryLog(None)
        self._own = MemoryLog(None, measure=own_set)
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
            "loader made anew": self._remake,
            "state of a random step set": self._seek,
            "evaluation loop": self._evaluate,
        }

    def run(self) -> None:
        """Stream until the time is over, or Ctrl-C."""
        waiting: list[str] = []
        try:
            while time.monotonic() - self._began < self._seconds:
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
                minutes = (time.monotonic() - self._began) / 60
                total = self._own.samples[-1].total or 0
                self._say(f"{minutes:.1f} min, {self._batches:,} batches, {total / 1e6:,.0f} MB; {kind}")
            self._check()
        except (WorkerError, ChildFailed) as error:
            self._problems.append(f"{type(error).__name__}: {' '.join(str(error).split())}")
        finally:
            self._iterator.close()
        self._look_for_leftovers()

    @property
    def result(self) -> dict[str, Any]:
        """What was seen, for JSON; ``problems`` is empty if all is well."""
        skipped = int(len(self._times) * _WARM_UP)
        totals = [sample.total or 0 for sample in self._log.samples]
        own = [sample.total or 0 for sample in self._own.samples]
        rise, error = slope(self._times[skipped:], own[skipped:])
        problems = list(self._problems)
        if len(totals) >= _FEWEST and rise is not None and error is not None:
            if rise > 3 * error and rise * 3600 > 1e6:
                told = f"{rise * 3600 / 1e6:.1f} MB an hour, standard error {error * 3600 / 1e6:.1f}"
                problems.append(f"memory grows by {told}")
            # The ring has a few slots more after some states were set; it must not go on like that.
            first, last = max(self._handles[: len(totals) // 2]), self._handles[-1]
            if last > first + _HANDLES:
                problems.append(f"open files of the trainer: at most {first} in the first half, {last} at last")
        return {
            "seconds": time.monotonic() - self._began,
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
                "slope_bytes_per_hour": None if rise is None else rise * 3600,
                "slope_error_per_hour": None if error is None else error * 3600,
                "left_out_samples": skipped,
                "over_time": [
                    [round(at, 1), total, mine, handles]
                    for at, total, mine, handles in zip(self._times, totals, own, self._handles, strict=True)
                ],
            },
            "problems": problems,
        }

    def _stream(self) -> None:
        end = min(time.monotonic() + self._event_every, self._began + self._seconds)
        while time.monotonic() < end:
            self._next()

    def _next(self) -> None:
        step = self._iterator.step
        batch = next(self._iterator)
        found = digest(batch)
        self._batches += 1
        # A step that comes again has to be the same again.
        if self._seen.setdefault(step, found) != found:
            self._problems.append(f"step {step} gave {self._seen[step][:16]}, then {found[:16]}")

    def _look(self) -> None:
        self._log.look(self._batches)
        self._own.look(self._batches)
        self._times.append(time.monotonic() - self._began)
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
        self._worker().kill()
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
        worker = self._worker()
        worker.suspend()
        time.sleep(_PAUSE_S)
        worker.resume()

    def _rebuild(self) -> None:
        state = self._iterator.get_state()
        self._iterator = self._replaced(state)

    def _remake(self) -> None:
        state = self._iterator.get_state()
        self._iterator.close()
        self._loader = make_loader(**self._train)
        self._iterator = self._replaced(state)

    def _replaced(self, state: dict[str, Any]) -> LoaderIterator:
        iterator = iter(self._loader)
        iterator.set_state(state)
        return iterator

    def _seek(self) -> None:
        self._iterator.set_state(self._loader.state_at(self._random.randrange(_FARTHEST)))

    def _evaluate(self) -> None:
        found = "".join(digest(batch) for batch in make_loader(**self._val))
        self._val_digest = self._val_digest or found
        if found != self._val_digest:
            self._problems.append("an evaluation loop had other batches than the first one")

    def _worker(self) -> psutil.Process:
        return self._random.choice([child for child in psutil.Process().children() if _is_worker(child)])

    def _look_for_leftovers(self) -> None:
        gc.collect()
        end = time.monotonic() + _GONE_S
        while (left := [child.pid for child in psutil.Process().children() if _is_worker(child)]) and (
            time.monotonic() < end
        ):
            time.sleep(0.05)
        if left:
            self._problems.append(f"worker processes left: {left}")
        if new := sorted(_entries("/dev/shm") - self._shm):
            self._problems.append(f"left in /dev/shm: {', '.join(new)}")


def _is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "stream.worker" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _entries(folder: str) -> set[str]:
    return {entry.name for entry in Path(folder).iterdir()} if Path(folder).is_dir() else set()
