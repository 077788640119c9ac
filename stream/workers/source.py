"""Sources of the batches of an iterator: worker processes, or a thread of this process."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from stream.base.errors import ArgumentError, RecordError, StreamError, WorkerError
from stream.batch.maker import BatchMaker
from stream.batch.result import BatchResult, PendingBatch
from stream.order.plan import Plan
from stream.order.rows import ROW_TYPE, Rows
from stream.workers.pool import Job, Worker, WorkerPool
from stream.workers.protocol import COPIED, read_batch
from stream.workers.ring import Ring, Slot

MAX_ATTEMPTS = 100
"""Most replacements of one sample."""


class Replacer:
    """Rule for rows that cannot be read: ``raise`` the error, or ``replace`` it by another row of the same dataset.

    Raises ArgumentError for another ``on_error``.
    """

    def __init__(self, plan: Plan, on_error: str) -> None:
        if on_error not in ("raise", "replace"):
            raise ArgumentError(f"on_error={on_error!r}; expected 'raise' or 'replace'")
        self._plan = plan
        self._on_error = on_error

    def replace(self, result: BatchResult, failed: Sequence[tuple[int, RecordError]], *, step: int) -> None:
        """Replace the rows of a result that failed; raise the RecordError by ``on_error``, or after many attempts."""
        errors = [replace(error, step=step) for _, error in failed]
        if self._on_error != "replace":
            raise errors[0]
        if result.attempts == MAX_ATTEMPTS:
            reason = f"{errors[0].reason} (and {MAX_ATTEMPTS} replacements of the same dataset failed too)"
            raise replace(errors[0], reason=reason)
        result.attempts += 1
        result.replaced += errors
        bad_rows = np.array([row for row, _ in failed])
        replacements = self._plan.replacements(result.rows.sample[bad_rows], result.attempts)
        result.rows = result.rows.replaced(bad_rows, replacements)


def make_here(
    maker: BatchMaker,
    replacer: Replacer,
    step: int,
    rows: Rows,
    arrays: dict[str, np.ndarray] | None = None,
    pending: PendingBatch | None = None,
) -> BatchResult:
    """Make a batch in this thread, in ``arrays`` or in new memory."""
    result = BatchResult(rows)
    while True:
        attempt = maker.make(step, result.rows, arrays, pending)
        pending = None
        result.work.add(attempt.work)
        if not attempt.failed:
            result.batch = attempt.batch
            return result
        replacer.replace(result, attempt.failed, step=step)


@dataclass
class _Submitted:
    """A batch that was submitted and not taken; ``job`` and ``worker`` make it."""

    result: BatchResult
    job: Job | None = None
    worker: Worker | None = None
    error: Exception | None = None


class ProcessSource:
    """Batches of worker processes, through the ring; one worker makes one batch in its slot."""

    def __init__(self, maker: BatchMaker, *, workers: int, replacer: Replacer, ring: Ring) -> None:
        self._replacer = replacer
        self._ring = ring
        self._layout = maker.layout
        self._submitted: dict[int, _Submitted] = {}
        self._pool = WorkerPool(maker.setup, workers)

    def submit(self, step: int, rows: Rows) -> None:
        """Send a batch to the worker with the fewest jobs."""
        # Replies that have arrived change the choice.
        for worker in self._pool.ready():
            self._receive(worker)
        # An idle worker that was lost is an error of the next batch.
        submitted = self._submitted[step] = _Submitted(BatchResult(rows), error=self._pool.lost)
        if submitted.error is None:
            worker = min(self._pool.workers, key=lambda worker: len(worker.jobs))
            self._send(submitted, step, self._ring.take(), worker)

    def take(self, step: int) -> BatchResult:
        """Wait for a batch that was submitted.

        Raises:
            RecordError: A record cannot be read.
            WorkerError: The worker of the batch was lost, or a transform failed.
            StreamError: Something else failed in the worker, which the message names.
        """
        submitted = self._submitted[step]
        while submitted.worker is not None:
            self._receive(submitted.worker)
        del self._submitted[step]
        if submitted.error is not None:
            raise submitted.error
        return submitted.result

    def forget(self) -> None:
        """Drop all batches that were not taken; their slots return to the ring when the workers finish."""
        self._submitted.clear()

    def close(self) -> None:
        """End the workers."""
        self._pool.close()
        self._ring.close()
        self._submitted.clear()
        for worker in self._pool.workers:
            while worker.jobs:
                self._ring.give(worker.jobs.popleft().slot)

    def _send(self, submitted: _Submitted, step: int, slot: Slot, worker: Worker) -> None:
        rows = submitted.result.rows
        np.frombuffer(slot.map, ROW_TYPE, len(rows))[:] = rows.table
        submitted.job, submitted.worker = Job(step, len(rows), slot), worker
        worker.send(submitted.job)

    def _receive(self, worker: Worker) -> None:
        for job in self._pool.receive(worker):
            submitted = self._submitted.get(job.step)
            if submitted is None or submitted.job is not job:
                # The batch was dropped by ``forget``.
                self._ring.give(job.slot)
                continue
            try:
                self._finish(submitted, job, worker)
            except StreamError as error:
                self._ring.give(job.slot)
                # The frames of a traceback would keep this source alive in a circle.
                submitted.error = error.with_traceback(None)

    def _finish(self, submitted: _Submitted, job: Job, worker: Worker) -> None:
        """Store the batch of a job that is done, or send it again with other rows for the ones that failed."""
        reply, result = job.reply, submitted.result
        submitted.worker = None
        assert reply is not None, "the job is done"
        if isinstance(reply, WorkerError):
            raise reply
        result.work.add(reply.work)
        if isinstance(reply.error, Exception):
            reply.error.args = (f"step {job.step}: {worker.name}: {reply.error}",)
            raise reply.error
        if reply.error:
            raise _not_made(f"{worker.name}: ", reply.error, job.step)
        # The worker may have enlarged the slot.
        job.slot.refit()
        if reply.failed:
            self._replacer.replace(result, reply.failed, step=job.step)
            self._send(submitted, job.step, job.slot, worker)
        else:
            result.batch = read_batch(reply, self._layout, self._ring.lend(job.slot))


class ThreadSource:
    """Batches of a thread of this process, in slots of the ring too."""

    def __init__(self, maker: BatchMaker, *, replacer: Replacer, ring: Ring) -> None:
        self._replacer = replacer
        self._ring = ring
        self._maker = maker
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="stream-batch")
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="stream-ahead") if maker.asks_ahead else None
        self._batches: dict[int, Future[BatchResult | Exception]] = {}

    def submit(self, step: int, rows: Rows) -> None:
        """Queue a batch."""
        layout = self._maker.layout
        arrays = layout.arrays(self._ring.lend(self._ring.take()), len(rows))
        # A small array in use would keep its slot.
        copied = (name for name, array in arrays.items() if name not in layout.images and array.nbytes <= COPIED)
        arrays |= {name: np.empty_like(arrays[name]) for name in copied}
        pending = None if self._ahead is None else self._ahead.submit(self._maker.begin, rows, arrays)
        self._batches[step] = self._pool.submit(self._make, step, rows, arrays, pending)

    def take(self, step: int) -> BatchResult:
        """Wait for a batch that was submitted; raise StreamError or FormatError if it failed."""
        result = self._batches.pop(step).result()
        if isinstance(result, Exception):
            raise result
        return result

    def forget(self) -> None:
        """Drop all batches that were not taken."""
        for batch in self._batches.values():
            batch.cancel()
        self._batches.clear()

    def close(self) -> None:
        """End the thread after its current batch."""
        self.forget()
        for pool in filter(None, (self._pool, self._ahead)):
            pool.shutdown(wait=False, cancel_futures=True)
        self._maker.assembler.close()
        self._ring.close()

    def _make(
        self, step: int, rows: Rows, arrays: dict[str, np.ndarray], pending: Future[PendingBatch | None] | None
    ) -> BatchResult | Exception:
        try:
            pending_batch = None if pending is None else pending.result()
            return make_here(self._maker, self._replacer, step, rows, arrays, pending_batch)
        except StreamError as error:
            # The frames of a traceback would keep the batch alive.
            return error.with_traceback(None)
        except Exception:
            return _not_made("", traceback.format_exc(), step)


BatchSource = ProcessSource | ThreadSource
"""A source that makes batches ahead of time, in any order."""


def _not_made(source: str, reason: str, step: int) -> WorkerError:
    return WorkerError(f"step {step}: {source}the batch could not be made:\n{reason.rstrip()}", step=step)
