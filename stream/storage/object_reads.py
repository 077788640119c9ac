"""Ranged reads of objects with obstore, many at a time, in one thread of this process."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, TypeVar

from stream.storage.errors import FormatError, StreamError
from stream.storage.extras import missing
from stream.storage.object_stores import object_key, open_store
from stream.storage.remote import RemoteError, explain

_IN_FLIGHT = 64
"""Requests of one process at the same time."""
_MOST_ASKED = 4
"""Requests for one range, of which the first answer counts."""
_MOST_AGAIN = 8
"""Ranges asked for again at the same time: where all are late, the store is slow, and more requests make it slower."""
_PATIENCE_S = (0.06, 5.0)
"""Least and longest time after which a range is asked for again, twice the usual time between them."""
_STEP = 1.02
"""Factor by which a request changes the usual time."""
DEADLINE_S, OPENING_S = 100, 10
"""Seconds after which what a store has not answered is an error, while training runs and when a root is opened."""
_REASON = 0.8
"""Share of the deadline for which obstore repeats a request; then it tells the reason of the last failure."""
_LOOK_S = 0.005
"""Time after which a range that another process reads is looked at again."""
_LEAVE_S = 0.1
"""Time for the threads of obstore to leave Python."""

_Answer = TypeVar("_Answer")


class Claim(Protocol):
    """A claim of a range against other processes."""

    def __call__(self, begin: int, end: int, *, take: bool) -> bool | None:
        """Claim or release a range; return None if its bytes are here, False if another process is reading them."""


class Read(NamedTuple):
    """A range to read.

    Attributes:
        url: Address of the object.
        begin, end: Bytes of the object.
        keep: Called with ``begin`` and the bytes, in the thread of the reads.
        claim: Claims the range against other processes, and releases it; None if they do not share ranges.
    """

    url: str
    begin: int
    end: int
    keep: Callable[[int, memoryview], None]
    claim: Claim | None = None


class Outcome(NamedTuple):
    """Outcome of a read: the error, or the number of bytes that came."""

    error: Exception | None
    num_bytes: int = 0


class ObjectReads:
    """A thread that reads ranges of objects, one for each process; ``object_reads()`` returns it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(_IN_FLIGHT)
        self._usual, self._answered = 0.1, 0.0
        self._again: set[asyncio.Future[Any]] = set()
        self._under_way: dict[tuple[Any, ...], asyncio.Task[Outcome]] = {}
        threading.Thread(target=self._loop.run_forever, name="stream-objects", daemon=True).start()
        atexit.register(self._leave)

    def start(self, reads: Sequence[Read]) -> Future[list[Outcome]]:
        """Start reads that go on while this process does something else; raises as ``read`` does."""
        return self._run(self._read_all(reads))

    def read(self, url: str, begin: int, end: int, *, patience_s: float | None = None) -> bytes:
        """Return bytes of an object, fewer if it ends before.

        Args:
            url: Address of the object.
            begin: First byte.
            end: Byte after the last.
            patience_s: Seconds after which the range is asked for again; None for the usual time of records.

        Raises:
            FormatError: There is no such object, or it ends before ``begin``.
            RemoteError: The store did not fulfil the request before the deadline, or refuses it.
            StreamError: The process was forked after the first read.
        """
        return bytes(self.wait(self._read(url, begin, end, patience_s)))

    def wait(self, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        """Return the answer of a coroutine that runs in this thread; Ctrl-C ends both."""
        future = self._run(work)
        try:
            return future.result()
        finally:
            future.cancel()

    def wait_all(self, works: Iterable[Coroutine[Any, Any, _Answer]]) -> list[_Answer]:
        """Return the answers of coroutines that run at the same time."""

        async def run(work: Coroutine[Any, Any, _Answer]) -> _Answer:
            async with self._slots:
                return await work

        async def run_all() -> list[_Answer]:
            return await asyncio.gather(*map(run, works))

        return self.wait(run_all())

    def _leave(self) -> None:
        """Cancel what is under way, and let the threads of obstore leave Python: its end would abort the process."""

        def cancel() -> None:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()

        if os.getpid() == self._pid:
            self._loop.call_soon_threadsafe(cancel)
            time.sleep(_LEAVE_S)

    def _run(self, work: Coroutine[Any, Any, _Answer]) -> Future[_Answer]:
        if os.getpid() != self._pid:
            work.close()
            raise StreamError(
                "an object store was opened before this process was forked, and its connections cannot be shared; "
                "start processes with multiprocessing's 'spawn' or 'forkserver', or open the data after the fork"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _read_all(self, reads: Sequence[Read]) -> list[Outcome]:
        # One task a range: a gather, a wait or a timeout of asyncio would each add a tenth to its cost.
        asked = self._loop.time()
        begun = [self._begin(read, asked) for read in reads]
        outcomes = []
        for read, (task, is_shared) in zip(reads, begun, strict=True):
            outcome = await task
            if is_shared and outcome.error is not None:
                # It was asked for before this read, and has ended before this one's deadline.
                outcome = await self._begin(read, asked)[0]
            outcomes.append(Outcome(outcome.error) if is_shared else outcome)
        return outcomes

    def _begin(self, read: Read, asked: float) -> tuple[asyncio.Task[Outcome], bool]:
        """Return the task of a range, and whether another read began it."""
        key = read[:3]
        if task := self._under_way.get(key):
            return task, True
        task = self._under_way[key] = self._loop.create_task(self._bring(read, asked))
        task.add_done_callback(lambda _: self._under_way.pop(key))
        return task, False

    def _left(self, asked: float, began: float = math.inf) -> float:
        """Return the seconds until the deadline of a range.

        It counts from the last answer to any range: where many wait for a slow store, none is late while answers come.

        Args:
            asked: When the caller asked for it.
            began: When its request began, which has no more time than the deadline.
        """
        return min(began, max(asked, self._answered)) + DEADLINE_S - self._loop.time()

    async def _bring(self, read: Read, asked: float) -> Outcome:
        url, begin, end, keep, claim = read
        while claim is not None and not (claimed := claim(begin, end, take=True)):
            if claimed is None:
                return Outcome(None)
            if self._left(asked) <= 0:
                where = f"{url}, bytes {begin:,} to {end:,}"
                reason = f"another process of this machine reads it for {DEADLINE_S} seconds; end that one if it hangs"
                return Outcome(RemoteError(f"{where}: cannot be read: {reason}"))
            await asyncio.sleep(_LOOK_S)
        try:
            content = await self._read(url, begin, end, asked=asked)
            keep(begin, content)
        except (FormatError, StreamError, OSError) as error:
            return Outcome(error)
        finally:
            if claim is not None:
                claim(begin, end, take=False)
        return Outcome(None, len(content))

    async def _read(
        self, url: str, begin: int, end: int, patience_s: float | None = None, *, asked: float | None = None
    ) -> memoryview:
        asked = self._loop.time() if asked is None else asked
        async with self._slots:
            began, (least, longest) = self._loop.time(), _PATIENCE_S
            with explained(url, begin, end):
                requests = _Asked(partial(self._left, asked, began), self._again, *_locate(url), begin, end)
                # Until the first answer: a request that stalls may never end.
                requests.ask(patience_s or min(longest, max(least, 2 * self._usual)))
                try:
                    content = memoryview(await requests.answer)
                finally:
                    requests.end()
            self._answered = self._loop.time()
            if patience_s is None:
                # Towards the median, by small steps: a store that hangs for a moment does not make all reads patient.
                self._usual *= _STEP if self._answered - began > self._usual else 1 / _STEP
            return content


class _Asked:
    """Requests for one range, of which the first answer counts.

    Args:
        left: Returns the seconds until the deadline.
        again: Requests for ranges of this process that were asked for before.
        store, key: Object.
        begin, end: Bytes of the object.
    """

    def __init__(
        self,
        left: Callable[[], float],
        again: set[asyncio.Future[Any]],
        store: Any,
        key: str,
        begin: int,
        end: int,
    ) -> None:
        self._left, self._again, self._range = left, again, (store, key, begin, end)
        self._loop = asyncio.get_running_loop()
        self._requests: list[asyncio.Future[Any]] = []
        self._timer: asyncio.TimerHandle | None = None
        self.answer: asyncio.Future[Any] = self._loop.create_future()

    def ask(self, patience: float) -> None:
        """Send a request, and another one if no answer comes within some seconds, until the deadline."""
        left, sent = self._left(), len(self._requests)
        if left <= 0:
            return self._give_up()
        if may := not sent or (len(self._again) < _MOST_AGAIN and sent < _MOST_ASKED and patience < left):
            self._send()
        wait = patience if sent < _MOST_ASKED else left
        self._timer = self._loop.call_later(min(wait, left), self.ask, 2 * patience if may else patience)

    def _give_up(self) -> None:
        if not self.answer.done():
            reasons = (each.exception() for each in self._requests if each.done() and not each.cancelled())
            self.answer.set_exception(next(filter(None, reasons), None) or TimeoutError())

    def _send(self) -> None:
        from obstore import get_range_async

        store, key, begin, end = self._range
        request = asyncio.ensure_future(get_range_async(store, key, start=begin, end=end))
        if self._requests:
            self._again.add(request)
            request.add_done_callback(self._again.discard)
        request.add_done_callback(self._take)
        self._requests.append(request)

    def end(self) -> None:
        """Give up the requests that were not answered."""
        if self._timer:
            self._timer.cancel()
        for each in self._requests:
            each.cancel()

    def _take(self, request: asyncio.Future[Any]) -> None:
        if request.cancelled() or self.answer.done():
            return
        if (error := request.exception()) is None:
            self.answer.set_result(request.result())
        elif len(self._requests) < _MOST_ASKED and "body error" in str(error):
            # The connection was lost in the middle of an answer; obstore goes on only if the answer had an ETag.
            return
        elif all(each.done() for each in self._requests):
            self.answer.set_exception(error)


@cache
def object_reads() -> ObjectReads:
    """Return the reads of this process; raise RemoteError if obstore is not installed."""
    try:
        import obstore  # noqa: F401
    except ImportError as error:
        message = f"{missing('obstore', 'remote', by='reading from afar')} ({error})"
        raise RemoteError(message, refused=True) from None
    return ObjectReads()


@contextlib.contextmanager
def explained(url: str, begin: int = 0, end: int = 0) -> Any:
    """Turn the errors of obstore into one that names the object and the bytes."""
    where = f"{url}, bytes {begin:,} to {end:,}" if end else url
    try:
        yield
    except FileNotFoundError:
        raise FormatError(f"{url}: no such object") from None
    except (FormatError, StreamError):
        raise
    except Exception as error:
        if "status code: 416 " in str(error):
            raise FormatError(f"{url}: ends before byte {begin:,}; it was replaced or damaged") from None
        reason, refused = explain(error)
        raise RemoteError(f"{where}: cannot be read: {reason}", refused=refused) from None


def _locate(url: str) -> tuple[Any, str]:
    """Return the store of an address, and the name of its object."""
    scheme, _, path = url.partition("://")
    return open_store(scheme, path.partition("/")[0], deadline_s=_REASON * DEADLINE_S), object_key(url)
