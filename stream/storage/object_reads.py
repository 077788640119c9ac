"""Ranged reads of objects with obstore, many at a time, in one thread of this process."""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

from stream.base.errors import FormatError, StreamError
from stream.base.extras import missing
from stream.storage.object_stores import locate
from stream.storage.remote import BusyError, RemoteError, Traffic, explain, is_final

_IN_FLIGHT = 64
"""Requests of one process at the same time."""
_MOST_HEDGES = 8
"""Second requests at the same time: where all answers are late, the store is slow, and more requests make it slower."""
_LATE_S = (0.06, 5.0)
"""Least and longest time after which an answer is late, twice the usual time between them."""
_STEP = 1.02
"""Factor by which an answer changes the usual time."""
_PAUSE_S = (0.02, 2.0)
"""First and longest pause after a request that failed; each is twice the one before."""
DEADLINE_S, OPENING_S = 100, 10
"""Seconds for which a request is repeated, while training runs and when a root is opened."""
_HUB_WINDOW_S = 300
_LOOK_S = 0.005
"""Seconds between two looks at a range that another process reads."""
_LEAVE_S = 0.1
"""Time for the threads of obstore to leave Python."""

_Answer = TypeVar("_Answer")
Claim = Callable[..., bool | None]
"""``claim(begin, end, take=...)`` claims or releases a range against other processes; it returns None if its bytes are
here, False if another process is reading them."""


class Read(NamedTuple):
    """A range of bytes [begin, end) of an object to read; ``traffic`` counts the requests and their bytes.

    ``keep`` is called with ``begin`` and the bytes, in the thread of the reads. ``claim`` claims the range against
    other processes, and releases it; it is None if they do not share ranges.
    """

    url: str
    begin: int
    end: int
    keep: Callable[[int, memoryview], None]
    claim: Claim | None = None
    traffic: Traffic | None = None

    def __str__(self) -> str:
        return f"{self.url}, bytes {self.begin:,} to {self.end:,}"


