"""Iteration over a loader: batches in turn, prefetched, with a state of one integer."""

from __future__ import annotations

import abc
import os
import time
import traceback
import weakref
from typing import Any

from stream.base.arguments import check_whole
from stream.batch.spec import Batch
from stream.loader.group import check_alone
from stream.loader.quiet_grain import grain
from stream.loader.rank_plan import RankPlan
from stream.order.rows import Rows
from stream.workers.source import BatchSource

_PLAN_AHEAD = 1024
"""Rows that are planned together, since planning costs numpy calls, not elements."""


class StepIterator(grain.DatasetIterator[Batch]):
    """Base class of iterators over a loader. The state is the next step, and what defines the order of samples."""

    def __init__(self, loader: Any, step: int = 0) -> None:
        super().__init__()
        self._loader = loader
        self._step = step
        self._is_closed = False

    @property
    def loader(self) -> Any:
        """The ``Loader`` that this iterates."""
        return self._loader

    @property
    def step(self) -> int:
        """Step of the next batch."""
        return self._step

    def get_state(self) -> dict[str, Any]:
        """Return the state as a small JSON object with the step of the next batch."""
        return self._loader.state_at(self._step)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to the step of a state. The state's loader may have other workers, ranks or metadata.

        Args:
            state: Result of ``get_state``.

        Raises:
            StateError: The state belongs to another order of samples; the message names the difference.
        """
        self.check_open()
        self.seek(self._loader.step_of(state))

    @abc.abstractmethod
    def seek(self, step: int) -> None:
        """Go to a step."""

    def check_open(self) -> None:
        """Raise ValueError if this iterator is closed."""
        if self._is_closed:
            raise ValueError("this iterator is closed; make a new one with iter(loader)")


class LoaderIterator(StepIterator):
    """Batches of a loader in turn.

    Workers start with the first ``next`` or ``start_prefetch``. They end with ``close``, or when the iterator is
    garbage collected. After an error ``next`` raises the same error until ``set_state``.

    Attributes:
        stop: Step at which iteration ends, None for no end; by default ``num_steps`` of the loader. You may change it.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.stop: int | None = loader.num_steps
        self._plan: RankPlan = loader.rank_plan
        self._submitted = 0
        self._source: BatchSource | None = None
        self._depth = 1
        self._end: weakref.finalize[Any, Any] | None = None
        self._error: BaseException | None = None
        self._planned: dict[int, Rows] = {}
        self._pid = os.getpid()

    def __next__(self) -> Batch:
        self.check_open()
        if self._error is not None:
            raise self._error
        if self.stop is not None and self._step >= self.stop:
            raise StopIteration
        began = time.perf_counter()
        try:
            self._plan.data.check.raise_error()
            self._fill()
            assert self._source is not None
            made = self._source.take(self._step)
        except Exception as error:
            # The frames of the traceback hold this iterator, and so its next workers, in a circle with the error.
            traceback.clear_frames(error.__traceback__)
            self._error = error
            self._stop()
            raise
        except BaseException:
            # Ctrl-C may have cut a worker's message; the next call starts new workers at the same step.
            self._stop()
            raise
        self._step += 1
        self._plan.counters.add(self._step - 1, made, time.perf_counter() - began)
        return made.batch

    def seek(self, step: int) -> None:
        """Go to a step."""
        if self._source is not None:
            self._source.forget()
        self._error = None
        self._step = self._submitted = check_whole("step", step, least=0)

    def start_prefetch(self) -> None:
        """Start workers and the first batches now, not with the first ``next``."""
        self.check_open()
        if self._error is None:
            self._fill()

    def close(self) -> None:
        """End the workers; batches that were returned stay valid."""
        super().close()
        self._is_closed = True
        self._stop()

    def _fill(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this iterator was made in another process, before a fork; make a new one with iter(loader)"
            )
        if self._source is None:
            if not self._loader.knows_ranks:
                check_alone()
            self._source, self._depth = self._plan.start()
            self._submitted = self._step
            self._end = weakref.finalize(self, _close, self._source, self._pid)
        ahead = self._step + self._depth
        while self._submitted < (ahead if self.stop is None else min(ahead, self.stop)):
            self._source.submit(self._submitted, self._rows(self._submitted))
            self._submitted += 1

    def _rows(self, step: int) -> Rows:
        if step not in self._planned:
            count = self._plan.rows
            end = step + max(1, _PLAN_AHEAD // count)
            steps = range(step, end if self.stop is None else min(end, self.stop))
            rows = self._plan.rows_of(steps)
            self._planned = {each: rows.cut(i * count, (i + 1) * count) for i, each in enumerate(steps)}
        return self._planned[step]

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._source = self._end = None


def _close(source: BatchSource, pid: int) -> None:
    """End the workers, unless this process is a forked child: the workers belong to its parent."""
    if os.getpid() == pid:
        source.close()
