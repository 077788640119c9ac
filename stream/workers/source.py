"""Where an iterator gets its batches from: worker processes, or a thread of this process."""

from __future__ import annotations

import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from stream.batch.assemble import Work
from stream.batch.spec import Batch
from stream.order.plan import Plan
from stream.order.rows import ROW_TYPE, Rows
from stream.storage.errors import RecordError, StreamError, WorkerError
from stream.workers.job import BatchMaker, Reply, read_slot
from stream.workers.pool import Worker, WorkerPool
from stream.workers.ring import Ring, Slot

MAX_ATTEMPTS = 100
"""Replacements that are tried for one sample before giving up."""


@dataclass
class Made:
    """A batch, its rows, the work it took, and the rows that others stand in for."""

    batch: Batch
    rows: Rows
    work: Work
    replaced: list[RecordError]


class BatchSource(Protocol):
    """Makes batches ahead of time, in any order."""

    def submit(self, step: int, rows: Rows) -> None:
        """Begin with a batch."""

    def take(self, step: int) -> Made:
        """Wait for a batch that was submitted; raises RecordError, WorkerError or RingError."""

    def forget(self) -> None:
        """Drop all that was submitted and not taken."""

    def close(self) -> None:
        """End processes and threads."""


class Replacer:
    """Decides what happens to rows that failed: raise, or try other records of the same datasets."""

    def __init__(self, plan: Plan, on_error: str) -> None:
        self._plan = plan
        self._on_error = on_error

    def replace(self, rows: Rows, failed: list[tuple[int, RecordError]], attempt: int, step: int) -> Rows:
        """Return the rows with others in place of those that failed; raises the first error if that is not wanted.

        Args:
            rows: Rows of the batch.
            failed: Row and error of each.
            attempt: How often this batch has failed, from 1.
            step: For messages.
        """
        error = replace(failed[0][1], step=step)
        if self._on_error != "replace":
            raise error
        if attempt > MAX_ATTEMPTS:
            reason = f"{error.reason} (and {MAX_ATTEMPTS} replacements of the same dataset failed too)"
            raise replace(error, reason=reason)
        places = np.array([row for row, _ in failed])
        return rows.replaced(places, self._plan.replacements(rows.sample[places], attempt))


def make_here(
    maker: BatchMaker, replacer: Replacer, step: int, rows: Rows, out: dict[str, np.ndarray] | None = None
) -> Made:
    """Make a batch in this thread, in ``out`` or in fresh memory."""
    replaced: list[RecordError] = []
    work = Work()
    attempt = 0
    while True:
        batch, done = maker.make(step, rows, out)
        work.add(done.work)
        if not done.failed:
            return Made(batch, rows, work, replaced)
        attempt += 1
        rows = replacer.replace(rows, done.failed, attempt, step)
        replaced += [replace(error, step=step) for _, error in done.failed]


@dataclass
class _Job:
    step: int
    slot: Slot
    rows: Rows
    work: Work = field(default_factory=Work)
    replaced: list[RecordError] = field(default_factory=list)
    attempt: int = 0
    worker: Worker | None = None
    reply: Reply | None = None
    error: Exception | None = None