class ObjectReads:
    """A thread that reads ranges of objects, one for each process; ``object_reads()`` returns it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(_IN_FLIGHT)
        self._usual_s, self._answered_at = 0.1, 0.0
        self._hedges: set[asyncio.Future[Any]] = set()
        self._tasks: dict[tuple[Any, ...], asyncio.Task[Exception | None]] = {}
        threading.Thread(target=self._loop.run_forever, name="stream-objects", daemon=True).start()
        atexit.register(self._leave)

    def start(self, reads: Sequence[Read]) -> Future[list[Exception | None]]:
        """Start reads in the background; the result has the error of each read."""
        return self._run(self._read_all(reads))

    def read(
        self, url: str, begin: int, end: int, *, late_s: float | None = None, traffic: Traffic | None = None
    ) -> bytes:
        """Return bytes of an object, fewer if it ends before.

        Args:
            late_s: Seconds after which the range is asked for a second time; None for the usual time of records.
            traffic: Counts the requests and their bytes.

        Raises:
            FormatError: There is no such object, or it ends before ``begin``.
            RemoteError: The store did not fulfil the request before the deadline, or refuses it.
            StreamError: The process was forked after the first read.
        """
        request = Read(url, begin, end, lambda begin, content: None, None, traffic)
        return bytes(self.wait(self._read(request, self._loop.time(), late_s)))

    async def repeat(
        self, send: Callable[[], Awaitable[_Answer]], left: Callable[[], float], *, late_s: float = math.inf
    ) -> _Answer:
        """Return the answer to a request, which is repeated until the deadline; raise a final error, or the last one.

        Args:
            send: Sends the request, and returns its answer.
            left: Returns the seconds until the deadline, which may move; ``BusyError`` moves it by its pause.
            late_s: Seconds after which the same request is sent a second time; the first answer counts.
        """
        last_error: Exception | None = None
        pause_s, asked_s = _PAUSE_S[0], 0.0

        def seconds_left() -> float:
            # Pauses that the store asks for are no outage.
            return left() + asked_s

        while seconds_left() > 0:
            try:
                return await self._first_answer(send, seconds_left, late_s)
            except Exception as error:
                if is_final(error):
                    raise
                # A request that the deadline ended has no reason of its own.
                last_error = error if seconds_left() > 0 else last_error or error
                if isinstance(error, BusyError) and error.pause_s:
                    asked_s += error.pause_s
                    await asyncio.sleep(error.pause_s)
            # Requests that failed together are not repeated together.
            await asyncio.sleep(min(pause_s * random.uniform(0.5, 1), max(0, seconds_left())))
            pause_s = min(2 * pause_s, _PAUSE_S[1])
        raise last_error or TimeoutError()

    async def _first_answer(
        self, send: Callable[[], Awaitable[_Answer]], left: Callable[[], float], late_s: float
    ) -> _Answer:
        """Send a request, and the same request again if the answer is late; return the first answer.

        Raises a final error, or the last one, or TimeoutError at the deadline.
        """
        pending: set[asyncio.Future[_Answer]] = {asyncio.ensure_future(send())}
        reason: BaseException = TimeoutError()
        wait_s = late_s
        try:
            while pending and (seconds := left()) > 0:
                done, pending = await asyncio.wait(
                    pending, timeout=min(seconds, wait_s), return_when=asyncio.FIRST_COMPLETED
                )
                errors = [request.exception() for request in done]
                if None in errors:
                    return next(request.result() for request in done if request.exception() is None)
                for reason in filter(None, errors):
                    if is_final(reason):
                        raise reason
                if not done and seconds > wait_s:
                    hedge = self._hedge(send)
                    pending |= {hedge} if hedge else set()
                    wait_s = math.inf if hedge else 2 * wait_s
            raise reason
        finally:
            for request in pending:
                request.cancel()

    def _hedge(self, send: Callable[[], Awaitable[_Answer]]) -> asyncio.Future[_Answer] | None:
        """Send a request for a second time, unless there are many of such requests already."""
        if len(self._hedges) >= _MOST_HEDGES:
            return None
        hedge = asyncio.ensure_future(send())
        self._hedges.add(hedge)
        hedge.add_done_callback(self._hedges.discard)
        return hedge

    def wait(self, coroutine: Coroutine[Any, Any, _Answer]) -> _Answer:
        """Return the answer of a coroutine that runs in this thread; Ctrl-C ends both."""
        future = self._run(coroutine)
        try:
            return future.result()
        finally:
            future.cancel()

    def wait_all(self, coroutines: Iterable[Coroutine[Any, Any, _Answer]]) -> list[_Answer]:
        """Return the answers of coroutines that run at the same time."""

        async def run(coroutine: Coroutine[Any, Any, _Answer]) -> _Answer:
            async with self._slots:
                return await coroutine

        async def run_all() -> list[_Answer]:
            return await asyncio.gather(*map(run, coroutines))

        return self.wait(run_all())

    def _leave(self) -> None:
        """Cancel what is under way, and let the threads of obstore leave Python: its end would abort the process."""

        def cancel() -> None:
            for read_task in asyncio.all_tasks(self._loop):
                read_task.cancel()

        if os.getpid() == self._pid:
            self._loop.call_soon_threadsafe(cancel)
            time.sleep(_LEAVE_S)

    def _run(self, coroutine: Coroutine[Any, Any, _Answer]) -> Future[_Answer]:
        if os.getpid() != self._pid:
            coroutine.close()
            raise StreamError(
                "an object store was opened before this process was forked, and its connections cannot be shared; "
                "start processes with multiprocessing's 'spawn' or 'forkserver', or open the data after the fork"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _read_all(self, reads: Sequence[Read]) -> list[Exception | None]:
        # One task a range: a gather or a timeout of asyncio would each add a tenth to its cost.
        asked_at = self._loop.time()
        tasks = [self._task(read, asked_at) for read in reads]
        errors = []
        for read, (task, is_shared) in zip(reads, tasks, strict=True):
            error = await task
            if is_shared and error is not None:
                # An earlier caller started this task, whose deadline came before that of this read.
                error = await self._task(read, asked_at)[0]
            errors.append(error)
        return errors

    def _task(self, read: Read, asked_at: float) -> tuple[asyncio.Task[Exception | None], bool]:
        """Return the task of a range, and whether another read started it."""
        range_key = read[:3]
        if task := self._tasks.get(range_key):
            return task, True
        task = self._tasks[range_key] = self._loop.create_task(self._try_read(read, asked_at))
        task.add_done_callback(lambda _: self._tasks.pop(range_key))
        return task, False

    def _left(self, asked_at: float, sent_at: float = math.inf) -> float:
        """Return the seconds until the deadline of a range.

        The deadline counts from the last answer to any range: while a slow store answers others, no range is late. A
        request itself, sent at ``sent_at``, has no more time than the deadline.
        """
        return min(sent_at, max(asked_at, self._answered_at)) + DEADLINE_S - self._loop.time()

    async def _try_read(self, read: Read, asked_at: float) -> Exception | None:
        """Read a range unless another process has read it, and return the error."""
        begin, end, claim = read.begin, read.end, read.claim
        while claim is not None and not (is_claimed := claim(begin, end, take=True)):
            if is_claimed is None:
                return None
            # A process that reads from the Hub may wait for the next window of its limit.
            wait_s = _HUB_WINDOW_S if read.url.startswith("hf://") else 0
            if self._left(asked_at) + wait_s <= 0:
                seconds = DEADLINE_S + wait_s
                reason = f"another process of this machine reads it for {seconds} seconds; end that one if it hangs"
                return RemoteError(f"{read}: cannot be read: {reason}")
            await asyncio.sleep(_LOOK_S)
        try:
            read.keep(begin, await self._read(read, asked_at))
        except (StreamError, OSError) as error:
            return error
        finally:
            if claim is not None:
                claim(begin, end, take=False)
        return None

    async def _read(self, read: Read, asked_at: float, late_s: float | None = None) -> memoryview:
        traffic = read.traffic or Traffic()

        def send() -> Awaitable[Any]:
            traffic.requests += 1
            return store.get_range_async(object_key, start=read.begin, end=read.end)

        async with self._slots:
            sent_at, usual_late_s = self._loop.time(), min(_LATE_S[1], max(_LATE_S[0], 2 * self._usual_s))
            try:
                store, object_key = locate(read.url)
                answer = await self.repeat(send, partial(self._left, asked_at, sent_at), late_s=late_s or usual_late_s)
            except Exception as error:
                raise _explained(error, read) from None
            content = memoryview(answer)
            traffic.num_bytes += len(content)
            self._answered_at = self._loop.time()
            if late_s is None:
                # Towards the median, by small steps: a store that hangs for a moment does not make all answers late.
                self._usual_s *= _STEP if self._answered_at - sent_at > self._usual_s else 1 / _STEP
            return content


@cache
def object_reads() -> ObjectReads:
    """Return the reads of this process; raise RemoteError if obstore is not installed."""
    try:
        import obstore  # noqa: F401
    except ImportError as error:
        message = f"{missing('obstore', 'remote', by='reading from a store')} ({error})"
        raise RemoteError(message, refused=True) from None
    return ObjectReads()


def _explained(error: Exception, read: Read) -> Exception:
    """Return an error of a request as one that names the object and the bytes."""
    if isinstance(error, FileNotFoundError):
        return FormatError(f"{read.url}: no such object")
    if "status code: 416 " in str(error):
        return FormatError(f"{read.url}: ends before byte {read.begin:,}; it was replaced or damaged")
    if isinstance(error, StreamError):
        return error
    reason, refused = explain(error)
    return RemoteError(f"{read}: cannot be read: {reason}", refused=refused)
