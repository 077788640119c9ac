"""Iterating a loader: batches in turn, prefetched, with a state of one integer."""

from __future__ import annotations

import os
import time
import traceback
import weakref
from typing import Any, Protocol

import grain

from stream.batch.spec import Batch
from stream.loader.mixed import MixedData
from stream.loader.running import Running
from stream.loader.stats import Stats
from stream.loader.steps import Steps
from stream.order.rows import Rows
from stream.workers.ring import Ring
from stream.workers.source import BatchSource


class Batches(Protocol):
    """The parts of a loader that its iterators use."""

    batch_size: int
    num_steps: int | None
    world_size: int
    counters: Stats
    data: MixedData
    running: Running
    steps: Steps

    def make_source(self) -> tuple[BatchSource, Ring, int]:
        """Start workers or threads."""

    def state_at(self, step: int) -> dict[str, Any]:
        """Return the state whose next batch is that of a step."""

    def step_of(self, state: Any) -> int:
        """Return the step of a state."""

    def batch_on_host(self, step: int) -> Batch:
        """Return the batch of a step, decoded in this process."""


class LoaderIterator(grain.DatasetIterator[Batch]):
    """The batches of a loader in turn. Its state is the step, and what the order rests on.

    Workers start with the first ``next`` or ``start_prefetch``, and end with ``close``, or when the iterator is
    collected. After an error it raises the same again until ``set_state``.
    """

    def __init__(self, loader: Batches) -> None:
        super().__init__()
        self._loader = loader
        self._step = 0
        self._submitted = 0
        self._source: BatchSource | None = None
        self._depth = 1
        self._end: weakref.finalize[Any, Any] | None = None
        self._broken: BaseException | None = None
        self._planned: dict[int, Rows] = {}
        self._is_closed = False
        self._pid = os.getpid()

    @property
    def loader(self) -> Batches:
        """The loader that this iterates."""
        return self._loader

    @property
    def step(self) -> int:
        """The step of the next batch."""
        return self._step

    def __next__(self) -> Batch:
        check_open(self._is_closed)
        if self._broken is not None:
            raise self._broken
        if self._loader.num_steps is not None and self._step >= self._loader.num_steps:
            raise StopIteration
        began = time.perf_counter()
        try:
            self._loader.data.check.raise_error()
            self._fill()
            assert self._source is not None
            made = self._source.take(self._step)
        except Exception as error:
            # What the frames that failed hold, holds the error in turn: such a circle would keep this iterator, and its
            # next workers, alive until a garbage collection.
            traceback.clear_frames(error.__traceback__)
            self._broken = error
            self._stop()
            raise
        except BaseException:
            # Ctrl-C may have cut a worker's message in two; the next call starts anew at the same step.
            self._stop()
            raise
        self._step += 1
        stats = self._loader.counters
        stats.add(made, time.perf_counter() - began)
        return made.batch

    def get_state(self) -> dict[str, Any]:
        """Return a small JSON with the step of the next batch."""
        return self._loader.state_at(self._step)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to the step of a state, of this loader or of one with other workers, ranks, or metadata.

        Raises:
            StateError: the state is of another order of samples; names what differs.
        """
        check_open(self._is_closed)
        self.seek(self._loader.step_of(state))

    def seek(self, step: int) -> None:
        """Make ``step`` the next one."""
        if self._source is not None:
            self._source.forget()
        self._broken = None
        self._step = self._submitted = step

    def start_prefetch(self) -> None:
        """Start workers and the first batches now; ``next`` does it otherwise."""
        check_open(self._is_closed)
        if self._broken is None:
            self._fill()

    def close(self) -> None:
        """End workers; batches that were handed out stay as they are."""
        super().close()
        self._is_closed = True
        self._stop()

    def _fill(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this iterator was made in another process, before a fork; make a new one with iter(loader)"
            )
        if self._source is None:
            self._source, self._loader.counters.ring, self._depth = self._loader.make_source()
            self._submitted = self._step
            self._end = weakref.finalize(self, _close, self._source, self._pid)
        last = self._step + self._depth
        if self._loader.num_steps is not None:
            last = min(last, self._loader.num_steps)
        while self._submitted < last:
            self._source.submit(self._submitted, self._plan(self._submitted))
            self._submitted += 1

    def _plan(self, step: int) -> Rows:
        if step not in self._planned:
            steps = self._loader.steps
            ahead = range(step, step + steps.together)
            rows = steps.plan(ahead)
            own = (rows.cut(start, start + steps.rows) for start in range(0, len(rows), steps.rows))
            self._planned = dict(zip(ahead, own, strict=True))
        return self._planned[step]

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._source = self._end = None


def _close(source: BatchSource, pid: int) -> None:
    """End the workers, unless this is a child that was forked: they are its parent's."""
    if os.getpid() == pid:
        source.close()


def check_open(is_closed: bool) -> None:
    """Raise ValueError if an iterator is closed."""
    if is_closed:
        raise ValueError("this iterator is closed; make a new one with iter(loader)")
