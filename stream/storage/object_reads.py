"""Ranged reads of objects with obstore, many at a time, in one thread of this process.

Only this module opens stores of obstore, when the first object is read. It finds endpoints and credentials, for example
in ``AWS_PROFILE``, ``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS`` and ``STORAGE_EMULATOR_HOST``.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote

from stream.storage.errors import FormatError, StreamError
from stream.storage.extras import missing
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
"""Seconds for which a request is repeated, while training runs and when a root is opened."""
_RETRY: dict[str, Any] = {
    "max_retries": 1000,
    "backoff": {"init_backoff": timedelta(seconds=0.02), "max_backoff": timedelta(seconds=5), "base": 2},
}
_TIMEOUT_S = 20
_CLIENT: dict[str, Any] = {"connect_timeout": timedelta(seconds=5), "allow_http": True}
_LOOK_S = 0.005
"""Time after which a range that another process reads is looked at again."""
_LEAVE_S = 0.1
"""Time for the threads of obstore to leave Python."""
_RENEW = timedelta(minutes=5)
"""Time after which credentials that end are asked for again."""

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
        self._usual = 0.1
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
        begun = list(map(self._begin, reads))
        return [Outcome((await task).error) if is_shared else await task for task, is_shared in begun]

    def _begin(self, read: Read) -> tuple[asyncio.Task[Outcome], bool]:
        """Return the task of a range, and whether another read began it."""
        key = read[:3]
        if task := self._under_way.get(key):
            return task, True
        task = self._under_way[key] = self._loop.create_task(self._bring(read))
        task.add_done_callback(lambda _: self._under_way.pop(key))
        return task, False

    async def _bring(self, read: Read) -> Outcome:
        url, begin, end, keep, claim = read
        while claim is not None and not (claimed := claim(begin, end, take=True)):
            if claimed is None:
                return Outcome(None)
            await asyncio.sleep(_LOOK_S)
        try:
            content = await self._read(url, begin, end)
            keep(begin, content)
        except (FormatError, StreamError, OSError) as error:
            return Outcome(error)
        finally:
            if claim is not None:
                claim(begin, end, take=False)
        return Outcome(None, len(content))

    async def _read(self, url: str, begin: int, end: int, patience_s: float | None = None) -> memoryview:
        async with self._slots:
            began = time.perf_counter()
            with explained(url, begin, end):
                asked = _Asked(self._loop, self._again, *_locate(url), begin, end)
                content = memoryview(await self._first(asked, patience_s))
            if patience_s is None:
                # Towards the median, by small steps: a store that hangs for a moment does not make all reads patient.
                self._usual *= _STEP if time.perf_counter() - began > self._usual else 1 / _STEP
            return content

    async def _first(self, asked: _Asked, patience_s: float | None) -> Any:
        """Return the first answer to a request, which is repeated while none comes: a stalled one may never end."""
        least, longest = _PATIENCE_S
        asked.ask(patience_s or min(longest, max(least, 2 * self._usual)))
        try:
            return await asked.answer
        finally:
            asked.end()


class _Asked:
    """Requests for one range, of which the first answer counts.

    Args:
        loop: Loop of the requests.
        again: Requests for ranges of this process that were asked for before.
        store, key: Object.
        begin, end: Bytes of the object.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        again: set[asyncio.Future[Any]],
        store: Any,
        key: str,
        begin: int,
        end: int,
    ) -> None:
        self._loop, self._again, self._range = loop, again, (store, key, begin, end)
        self._requests: list[asyncio.Future[Any]] = []
        self.answer: asyncio.Future[Any] = loop.create_future()

    def ask(self, patience: float) -> None:
        """Send a request, and another one if no answer comes within some seconds."""
        if may := not self._requests or len(self._again) < _MOST_AGAIN:
            self._send()
        if len(self._requests) < _MOST_ASKED:
            self._timer = self._loop.call_later(patience, self.ask, 2 * patience if may else patience)

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
        self._timer.cancel()
        for each in self._requests:
            each.cancel()

    def _take(self, request: asyncio.Future[Any]) -> None:
        if request.cancelled() or self.answer.done():
            return
        if (error := request.exception()) is None:
            self.answer.set_result(request.result())
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
        if "416 " in str(error):
            raise FormatError(f"{url}: ends before byte {begin:,}; it was replaced or damaged") from None
        reason, refused = explain(error)
        raise RemoteError(f"{where}: cannot be read: {reason}", refused=refused) from None


