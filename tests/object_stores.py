"""Object stores of the tests' own: moto's server for ``s3://``, gcp-storage-emulator for ``gs://``; real processes and
sockets, with no more behind them than memory."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

from convert.object_store import StoreFolder
from stream.remote import _open_store
from tests.command import wait_until

SCHEMES = ("s3", "gs")
_PROGRAMS = {
    "s3": "-m moto.server -H 127.0.0.1 -p PORT",
    "gs": "-m gcp_storage_emulator start --host 127.0.0.1 --port PORT --in-memory",
}


@dataclass(frozen=True)
class Store:
    """A running object store. environment: what the libraries take to find it, with credentials."""

    scheme: str
    address: str
    environment: Mapping[str, str]
    _numbers: Iterator[int] = field(default_factory=count)

    def new_bucket(self) -> str:
        """Make a bucket, and return its address."""
        name = f"bucket-{os.getpid()}-{next(self._numbers)}"
        store = _open_store(self.scheme)
        if self.scheme == "s3":
            store.call_s3("create_bucket", Bucket=name)
        else:
            store.call("POST", "b", json={"name": name})
        return f"{self.scheme}://{name}"


@contextlib.contextmanager
def object_store(scheme: str, log: Path) -> Iterator[Store]:
    """Start a store, and let this process and those that it starts find it."""
    port = str(free_port())
    command = [port if word == "PORT" else word for word in _PROGRAMS[scheme].split()]
    address = f"http://127.0.0.1:{port}"
    environment = environment_of(scheme, address)
    before = {name: os.environ.get(name) for name in environment}
    with log.open("wb") as out, subprocess.Popen([sys.executable, *command], stdout=out, stderr=out) as process:
        try:
            assert wait_until(lambda: answers(int(port)) or process.poll() is not None, seconds=120), log.read_text()
            assert process.poll() is None, log.read_text()
            os.environ.update(environment)
            _forget_connections(scheme)
            yield Store(scheme, address, environment)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            _forget_connections(scheme)
            process.kill()


def _forget_connections(scheme: str) -> None:
    """The library keeps one that it opened, to wherever the environment said then."""
    type(_open_store(scheme)).clear_instance_cache()
    _open_store.cache_clear()


def environment_of(scheme: str, address: str) -> dict[str, str]:
    if scheme == "gs":
        return {"STORAGE_EMULATOR_HOST": address}
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def upload_tree(folder: Path, url: str) -> None:
    """Store all files below a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            where = path.relative_to(folder).parent.as_posix()
            (StoreFolder(url) if where == "." else StoreFolder(f"{url}/{where}")).upload(path, path.name)


def objects(url: str) -> dict[str, bytes]:
    """All that is below an address: content by name."""
    scheme, path = url.split("://")
    store = _open_store(scheme)
    return {name.removeprefix(f"{path}/"): bytes(store.cat_file(name)) for name in store.find(path)}


def versions(url: str) -> dict[str, str]:
    """When each object below an address was stored."""
    scheme, path = url.split("://")
    found = _open_store(scheme).find(path, detail=True)
    return {
        name.removeprefix(f"{path}/"): str(info.get("generation") or info["LastModified"])
        for name, info in found.items()
    }


Alter = Callable[[str, str, bytes], bytes | int]
"""(method, path, body) to the body that is sent instead, or to a status to answer with."""


@contextlib.contextmanager
def proxy(store: Store, alter: Alter) -> Iterator[dict[str, str]]:
    """Stand between a store and its users, and change what they send; gives the environment of those users."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            altered = alter(self.command, self.path, body)
            if isinstance(altered, int):
                status, headers, content = altered, {}, b'{"error": {"code": %d, "message": "no"}}' % altered
            else:
                target = http.client.HTTPConnection(store.address.removeprefix("http://"), timeout=60)
                sent = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length")}
                target.request(self.command, self.path, altered or None, sent)
                reply = target.getresponse()
                status, headers, content = reply.status, dict(reply.getheaders()), reply.read()
                target.close()
            self.send_response(status)
            for key, value in headers.items():
                if key.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                    self.send_header(key, value)
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(content if self.command != "HEAD" else b"")

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A user that was killed is none."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield environment_of(store.scheme, f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
