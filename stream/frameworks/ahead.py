"""Batches carried on towards a device before they are asked for, with a state that counts those handed out only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import grain
import numpy as np

from stream.batch.spec import Batch
from stream.loader.iterator import Batches, LoaderIterator, check_open
from stream.loader.loader import Loader
from stream.storage.arguments import check_whole
from stream.storage.errors import ArgumentError


class Carrier:
    """Base of what takes batches to where they are used."""

    def start(self, batch: Batch) -> Any:
        """Begin with a batch, without waiting for the end; returns what ``finish`` takes."""
        raise NotImplementedError

    def finish(self, carried: Any) -> Batch:
        """Return the batch, fit for use."""
        return carried


class Ahead(grain.DatasetIterator[Batch]):
    """Batches of a loader in turn, of which the next ``prefetch`` are on their way already.

    A Grain iterator itself: ``get_state`` gives the step of the next batch that will be handed out, whatever was
    fetched beyond it, and Grain's checkpoint handler takes it.

    Args:
        source: the batches.
        carrier: takes each to its place.
        prefetch: batches that are started beyond the one handed out, 0 for none.
        note: called with the step of the next batch after each one that is handed out.

    Raises:
        ArgumentError: a ``prefetch`` that is not a number >= 0.
        StreamError: from ``next``, what ``source`` raises, at its step; then again until ``set_state``.
    """

    def __init__(
        self,
        source: LoaderIterator,
        carrier: Carrier,
        *,
        prefetch: int = 1,
        note: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__()
        self._source = source
        self._carrier = carrier
        self._prefetch = check_whole("prefetch", prefetch, least=0)
        self._note = note
        self._queue: deque[Any] = deque()
        self._step = source.step
        self._failed: Exception | None = None
        self._is_closed = False

    @property
    def loader(self) -> Batches:
        """The loader that this iterates."""
        return self._source.loader

    @property
    def step(self) -> int:
        """The step of the next batch."""
        return self._step

    def __next__(self) -> Batch:
        self.start_prefetch()
        if not self._queue:
            assert self._failed is not None
            raise self._failed
        batch = self._carrier.finish(self._queue.popleft())
        self._step += 1
        if self._note is not None:
            self._note(self._step)
        return batch

    def start_prefetch(self) -> None:
        """Fetch the next batches now; ``next`` does it otherwise."""
        check_open(self._is_closed)
        if self._failed is None and self._step + len(self._queue) != self._source.step:
            # Ctrl-C came between taking a batch and queueing it, or somebody else took one.
            self.seek(self._step)
        while self._failed is None and len(self._queue) <= self._prefetch:
            try:
                self._queue.append(self._carrier.start(next(self._source)))
            except StopIteration:
                # Without the traceback, which would keep this iterator and its workers alive in a circle.
                self._failed = StopIteration()
            except Exception as error:
                # Raised when its step is asked for: the batches before it are good.
                self._failed = error

    def get_state(self) -> dict[str, Any]:
        """Return a small JSON with the step of the next batch."""
        return self.loader.state_at(self._step)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to the step of a state; raises StateError if it is of another order of samples."""
        check_open(self._is_closed)
        self.seek(self.loader.step_of(state))

    def seek(self, step: int) -> None:
        """Make ``step`` the next one."""
        self._queue.clear()
        self._failed = None
        self._source.seek(step)
        self._step = step

    def __del__(self) -> None:
        """Grain's would close; but somebody else may go on with the source, which ends by itself with its last user."""

    def close(self) -> None:
        """End workers and what is under way; batches that were handed out stay as they are."""
        super().close()
        self._is_closed = True
        self._queue.clear()
        self._source.close()


def begin(source: Any) -> LoaderIterator:
    """Return the iterator of a Loader, or the LoaderIterator itself; raises ArgumentError for anything else."""
    if isinstance(source, Loader):
        return iter(source)
    if isinstance(source, LoaderIterator):
        return source
    raise ArgumentError(f"{type(source).__name__}: expected a Loader of make_loader, or an iterator of one")


def is_numeric(value: Any) -> bool:
    """Return whether a value of a batch is an array of numbers, which devices take."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc"