def object_key(url: str) -> str:
    """Return the name of the object of an address, which a web server has encoded.

    >>> object_key("s3://bucket/oxe/a%20b"), object_key("https://host/a%20b")
    ('oxe/a%20b', 'a b')
    """
    key = url.partition("://")[2].partition("/")[2]
    return unquote(key) if url.startswith("http") else key


def _locate(url: str) -> tuple[Any, str]:
    """Return the store of an address, and the name of its object."""
    scheme, _, path = url.partition("://")
    return open_store(scheme, path.partition("/")[0]), object_key(url)


@cache
def open_store(scheme: str, place: str, *, deadline_s: float | None = None, timeout_s: float = _TIMEOUT_S) -> Any:
    """Return a store of obstore.

    Args:
        scheme: ``s3``, ``gs``, ``http`` or ``https``.
        place: Bucket, or host and port.
        deadline_s: Seconds for which requests are repeated, None for ``DEADLINE_S``.
        timeout_s: Seconds that one request may take.
    """
    from obstore.store import GCSStore, HTTPStore, S3Store

    common: dict[str, Any] = {
        "retry_config": {**_RETRY, "retry_timeout": timedelta(seconds=deadline_s or DEADLINE_S)},
        "client_options": {**_CLIENT, "timeout": timedelta(seconds=timeout_s)},
    }
    if scheme == "s3":
        return S3Store(place, **common, **_s3_access(place))
    if scheme == "gs":
        return GCSStore(place, **common, **_google_access())
    return HTTPStore.from_url(f"{scheme}://{place}", **common)


def _s3_access(bucket: str) -> dict[str, Any]:
    """Return endpoint, region and credentials, found by botocore: it reads profiles too."""
    from botocore.session import Session

    session = Session()
    config = {"region": os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"}
    if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        config["endpoint"] = endpoint
    if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true"):
        return {"config": {**config, "skip_signature": True}}
    found = session.get_credentials()
    if found is None:
        raise RemoteError(
            f"s3://{bucket}: no credentials were found; set AWS_PROFILE or the other AWS_ variables, or "
            "AWS_SKIP_SIGNATURE=true for a public bucket",
            refused=True,
        )

    def credentials() -> Any:
        now = found.get_frozen_credentials()
        names = {"access_key_id": now.access_key, "secret_access_key": now.secret_key, "token": now.token}
        is_fixed = type(found).__name__ == "Credentials"
        return {**names, "expires_at": None if is_fixed else datetime.now(UTC) + _RENEW}

    return {"config": config, "credential_provider": credentials}


def _google_access() -> dict[str, Any]:
    """Return endpoint and credentials, found by google.auth; without any, objects are public."""
    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        base = emulator if "://" in emulator else f"http://{emulator}"
        # Any credentials will do, but obstore writes with none.
        token = {"token": "emulator", "expires_at": None}
        return {"config": {"base_url": base.rstrip("/")}, "credential_provider": lambda: token}
    from google.auth import default
    from google.auth.exceptions import DefaultCredentialsError
    from obstore.auth.google import GoogleCredentialProvider

    try:
        # The key of a service account gives nothing without a scope.
        found, _ = default(scopes=["https://www.googleapis.com/auth/devstorage.read_write"])
        return {"credential_provider": GoogleCredentialProvider(found)}
    except DefaultCredentialsError:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            raise
        return {"config": {"skip_signature": True}}
