"""Where an iterator gets its batches from: worker processes, or threads of this process."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stream.batch import Assembled, Batch, Work
from stream.errors import RecordError, WorkerError
from stream.job import BatchMaker, Reply, Request, Setup, finish_batch, store_rows
from stream.plan import Plan
from stream.pool import WorkerPool
from stream.ring import Ring, Slot
from stream.rows import ROW_NAMES, Rows

MAX_ATTEMPTS = 100
"""How many replacements are tried for one sample before giving up."""


@dataclass
class Made:
    """A batch, and what there is to say of it."""

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
            rows: of the batch.
            failed: row and error.
            attempt: from 1, how often this batch has failed.
            step: for messages.
        """
        error = failed[0][1].at(step=step)
        if self._on_error != "replace":
            raise error
        if attempt > MAX_ATTEMPTS:
            raise RecordError(
                f"{error.reason} (and {MAX_ATTEMPTS} replacements of the same dataset failed too)",
                **{
                    key: getattr(error, key)
                    for key in ("dataset", "split", "shard", "record", "episode", "sample", "step")
                },
            )
        places = np.array([row for row, _ in failed])
        others = self._plan.replacements(rows.sample[places], attempt)
        columns = {name: getattr(rows, name).copy() for name in ROW_NAMES}
        for name, values in columns.items():
            values[places] = getattr(others, name)
        return Rows(**columns)


def make_here(maker: BatchMaker, replacer: Replacer, step: int, rows: Rows) -> Made:
    """Make a batch in this thread, in fresh memory."""
    return _retry(replacer, step, rows, lambda chosen: maker.make(step, chosen))


def _retry(replacer: Replacer, step: int, rows: Rows, make: Callable[[Rows], tuple[Batch, Assembled]]) -> Made:
    replaced: list[RecordError] = []
    work = Work()
    attempt = 0
    while True:
        batch, done = make(rows)
        work.add(done.work)
        if not done.failed:
            return Made(batch, rows, work, replaced)
        attempt += 1
        rows = replacer.replace(rows, done.failed, attempt, step)
        replaced += [error.at(step=step) for _, error in done.failed]


@dataclass
class _Job:
    step: int
    slot: Slot
    rows: Rows
    work: Work
    replaced: list[RecordError]
    attempt: int = 0
    reply: Reply | None = None
    error: Exception | None = None


class ProcessSource:
    """Batches from worker processes, through the ring."""

    def __init__(self, setup: Setup, *, workers: int, replacer: Replacer, ring: Ring, maker: BatchMaker) -> None:
        self._replacer = replacer
        self._ring = ring
        self._layout = maker.layout
        self._row_layout = maker.row_layout
        self._jobs: dict[int, _Job] = {}
        self._by_step: dict[int, int] = {}
        self._next_job = 0
        self._pool = WorkerPool(setup, workers)
        self._lost: WorkerError | None = None

    def submit(self, step: int, rows: Rows) -> None:
        """Send a batch to the worker with the least to do."""
        number = self._next_job
        self._next_job += 1
        job = self._jobs[number] = _Job(step, self._ring.take(), rows, Work(), [])
        self._by_step[step] = number
        if self._lost is not None:
            job.error = self._lost
        else:
            self._send(number, job)

    def take(self, step: int) -> Made:
        """Wait for a batch. A worker that is lost is an error at its step, or at the next new one if it had nothing to
        do."""
        number = self._by_step[step]
        job = self._jobs[number]
        while job.reply is None and job.error is None:
            self._receive()
        del self._jobs[number], self._by_step[step]
        if job.error is not None:
            self._ring.give(job.slot)
            raise job.error
        assert job.reply is not None
        return Made(
            finish_batch(job.reply, self._ring.lend(job.slot), layout=self._layout), job.rows, job.work, job.replaced
        )

    def forget(self) -> None:
        """Drop what was submitted; slots come back as the workers finish with them."""
        self._by_step.clear()
        for number, job in list(self._jobs.items()):
            if job.reply is not None or job.error is not None:
                self._ring.give(self._jobs.pop(number).slot)

    def close(self) -> None:
        """End the workers."""
        self._pool.close()
        self._ring.close()
        for job in self._jobs.values():
            self._ring.give(job.slot)
        self._jobs.clear()

    def _send(self, number: int, job: _Job) -> None:
        store_rows(job.rows, self._row_layout.arrays(job.slot.map))
        self._pool.send(Request(number, job.step, job.slot.number, job.slot.size), job.slot)

    def _receive(self) -> None:
        for worker, reply in self._pool.receive():
            if isinstance(reply, WorkerError):
                self._lost = self._lost or reply
                for request in worker.jobs:
                    self._jobs[request.job].error = WorkerError(str(reply), step=request.step)
                continue
            job = self._jobs[reply.job]
            if reply.job not in self._by_step.values():
                self._ring.give(self._jobs.pop(reply.job).slot)
                continue
            job.work.add(reply.work)
            job.slot.refit()
            if reply.error:
                job.error = _transform_failed(reply.error, job.step)
            elif reply.failed:
                job.attempt += 1
                try:
                    job.rows = self._replacer.replace(job.rows, reply.failed, job.attempt, job.step)
                except RecordError as error:
                    job.error = error
                else:
                    job.replaced += [error.at(step=job.step) for _, error in reply.failed]
                    self._send(reply.job, job)
            else:
                job.reply = reply


class ThreadSource:
    """Batches from threads of this process, each making a whole batch; still in slots of the ring."""

    def __init__(self, *, threads: int, replacer: Replacer, ring: Ring, maker: BatchMaker) -> None:
        self._replacer = replacer
        self._ring = ring
        self._maker = maker
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stream-batch")
        self._futures: dict[int, Future[Made]] = {}
        self._pid = os.getpid()

    def submit(self, step: int, rows: Rows) -> None:
        """Queue a batch."""
        self._futures[step] = self._pool.submit(self._make, step, rows)

    def take(self, step: int) -> Made:
        """Wait for a batch."""
        return self._futures.pop(step).result()

    def forget(self) -> None:
        """Drop what was submitted."""
        for future in self._futures.values():
            future.cancel()
        self._futures.clear()

    def close(self) -> None:
        """End the threads, each after the batch that it is at."""
        self.forget()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._ring.close()

    def _make(self, step: int, rows: Rows) -> Made:
        buffer = self._ring.lend(self._ring.take())
        maker = self._maker

        def make(chosen: Rows) -> tuple[Batch, Assembled]:
            out = maker.layout.arrays(buffer, base=maker.base)
            done = maker.assembler.assemble(chosen, out)
            if done.failed:
                return {}, done
            try:
                return maker.transform({**out, **done.texts}, step), done
            except Exception:
                raise _transform_failed(traceback.format_exc(), step) from None

        return _retry(self._replacer, step, rows, make)


def _transform_failed(told: str, step: int) -> WorkerError:
    return WorkerError(f"step {step}: the batch could not be made:\n{told.rstrip()}", step=step)
