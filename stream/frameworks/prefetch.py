"""Batches moved to a device ahead of time, with a state that counts only the batches returned."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.batch.spec import Batch
from stream.loader.iterator import LoaderIterator, StepIterator
from stream.loader.loader import Loader


class Carrier(abc.ABC):
    """Base class of moving batches to a device."""

    @abc.abstractmethod
    def start(self, batch: Batch) -> Any:
        """Start moving a batch, and return the argument of ``finish`` without waiting."""

    def finish(self, carried: Any) -> Batch:
        """Return the batch, ready for use."""
        return carried

    def close(self) -> None:  # noqa: B027 - most carriers have nothing to end
        """End transfers in progress."""


class PrefetchIterator(StepIterator):
    """Batches of a loader in turn, the next ``prefetch`` of which are being moved already.

    It is a Grain iterator, which Grain's checkpoint handler takes. Its state is the step of the next batch that it
    returns, however many batches it has prefetched.

    Args:
        source: Batches.
        carrier: Moves each batch.
        prefetch: Batches to start beyond the returned batch, 0 for none.
        note: Called with the step of the next batch whenever it changes.

    Raises:
        ArgumentError: ``prefetch`` is not a whole number >= 0.
        StreamError: From ``next``, an error of ``source`` at its step, and again until ``set_state``.
    """

    def __init__(
        self, source: LoaderIterator, carrier: Carrier, *, prefetch: int = 1, note: Callable[[int], None] | None = None
    ) -> None:
        super().__init__(source.loader, source.step)
        self._source = source
        self._carrier = carrier
        self._prefetch = check_whole_number("prefetch", prefetch, least=0)
        self._note = note
        self._queue: deque[Any] = deque()
        self._failed: Exception | None = None

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
        """Fetch the next batches now, instead of with ``next``."""
        self.check_open()
        if self._failed is None and self._step + len(self._queue) != self._source.step:
            # Ctrl-C came between taking a batch and queueing it, or another user of the source took one.
            self.seek(self._step)
        while self._failed is None and len(self._queue) <= self._prefetch:
            try:
                self._queue.append(self._carrier.start(next(self._source)))
            except StopIteration:
                # A new one without traceback, which would keep this iterator and its workers alive in a circle.
                self._failed = StopIteration()
            except Exception as error:
                # Raised at its step, as the batches before it are valid.
                self._failed = error

    def seek(self, step: int) -> None:
        """Move to a step."""
        self._queue.clear()
        self._failed = None
        self._source.seek(step)
        self._step = step
        if self._note is not None:
            self._note(step)

    def __del__(self) -> None:
        """Leave the source open, unlike Grain: another user may continue with it, and it ends with its last user."""

    def close(self) -> None:
        """End workers and transfers; batches that were returned stay valid."""
        super().close()
        self._is_closed = True
        self._queue.clear()
        self._carrier.close()
        self._source.close()


def begin(source: Any) -> LoaderIterator:
    """Return the iterator of a Loader, or a LoaderIterator itself; raises ArgumentError for anything else."""
    if isinstance(source, Loader):
        return iter(source)
    if isinstance(source, LoaderIterator):
        return source
    raise ArgumentError(f"{type(source).__name__}: expected a Loader of make_loader, or an iterator of one")


def is_numeric(value: Any) -> bool:
    """Return whether a value of a batch is an array of numbers, which a device can hold."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc"
