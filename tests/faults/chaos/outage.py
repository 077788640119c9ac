"""Outages of a web server while a training run reads in place."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from pairstream.info.overview import describe, open_root
from tests.faults.chaos.programs import Training
from tests.faults.chaos.sandbox import Broken, Fault, Trial
from tests.fixtures.object_stores import FileHandler

Form = Literal["refused", "reset", "closed", "stalled"]
FORMS: tuple[Form, ...] = ("refused", "reset", "closed", "stalled")
"""An outage that refuses connections, resets them, accepts and closes them, or accepts them and never answers."""
SECONDS = (1, 5, 15, 60)
"""Lengths of the outages, in turn."""
_LINGER_0 = struct.pack("ii", 1, 0)


def outage(trial: Trial, fault: Fault, *, form: Form) -> None:
    """Read in place, and let the server fail at a random step: the run goes on by itself, with the same batches."""
    seconds = SECONDS[(fault.tried - 1) % len(SECONDS)]
    fault.what = f"{form} for {seconds} s"
    with FailingServer(trial.sandbox.root).serving() as server:
        training = Training(trial.sandbox, root=server.url, cache=f"{trial.folder}/cache:50KB")
        with training.running(trial) as command:
            training.wait(trial, command)
            with server.failing(form):
                trial.gates.open()
                time.sleep(seconds)
            if command.process.poll() is not None:
                raise Broken("the run ended before the outage did")
            trial.check_done(trial.end(command))
        training.finish(trial)


class FailingServer:
    """A web server of a root, in threads of this process, which can fail."""

    def __init__(self, root: Path, *, names: bytes | None = None) -> None:
        self.root = root
        datasets = [] if names else [describe(dataset) for dataset in open_root(str(root)).datasets]
        self.names = names or json.dumps({"datasets": datasets}).encode()
        self.form: Form | None = None
        self.ended = threading.Event()
        self._server = _Server(("127.0.0.1", 0), self)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @contextlib.contextmanager
    def serving(self) -> Iterator[FailingServer]:
        self._server.start()
        try:
            yield self
        finally:
            self.ended.set()
            self._server.stop()

    def fail(self, form: Form, *, seconds: float) -> None:
        """Fail for some seconds."""
        with self.failing(form):
            time.sleep(seconds)

    @contextlib.contextmanager
    def failing(self, form: Form) -> Iterator[None]:
        """Fail during the context; connections that stalled are never answered."""
        self.form = form
        if form == "refused":
            self._server.stop()
        yield
        if form == "refused":
            self._server = _Server(("127.0.0.1", self._server.server_port), self)
            self._server.start()
        self.form = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], owner: FailingServer) -> None:
        class Handler(FileHandler):
            folder, more = owner.root, {"info.json": owner.names}

            def answer(self) -> None:
                if owner.form is None:
                    return super().do_GET()
                self.close_connection = True
                if owner.form == "stalled":
                    owner.ended.wait()

            do_GET = do_HEAD = answer  # noqa: N815

        super().__init__(address, Handler)
        self.owner = owner

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self.owner.form in (None, "stalled")

    def shutdown_request(self, request: Any) -> None:
        """End a connection, in an outage of this form by a reset."""
        if self.owner.form == "reset":
            request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
            self.close_request(request)
        else:
            super().shutdown_request(request)
