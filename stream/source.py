"""Where an iterator gets its batches from: worker processes, or threads of this process."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from stream.batch import Assembled, Work
from stream.errors import RecordError, StreamError, WorkerError
from stream.job import BatchMaker, Reply, Request, Setup, read_transformed
from stream.pace import PACED, pace_shares
from stream.plan import Plan
from stream.pool import Worker, WorkerPool
from stream.ring import Ring, Slot
from stream.rows import ROW_NAMES, ROW_TYPE, Rows, Share
from stream.spec import Batch

MAX_ATTEMPTS = 100
"""How many replacements are tried for one sample before giving up."""


@dataclass
class Made:
    """A batch, and what there is to say of it."""

    batch: Batch
    rows: Rows
    work: Work
    replaced: list[RecordError]


class Planned(NamedTuple):
    """The rows of a batch, and the same packed; with the first of some batches that were planned together, those of all
    of them."""

    rows: Rows
    packed: bytes


class BatchSource(Protocol):
    """Makes batches ahead of time, in any order."""

    def submit(self, step: int, planned: Planned) -> None:
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
    waiting: list[Worker] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or not self.waiting


class ProcessSource:
    """Batches from worker processes, through the ring. Workers share each batch; where its size is not known before,
    with transforms or encoded frames, one makes all of it."""

    def __init__(
        self, setup: Setup, *, workers: int, shares: Sequence[Share], replacer: Replacer, ring: Ring, maker: BatchMaker
    ) -> None:
        self._replacer = replacer
        self._ring = ring
        self._layout = maker.layout
        self._base = maker.base
        self._shares = shares
        self._jobs: dict[int, _Job] = {}
        self._by_step: dict[int, int] = {}
        self._next_job = 0
        self._pool = WorkerPool(setup, workers)
        self._lost: WorkerError | None = None
        self._paced: Sequence[Share] = shares
        self._sent = 0

    def submit(self, step: int, planned: Planned) -> None:
        """Send the parts of a batch to the workers, or to those with the least to do if it has fewer parts."""
        number = self._next_job
        self._next_job += 1
        job = self._jobs[number] = _Job(step, self._ring.take(), planned.rows, Work(), [])
        self._by_step[step] = number
        if self._lost is not None:
            job.error = self._lost
            return
        steps = len(planned.packed) // (len(job.rows) * ROW_TYPE.itemsize)
        self._send(number, job, planned.packed, steps=steps)

    def take(self, step: int) -> Made:
        """Wait for a batch. A worker that is lost is an error at its step, or at the next new one if it had nothing to
        do."""
        number = self._by_step[step]
        job = self._jobs[number]
        while not job.done:
            # One after the other: whoever waits for all is woken by each, and takes the time of one that still works.
            # The first has a part that ends after the others'.
            self._receive(job.waiting[0])
        del self._jobs[number], self._by_step[step]
        if job.error is not None:
            self._ring.give(job.slot)
            raise job.error
        return Made(self._finish(job), job.rows, job.work, job.replaced)

    def forget(self) -> None:
        """Drop what was submitted; slots come back as the workers finish with them."""
        self._by_step.clear()
        for number, job in list(self._jobs.items()):
            if not job.waiting:
                self._ring.give(self._jobs.pop(number).slot)

    def close(self) -> None:
        """End the workers."""
        self._pool.close()
        self._ring.close()
        for job in self._jobs.values():
            self._ring.give(job.slot)
        self._jobs.clear()

    def _send(self, number: int, job: _Job, rows: bytes, *, steps: int) -> None:
        slot = job.slot
        slot.map[: len(rows)] = rows
        job.replies = []
        shares = self._shares
        if len(shares) == len(self._pool.workers):
            workers = list(self._pool.workers)
            if self._sent % PACED == 0:
                now = time.perf_counter()
                rates = [worker.pace.rate for worker in workers]
                self._paced = pace_shares(shares, rates, [worker.seconds_left(now) for worker in workers])
            self._sent += 1
            shares = self._paced
        else:
            # What those have done that were not waited for is not known otherwise.
            for worker in list(self._pool.workers):
                self._receive(worker, wait=False)
            if not self._pool.workers:
                job.error = self._lost
                return
            workers = self._pool.choose(len(shares))
        for worker, (start, stop) in zip(workers, shares, strict=True):
            worker.send(Request(number, job.step, slot.number, slot.size, start, stop, steps), slot)
        job.waiting = workers

    def _receive(self, worker: Worker, *, wait: bool = True) -> None:
        reply = self._pool.receive(worker, wait=wait)
        if isinstance(reply, WorkerError):
            self._lost = self._lost or reply
            for request in worker.jobs:
                self._jobs[request.job].error = WorkerError(str(reply), step=request.step)
        elif reply is not None:
            job = self._jobs[reply.job]
            job.waiting.remove(worker)
            job.replies.append(reply)
            if job.waiting:
                return
            if self._by_step.get(job.step) != reply.job:
                self._ring.give(self._jobs.pop(reply.job).slot)
            else:
                self._complete(reply.job, job)

    def _complete(self, number: int, job: _Job) -> None:
        """All parts of a batch are there: keep it, or send it again with other rows in place of those that failed."""
        failed: list[tuple[int, RecordError]] = []
        for reply in job.replies:
            job.work.noted += reply.noted
            job.work.bytes += reply.bytes
            if reply.error:
                job.error = _transform_failed(reply.error, job.step)
                return
            failed += reply.failed
        if not failed:
            return
        failed.sort(key=lambda failure: failure[0])
        job.attempt += 1
        try:
            job.rows = self._replacer.replace(job.rows, failed, job.attempt, job.step)
        except RecordError as error:
            job.error = error
            return
        job.replaced += [error.at(step=job.step) for _, error in failed]
        job.slot.refit()
        self._send(number, job, job.rows.packed(), steps=0)

    def _finish(self, job: _Job) -> Batch:
        transformed = job.replies[0].transformed
        if transformed is not None:
            # Its worker may have made the slot larger.
            job.slot.refit()
            return read_transformed(transformed, self._ring.lend(job.slot), rows=len(job.rows))
        buffer = self._ring.lend(job.slot)
        parts = sorted(job.replies, key=lambda reply: reply.start)
        return {**self._layout.arrays(buffer, base=self._base), **_join(part.texts for part in parts)}


def _join(parts: Iterable[Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
    """The texts of a batch, from those of its parts in order."""
    whole: dict[str, list[str]] = {}
    for part in parts:
        for key, texts in part.items():
            whole.setdefault(key, []).extend(texts)
    return whole


class _Shared:
    """A batch that several threads make."""

    def __init__(self, rows: Rows, buffer: Any, maker: BatchMaker, waiting: int) -> None:
        self.rows = rows
        self.arrays = maker.layout.arrays(buffer, base=maker.base)
        self.made: Future[Made] = Future()
        self._waiting = waiting
        self._parts: list[tuple[int, Assembled]] = []
        self._lock = threading.Lock()

    def add(self, start: int, done: Assembled) -> Assembled | None:
        """Add a part; returns all of them as one when it was the last."""
        with self._lock:
            self._parts.append((start, done))
            self._waiting -= 1
            if self._waiting:
                return None
        parts = [part for _, part in sorted(self._parts, key=lambda part: part[0])]
        whole = Assembled(texts=_join(part.texts for part in parts))
        for part in parts:
            whole.arrays |= part.arrays
            whole.failed += part.failed
            whole.work.add(part.work)
        return whole


class ThreadSource:
    """Batches from threads of this process, which share each of them; still in slots of the ring."""

    def __init__(
        self, *, threads: int, shares: Sequence[Share], replacer: Replacer, ring: Ring, maker: BatchMaker
    ) -> None:
        self._replacer = replacer
        self._ring = ring
        self._maker = maker
        self._shares = shares
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stream-batch")
        self._batches: dict[int, Future[Made]] = {}

    def submit(self, step: int, planned: Planned) -> None:
        """Queue a batch."""
        shared = _Shared(planned.rows, self._ring.lend(self._ring.take()), self._maker, len(self._shares))
        self._batches[step] = shared.made
        for start, stop in self._shares:
            self._pool.submit(self._make, step, shared, start, stop)

    def take(self, step: int) -> Made:
        """Wait for a batch."""
        return self._batches.pop(step).result()

    def forget(self) -> None:
        """Drop what was submitted."""
        for made in self._batches.values():
            made.cancel()
        self._batches.clear()

    def close(self) -> None:
        """End the threads, each after the rows that it is at."""
        self.forget()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._ring.close()

    def _make(self, step: int, shared: _Shared, start: int, stop: int) -> None:
        if shared.made.cancelled():
            return
        maker = self._maker
        try:
            done = shared.add(start, maker.make_part(shared.rows, shared.arrays, start=start, stop=stop))
            if done is None:
                return
            first: list[Assembled] = [done]

            def make(rows: Rows) -> tuple[Batch, Assembled]:
                done = first.pop() if first else maker.assembler.assemble(rows, shared.arrays)
                if done.failed:
                    return {}, done
                try:
                    return maker.transform({**done.arrays, **shared.arrays, **done.texts}, step), done
                except Exception:
                    told = traceback.format_exc()
                # Not raised above, where it would keep the other one, whose traceback holds the batch.
                raise _transform_failed(told, step)

            made = _retry(self._replacer, step, shared.rows, make)
        except StreamError as error:
            # Its message says all, and frames of this thread may still run when LoaderIterator clears those it sees.
            _settle(shared.made, error.with_traceback(None))
        except BaseException as error:
            _settle(shared.made, error)
        else:
            _settle(shared.made, made)


def _settle(future: Future[Made], outcome: Made | BaseException) -> None:
    """Give a batch or an error to whoever waits, unless nobody does any more."""
    with contextlib.suppress(InvalidStateError):
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _transform_failed(told: str, step: int) -> WorkerError:
    return WorkerError(f"step {step}: the batch could not be made:\n{told.rstrip()}", step=step)
