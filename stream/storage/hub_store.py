"""Ranged reads of files on the Hugging Face Hub, with the methods of obstore's stores that reading needs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from stream.storage.hub import HubAddress, hub_requests
from stream.storage.remote import BusyError, RemoteError

_MOST_REDIRECTS = 5
_REFUSED = (400, 401, 403, 404, 410)
"""Answers of the CDN to an address that has expired, or was signed for another range."""
_WHOLE_BYTES = 16 << 20
"""Size up to which a file may come complete for a range: the Hub serves small files without ranges."""
_PAUSE_S = 30
"""Pause after an answer 429 that names none."""
_log = logging.getLogger("stream")


class _Content(bytes):
    """Content of a file, with the method of obstore's answers."""

    async def bytes_async(self) -> bytes:
        return self


class _SignedAddress:
    """Address of a file at the CDN, and the number of requests that it has served."""

    def __init__(self, url: str) -> None:
        self.url, self.served = url, 0


class HubStore:
    """The datasets of the Hub as one store, whose keys are ``ORG/NAME@COMMIT/PATH``.

    The Hub answers a request for a large file with an address at its CDN, signed for some time. The address serves
    further ranges of the file until the CDN refuses it, and is then requested again. If it serves only the range that
    it was requested for, each range of this file is requested from the Hub. Only the Hub gets the token.
    """

    def __init__(self, *, timeout_s: float) -> None:
        with hub_requests("hf://", done="opened"):
            from huggingface_hub import constants, get_async_session

        self._endpoint, self._timeout_s = constants.ENDPOINT.rstrip("/"), timeout_s
        self._client = get_async_session()
        self._signed: dict[str, _SignedAddress] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._one_range: set[str] = set()
        self._paused_until = 0.0

    async def get_async(self, key: str) -> _Content:
        """Return the content of a file, see ``get_range_async``."""
        return _Content(await self._read(key, None))

    async def get_range_async(self, key: str, *, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a file, fewer if it ends before.

        Raises:
            FileNotFoundError: The dataset has no such file at this commit.
            RemoteError: The Hub or the CDN refuses the request.
            BusyError: The request may succeed later.
        """
        return await self._read(key, (start, end))

    async def _read(self, key: str, span: tuple[int, int] | None) -> bytes:
        headers = {"Accept-Encoding": "identity"}
        if span is not None:
            headers["Range"] = f"bytes={span[0]}-{span[1] - 1}"
        response = await self._response(key, headers)
        try:
            with _answers(str(response.url)):
                return await self._content(response, key, span)
        finally:
            await response.aclose()

    async def _response(self, key: str, headers: dict[str, str]) -> Any:
        """Return the answer of the Hub or of its CDN to a request for a file, whose content is still to be read."""
        refused: _SignedAddress | None = None
        while key not in self._one_range:
            # Ranges that are read at the same time wait for one address.
            async with self._locks[key]:
                signed = self._signed.get(key)
                if is_new := signed is None or signed is refused:
                    response = await self._ask_hub(key, headers)
                    if not isinstance(response, _SignedAddress):
                        return response
                    signed = self._signed[key] = response
            response = await self._send(signed.url, headers, follow_redirects=True)
            if is_new or response.status_code not in _REFUSED:
                signed.served += 1
                return response
            await response.aclose()
            refused = signed
            if signed.served < 2:
                self._one_range.add(key)
        response = await self._ask_hub(key, headers)
        if isinstance(response, _SignedAddress):
            return await self._send(response.url, headers, follow_redirects=True)
        return response

    async def _ask_hub(self, key: str, headers: dict[str, str]) -> Any:
        """Return the address that the Hub redirects to, or its answer if it serves the file itself."""
        from huggingface_hub.utils import build_hf_headers

        if (pause_s := self._paused_until - time.monotonic()) > 0:
            raise BusyError("the limit of requests to the Hub is used up", pause_s=pause_s + random.random())
        name, revision, path = HubAddress.of(f"hf://datasets/{key}")
        url = f"{self._endpoint}/datasets/{name}/resolve/{quote(revision, safe='')}/{quote(path)}"
        for _ in range(_MOST_REDIRECTS):
            response = await self._send(url, {**build_hf_headers(), **headers})
            location = response.headers.get("Location")
            if not 300 <= response.status_code < 400 or location is None:
                return response
            await response.aclose()
            url = urljoin(url, location)
            if urlsplit(url)[:2] != urlsplit(self._endpoint)[:2]:
                return _SignedAddress(url)
        raise RemoteError(f"hf://datasets/{key}: more than {_MOST_REDIRECTS} redirects; try again later", refused=True)

    async def _send(self, url: str, headers: dict[str, str], *, follow_redirects: bool = False) -> Any:
        with _answers(url):
            request = self._client.build_request("GET", url, headers=headers, timeout=self._timeout_s)
            return await self._client.send(request, stream=True, follow_redirects=follow_redirects)

    async def _content(self, response: Any, key: str, span: tuple[int, int] | None) -> bytes:
        status, context = response.status_code, f"hf://datasets/{key}"
        if status == 206 and span is not None:
            answered = re.match(r"bytes (\d+)-(\d+)/", response.headers.get("Content-Range", ""))
            if answered is None or int(answered[1]) != span[0] or int(answered[2]) >= span[1]:
                received = response.headers.get("Content-Range")
                raise RemoteError(f"{context}: bytes {span[0]} to {span[1]} were asked for, and {received!r} came")
            return bytes(await response.aread())
        if status == 200:
            num_bytes = int(response.headers.get("Content-Length") or _WHOLE_BYTES + 1)
            if span is None:
                return bytes(await response.aread())
            if num_bytes <= _WHOLE_BYTES:
                return bytes(await response.aread())[span[0] : span[1]]
            raise RemoteError(f"{context}: the server does not answer requests for ranges of a file", refused=True)
        await self._raise(response, key)
        raise AssertionError(status)

    async def _raise(self, response: Any, key: str) -> None:
        """Raise the error of an answer."""
        from huggingface_hub.utils import hf_raise_for_status

        status, headers, server = response.status_code, response.headers, _server(str(response.url))
        message = f"non-2xx status code: {status} {response.reason_phrase} from {server}"
        context = f"hf://datasets/{key}"
        if status == 416:
            raise OSError(message)
        if status == 404 and headers.get("X-Error-Code") == "EntryNotFound":
            raise FileNotFoundError(context)
        if status == 429 and server == _server(self._endpoint):
            raise BusyError(message, pause_s=self._pause(headers))
        if status in (408, 429) or status >= 500:
            raise BusyError(message)
        if server != _server(self._endpoint):
            # The message of the library would show the signed address.
            raise RemoteError(f"{context}: {server}, to which the Hub redirects, answered {status}", refused=True)
        await response.aread()
        with hub_requests(context, done="read"):
            hf_raise_for_status(response)
        raise RemoteError(f"{context}: {server} answered {status}, which is neither the file nor an error")

    def _pause(self, headers: Any) -> float:
        """Let all requests of this process to the Hub wait as long as an answer 429 says; return the seconds."""
        window = re.search(r";\s*t=(\d+)", headers.get("RateLimit", ""))
        seconds = window[1] if window else headers.get("Retry-After", "")
        # A second more, as the Hub rounds.
        until = time.monotonic() + (int(seconds) if seconds.isdigit() else _PAUSE_S) + 1
        if until > self._paused_until + 1:
            limit = re.search(r";\s*q=(\d+);\s*w=(\d+)", headers.get("RateLimit-Policy", ""))
            _log.warning(
                "the limit of requests to the Hub%s is used up; reads continue in %.0f s. A token, shuffle='block:64', "
                "larger shards or `pairstream fetch` need fewer requests",
                f", {int(limit[1]):,} in {limit[2]} s," if limit else "",
                until - time.monotonic(),
            )
        self._paused_until = max(until, self._paused_until)
        return self._paused_until - time.monotonic()


def _server(url: str) -> str:
    scheme, host = urlsplit(url)[:2]
    return f"{scheme}://{host}"


@contextlib.contextmanager
def _answers(url: str) -> Iterator[None]:
    """Turn errors of the connection, which are those of a library of the Hub's client, into TimeoutError."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0].startswith("http"):
            raise TimeoutError(f"error sending request to {_server(url)} ({type(error).__name__}: {error})") from None
        raise