class ProcessSource:
    """Batches from worker processes, through the ring; each is made by one worker, in its slot."""

    def __init__(self, maker: BatchMaker, *, workers: int, replacer: Replacer, ring: Ring) -> None:
        self._maker = maker
        self._replacer = replacer
        self._ring = ring
        self._jobs: dict[int, _Job] = {}
        self._by_step: dict[int, int] = {}
        self._next_job = 0
        self._pool = WorkerPool(maker.setup, workers)
        self._lost: WorkerError | None = None

    def submit(self, step: int, rows: Rows) -> None:
        """Send a batch to the worker with the least to do."""
        number = self._next_job
        self._next_job += 1
        job = self._jobs[number] = _Job(step, self._ring.take(), rows)
        self._by_step[step] = number
        # What workers have done that was not waited for is not known otherwise.
        for worker in self._pool.ready():
            self._receive(worker)
        if self._lost is not None:
            job.error = self._lost
            return
        self._send(number, job, min(self._pool.workers, key=lambda worker: len(worker.jobs)))

    def take(self, step: int) -> Made:
        """Wait for a batch. A worker that is lost is an error at its step, or at the next new one if it had nothing to
        do."""
        number = self._by_step[step]
        job = self._jobs[number]
        while job.worker is not None:
            self._receive(job.worker)
        del self._jobs[number], self._by_step[step]
        if job.error is not None:
            self._ring.give(job.slot)
            raise job.error
        assert job.reply is not None, "without a worker or an error there is a reply"
        # Its worker may have made the slot larger.
        job.slot.refit()
        buffer = self._ring.lend(job.slot)
        own = self._maker.layout.arrays(buffer, base=self._maker.base)
        return Made(read_slot(job.reply.batch, own, buffer), job.rows, job.work, job.replaced)

    def forget(self) -> None:
        """Drop what was submitted; slots come back as the workers finish with them."""
        self._by_step.clear()
        for number, job in list(self._jobs.items()):
            if job.worker is None:
                self._ring.give(self._jobs.pop(number).slot)

    def close(self) -> None:
        """End the workers."""
        self._pool.close()
        self._ring.close()
        for job in self._jobs.values():
            self._ring.give(job.slot)
        self._jobs.clear()

    def _send(self, number: int, job: _Job, worker: Worker) -> None:
        np.frombuffer(job.slot.map, ROW_TYPE, len(job.rows))[:] = job.rows.packed()
        job.worker = worker
        worker.send(number, job.step, job.slot)

    def _receive(self, worker: Worker) -> None:
        reply = self._pool.receive(worker)
        if isinstance(reply, WorkerError):
            self._lost = self._lost or reply
            for request in worker.jobs:
                job = self._jobs[request.job]
                job.worker, job.error = None, WorkerError(str(reply), step=request.step)
            return
        job = self._jobs[reply.job]
        job.worker = None
        if self._by_step.get(job.step) != reply.job:
            self._ring.give(self._jobs.pop(reply.job).slot)
            return
        job.work.add(reply.work)
        if reply.error:
            job.error = _transform_failed(reply.error, job.step)
        elif reply.failed:
            self._replace(reply.job, job, list(reply.failed), worker)
        else:
            job.reply = reply

    def _replace(self, number: int, job: _Job, failed: list[tuple[int, RecordError]], worker: Worker) -> None:
        """Send a batch again, with other rows for those that failed."""
        job.attempt += 1
        try:
            job.rows = self._replacer.replace(job.rows, failed, job.attempt, job.step)
        except RecordError as error:
            job.error = error
            return
        job.replaced += [replace(error, step=job.step) for _, error in failed]
        job.slot.refit()
        self._send(number, job, worker)


class ThreadSource:
    """Batches from a thread of this process, still in slots of the ring."""

    def __init__(self, *, replacer: Replacer, ring: Ring, maker: BatchMaker) -> None:
        self._replacer = replacer
        self._ring = ring
        self._maker = maker
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="stream-batch")
        self._batches: dict[int, Future[Made | Exception]] = {}

    def submit(self, step: int, rows: Rows) -> None:
        """Queue a batch."""
        arrays = self._maker.layout.arrays(self._ring.lend(self._ring.take()), base=self._maker.base)
        self._batches[step] = self._pool.submit(self._make, step, rows, arrays)

    def take(self, step: int) -> Made:
        """Wait for a batch."""
        made = self._batches.pop(step).result()
        if isinstance(made, Exception):
            raise made
        return made

    def forget(self) -> None:
        """Drop what was submitted."""
        for made in self._batches.values():
            made.cancel()
        self._batches.clear()

    def close(self) -> None:
        """End the thread, after the batch that it is at."""
        self.forget()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._maker.assembler.close()
        self._ring.close()

    def _make(self, step: int, rows: Rows, arrays: dict[str, np.ndarray]) -> Made | Exception:
        try:
            return make_here(self._maker, self._replacer, step, rows, arrays)
        except StreamError as error:
            # Without the traceback, whose frames hold the batch.
            return error.with_traceback(None)
        except Exception:
            return _transform_failed(traceback.format_exc(), step)


def _transform_failed(told: str, step: int) -> WorkerError:
    return WorkerError(f"step {step}: the batch could not be made:\n{told.rstrip()}", step=step)
