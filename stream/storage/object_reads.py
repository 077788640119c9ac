"""Ranged reads of objects with obstore, many at a time, in one thread of this process.

Only this module opens stores of obstore, when the first object is read. It finds endpoints and credentials, for example
in ``AWS_PROFILE``, ``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS`` and ``STORAGE_EMULATOR_HOST``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
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
_PATIENCE_S = (0.1, 5.0)
"""Least and longest time after which a range is asked for again, three times the usual time between them."""
DEADLINE_S, OPENING_S = 100, 10
"""Seconds for which a request is repeated, while training runs and when a root is opened."""
_RETRY: dict[str, Any] = {
    "max_retries": 1000,
    "backoff": {"init_backoff": timedelta(seconds=0.05), "max_backoff": timedelta(seconds=5), "base": 2},
}
_TIMEOUT_S = 20
_CLIENT: dict[str, Any] = {"connect_timeout": timedelta(seconds=5), "allow_http": True}
_LOOK_S = 0.005
"""Time after which a range that another process reads is looked at again."""
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
    keep: Callable[[int, bytes], None]
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
        self._usual = _PATIENCE_S[0]
        self._under_way: dict[tuple[Any, ...], asyncio.Task[Outcome]] = {}
        threading.Thread(target=self._loop.run_forever, name="stream-objects", daemon=True).start()

    def start(self, reads: Sequence[Read]) -> Future[list[Outcome]]:
        """Start reads that go on while this process does something else; raises as ``read`` does."""
        return self._run(self._read_all(reads))

    def read(self, url: str, begin: int, end: int) -> bytes:
        """Return bytes of an object, fewer if it ends before.

        Raises:
            FormatError: There is no such object, or it ends before ``begin``.
            RemoteError: The store did not fulfil the request before the deadline, or refuses it.
            StreamError: The process was forked after the first read.
        """
        return self._run(self._read(url, begin, end)).result()

    def _run(self, work: Coroutine[Any, Any, _Answer]) -> Future[_Answer]:
        if os.getpid() != self._pid:
            work.close()
            raise StreamError(
                "an object store was opened before this process was forked, and its connections cannot be shared; "
                "start processes with multiprocessing's 'spawn' or 'forkserver', or open the data after the fork"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _read_all(self, reads: Sequence[Read]) -> list[Outcome]:
        return await asyncio.gather(*map(self._keep, reads))

    async def _keep(self, read: Read) -> Outcome:
        key = read[:3]
        if key in self._under_way:
            return Outcome((await self._under_way[key]).error)
        task = self._under_way[key] = asyncio.ensure_future(self._bring(read))
        task.add_done_callback(lambda _: self._under_way.pop(key))
        return await task

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

    async def _read(self, url: str, begin: int, end: int) -> bytes:
        async with self._slots:
            began = time.perf_counter()
            with explained(url, begin, end):
                store, key = _store_of(url), object_key(url)
                content = bytes(await self._first(lambda: store.get_range_async(key, start=begin, end=end)))
            # One that stalled says little about the usual time; where all are slow, it grows all the same.
            self._usual += (min(time.perf_counter() - began, 2 * self._usual) - self._usual) / 16
            return content

    async def _first(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return the first answer to a request, which is repeated while none comes: a stalled one may never end."""
        least, longest = _PATIENCE_S
        patience = min(longest, max(least, 3 * self._usual))
        asked = {asyncio.ensure_future(ask())}
        try:
            while True:
                wait = patience if len(asked) < _MOST_ASKED else None
                done, _ = await asyncio.wait(asked, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    if each.exception() is None or len(asked) == 1:
                        return each.result()
                    asked.discard(each)
                if not done:
                    asked.add(asyncio.ensure_future(ask()))
                    patience *= 2
        finally:
            for each in asked:
                each.cancel()


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
        raise FormatError(f"{url}: no such object, though the manifest names it") from None
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


def _store_of(url: str) -> Any:
    scheme, _, path = url.partition("://")
    return open_store(scheme, path.partition("/")[0])


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
        return S3Store(place, **common, **_s3_access())
    if scheme == "gs":
        return GCSStore(place, **common, **_google_access())
    return HTTPStore.from_url(f"{scheme}://{place}", **common)


def _s3_access() -> dict[str, Any]:
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
        raise RemoteError("s3: no credentials were found; set AWS_PROFILE or the other AWS_ variables", refused=True)

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
    from google.auth.exceptions import DefaultCredentialsError
    from obstore.auth.google import GoogleCredentialProvider

    try:
        return {"credential_provider": GoogleCredentialProvider()}
    except DefaultCredentialsError:
        return {"config": {"skip_signature": True}}
