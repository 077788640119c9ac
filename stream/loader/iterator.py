"""Iteration over a loader: batches in turn, prefetched, with a state of one integer."""

from __future__ import annotations

import abc
import os
import sys
import time
import traceback
import weakref
from typing import Any

from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.base.quiet_grain import grain
from stream.batch.spec import Batch
from stream.loader.rank_plan import RankPlan
from stream.order.rows import Rows
from stream.workers.source import BatchSource

_PLANNED_ROWS = 1024
"""Rows that are planned together, since planning costs numpy calls, not elements."""


class StepIterator(grain.DatasetIterator[Batch]):
    """Base class of iterators over a loader. The state is the next step, and the fingerprint of the order."""

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
        """Move to the step of a state. The state's loader may have other workers, ranks or content.

        Args:
            state: Result of ``get_state``.

        Raises:
            StateError: The state belongs to another order of samples; the message names the difference.
        """
        self.check_open()
        self.seek(self._loader.step_of(state))

    @abc.abstractmethod
    def seek(self, step: int) -> None:
        """Move to a step."""

    def check_open(self) -> None:
        """Raise ValueError if this iterator is closed."""
        if self._is_closed:
            raise ValueError("this iterator is closed; make a new one with iter(loader)")


class LoaderIterator(StepIterator):
    """Batches of a loader in turn.

    Workers start with the first ``next`` or ``start_prefetch``. They end with ``close``, or when the iterator is
    garbage collected. After an error, ``next`` raises the same error until ``set_state``.

    Attributes:
        stop: Step at which iteration ends, None for no end; by default ``num_steps`` of the loader. It may be changed.
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
        start_time = time.perf_counter()
        try:
            self._plan.mixture.check.raise_error()
            self._fill()
            assert self._source is not None
            result = self._source.take(self._step)
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
        self._plan.counters.add(self._step - 1, result, time.perf_counter() - start_time)
        return result.batch

    def seek(self, step: int) -> None:
        """Move to a step."""
        if self._source is not None:
            self._source.forget()
        self._error = None
        self._step = self._submitted = check_whole_number("step", step, least=0)

    def start_prefetch(self) -> None:
        """Start workers and the first batches now, instead of with the first ``next``."""
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
                _check_alone()
            self._source, self._depth = self._plan.start()
            self._submitted = self._step
            self._end = weakref.finalize(self, _close, self._source, self._pid)
        stop = self._step + self._depth
        while self._submitted < (stop if self.stop is None else min(stop, self.stop)):
            self._source.submit(self._submitted, self._rows(self._submitted))
            self._submitted += 1

    def _rows(self, step: int) -> Rows:
        if step not in self._planned:
            # Plan several steps in one call, then cut its rows into batches.
            count = self._plan.rows
            planned_stop = step + max(1, _PLANNED_ROWS // count)
            planned_steps = range(step, planned_stop if self.stop is None else min(planned_stop, self.stop))
            rows = self._plan.rows_of(planned_steps)
            first_rows = range(0, len(planned_steps) * count, count)
            self._planned = {
                step: rows.cut(first, first + count) for step, first in zip(planned_steps, first_rows, strict=True)
            }
        return self._planned[step]

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._source = self._end = None


def _close(source: BatchSource, creator_pid: int) -> None:
    """End the workers, unless this process is a forked child: the workers belong to its parent."""
    if os.getpid() == creator_pid:
        source.close()


def _check_alone() -> None:
    """Raise ArgumentError if this process is one of several, which would all train on the rows of all.

    torch and JAX are asked only if this process has imported them.
    """
    torch, jax = sys.modules.get("torch.distributed"), sys.modules.get("jax")
    world_size = os.environ.get("WORLD_SIZE", "")
    if torch is not None and torch.is_available() and torch.is_initialized() and torch.get_world_size() > 1:
        group = f"torch.distributed has {torch.get_world_size()} processes"
    elif world_size.isdecimal() and int(world_size) > 1:
        group = f"WORLD_SIZE is {world_size}"
    # The count is asked only once several processes may be connected: the question starts JAX's backend.
    elif jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1:
        group = f"JAX has {jax.process_count()} processes"
    else:
        return
    raise ArgumentError(
        f"{group}, and the loader has no rank, so each process would get the rows of all; give make_loader "
        "rank= and world_size=, for example **stream.torch.ranks() or **stream.jax.ranks(); rank=0, world_size=1 gives "
        "every process all rows on purpose"
    )
