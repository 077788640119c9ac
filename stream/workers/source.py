"""Sources of the batches of an iterator: worker processes, or a thread of this process."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from stream.base.errors import ArgumentError, RecordError, StreamError, WorkerError
from stream.batch.assemble import PendingBatch, Timings
from stream.batch.maker import BatchMaker
from stream.batch.spec import Batch
from stream.order.plan import Plan
from stream.order.rows import ROW_TYPE, Rows
from stream.workers.pool import Job, Worker, WorkerPool
from stream.workers.protocol import COPIED, read_batch
from stream.workers.ring import Ring, Slot

MAX_ATTEMPTS = 100
"""Most replacements of one sample."""


@dataclass
class Made:
    """A batch and the work of making it.

    Attributes:
        rows: Rows of the batch, after replacements.
        batch: Batch, empty until it is made.
        work: Work of all attempts.
        replaced: Errors of the rows that were replaced.
        attempts: Number of times that rows were replaced.
    """

    rows: Rows
    batch: Batch = field(default_factory=dict)
    work: Timings = field(default_factory=Timings)
    replaced: list[RecordError] = field(default_factory=list)
    attempts: int = 0


class Replacer:
    """The rule for rows that cannot be read.

    Args:
        plan: Plan that replacements come from.
        on_error: ``raise`` the error, or ``replace`` the record by another of the same dataset.

    Raises:
        ArgumentError: ``on_error`` is neither.
    """

    def __init__(self, plan: Plan, on_error: str) -> None:
        if on_error not in ("raise", "replace"):
            raise ArgumentError(f"on_error={on_error!r}; expected 'raise' or 'replace'")
        self._plan = plan
        self._on_error = on_error

    def replace(self, made: Made, failed: Sequence[tuple[int, RecordError]], *, step: int) -> None:
        """Replace the rows that failed; raises RecordError if that is not wanted, or failed too often.

        Args:
            made: Batch.
            failed: Rows and errors.
            step: Step of the batch, for messages.
        """
        errors = [replace(error, step=step) for _, error in failed]
        if self._on_error != "replace":
            raise errors[0]
        if made.attempts == MAX_ATTEMPTS:
            reason = f"{errors[0].reason} (and {MAX_ATTEMPTS} replacements of the same dataset failed too)"
            raise replace(errors[0], reason=reason)
        made.attempts += 1
        made.replaced += errors
        bad = np.array([row for row, _ in failed])
        made.rows = made.rows.replaced(bad, self._plan.replacements(made.rows.sample[bad], made.attempts))


def make_here(
    maker: BatchMaker,
    replacer: Replacer,
    step: int,
    rows: Rows,
    out: dict[str, np.ndarray] | None = None,
    begun: PendingBatch | None = None,
) -> Made:
    """Make a batch in this thread, in ``out`` or in new memory."""
    made = Made(rows)
    while True:
        made.batch, done = maker.make(step, made.rows, out, begun)
        begun = None
        made.work.add(done.work)
        if not done.failed:
            return made
        replacer.replace(made, done.failed, step=step)


@dataclass
class _Submitted:
    """A batch that was submitted and not taken; ``job`` and ``worker`` make it."""

    made: Made
    job: Job | None = None
    worker: Worker | None = None
    error: Exception | None = None


class ProcessSource:
    """Batches of worker processes, through the ring; one worker makes a whole batch in its slot."""

    def __init__(self, maker: BatchMaker, *, workers: int, replacer: Replacer, ring: Ring) -> None:
        self._replacer = replacer
        self._ring = ring
        self._layout = maker.layout
        self._submitted: dict[int, _Submitted] = {}
        self._pool = WorkerPool(maker.setup, workers)

    def submit(self, step: int, rows: Rows) -> None:
        """Send a batch to the worker with the fewest jobs."""
        # Replies that nobody waited for change which worker that is.
        for worker in self._pool.ready():
            self._receive(worker)
        # An idle worker that was lost is an error of the next batch.
        submitted = self._submitted[step] = _Submitted(Made(rows), error=self._pool.lost)
        if submitted.error is None:
            worker = min(self._pool.workers, key=lambda worker: len(worker.jobs))
            self._send(submitted, step, self._ring.take(), worker)

    def take(self, step: int) -> Made:
        """Wait for a batch that was submitted.

        Raises:
            RecordError: A record cannot be read.
            WorkerError: The worker of the batch was lost, or a transform failed.
            StreamError, FormatError: What else failed in the worker, which the message names.
        """
        submitted = self._submitted[step]
        while submitted.worker is not None:
            self._receive(submitted.worker)
        del self._submitted[step]
        if submitted.error is not None:
            raise submitted.error
        return submitted.made

    def forget(self) -> None:
        """Drop all batches that were not taken; slots return to the ring as the workers finish."""
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
        rows = submitted.made.rows
        np.frombuffer(slot.map, ROW_TYPE, len(rows))[:] = rows.table
        submitted.job, submitted.worker = Job(step, len(rows), slot), worker
        worker.send(submitted.job)

    def _receive(self, worker: Worker) -> None:
        for job in self._pool.receive(worker):
            submitted = self._submitted.get(job.step)
            if submitted is None or submitted.job is not job:
                # The batch was forgotten.
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
        reply, made = job.reply, submitted.made
        submitted.worker = None
        assert reply is not None, "the job is done"
        if isinstance(reply, WorkerError):
            raise reply
        made.work.add(reply.work)
        if isinstance(reply.error, Exception):
            reply.error.args = (f"step {job.step}: {worker.name}: {reply.error}",)
            raise reply.error
        if reply.error:
            raise _not_made(f"{worker.name}: ", reply.error, job.step)
        # The worker may have enlarged the slot.
        job.slot.refit()
        if reply.failed:
            self._replacer.replace(made, reply.failed, step=job.step)
            self._send(submitted, job.step, job.slot, worker)
        else:
            made.batch = read_batch(reply, self._layout, self._ring.lend(job.slot))


class ThreadSource:
    """Batches of a thread of this process, in slots of the ring too."""

    def __init__(self, maker: BatchMaker, *, replacer: Replacer, ring: Ring) -> None:
        self._replacer = replacer
        self._ring = ring
        self._maker = maker
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="stream-batch")
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="stream-ahead") if maker.asks_ahead else None
        self._batches: dict[int, Future[Made | Exception]] = {}

    def submit(self, step: int, rows: Rows) -> None:
        """Queue a batch."""
        layout = self._maker.layout
        arrays = layout.arrays(self._ring.lend(self._ring.take()), len(rows))
        # A small array that is kept would keep all of its slot.
        own = (name for name, array in arrays.items() if name not in layout.images and array.nbytes <= COPIED)
        arrays |= {name: np.empty_like(arrays[name]) for name in own}
        begun = None if self._ahead is None else self._ahead.submit(self._maker.begin, rows, arrays)
        self._batches[step] = self._pool.submit(self._make, step, rows, arrays, begun)

    def take(self, step: int) -> Made:
        """Wait for a batch that was submitted; raises StreamError or FormatError."""
        made = self._batches.pop(step).result()
        if isinstance(made, Exception):
            raise made
        return made

    def forget(self) -> None:
        """Drop all batches that were not taken."""
        for made in self._batches.values():
            made.cancel()
        self._batches.clear()

    def close(self) -> None:
        """End the thread after its current batch."""
        self.forget()
        for pool in filter(None, (self._pool, self._ahead)):
            pool.shutdown(wait=False, cancel_futures=True)
        self._maker.assembler.close()
        self._ring.close()

    def _make(
        self, step: int, rows: Rows, arrays: dict[str, np.ndarray], begun: Future[PendingBatch | None] | None
    ) -> Made | Exception:
        try:
            found = None if begun is None else begun.result()
            return make_here(self._maker, self._replacer, step, rows, arrays, found)
        except StreamError as error:
            # The frames of a traceback would keep the batch alive.
            return error.with_traceback(None)
        except Exception:
            return _not_made("", traceback.format_exc(), step)


BatchSource = ProcessSource | ThreadSource
"""A source that makes batches ahead of time, in any order."""


def _not_made(where: str, reason: str, step: int) -> WorkerError:
    return WorkerError(f"step {step}: {where}the batch could not be made:\n{reason.rstrip()}", step=step)
