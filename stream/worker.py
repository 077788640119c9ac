"""Main program of a worker process, which the trainer starts as ``python -m stream.worker FD FD``.

The first file descriptor is the setup, the second the connection to the trainer. The worker ends when the trainer
closes its end, however the trainer died.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import sys
import traceback
from collections import deque
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

if __name__ == "__main__":
    # Before the slow imports: Ctrl-C is for the trainer, which then closes the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

from stream.base.machine import reopen
from stream.batch.maker import BatchMaker
from stream.batch.result import PendingBatch
from stream.workers.protocol import Reply, Request, SlotWriter

_CHECK_S = 1
"""Seconds without a request after which the worker checks that the trainer still runs."""


def main(arguments: list[str]) -> int:
    """Serve requests until the trainer ends; return the exit code."""
    parent = os.getppid()
    setup_fd, connection_fd = (int(argument) for argument in arguments)
    connection: Connection = Connection(connection_fd)
    # Shards stay open, of which a mixture has more than the usual limit of 1,024.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        # Opened again, as each worker needs a separate position in the file.
        with reopen(setup_fd) as file:
            maker = BatchMaker(pickle.load(file))
        os.close(setup_fd)
        slots: dict[int, SlotWriter] = {}
        waiting: deque[tuple[Request, PendingBatch | None]] = deque()
        while True:
            # The records of all batches that wait are asked for before the first one is made.
            while not waiting or (maker.asks_ahead and connection.poll()):
                if (request := _wait(connection, parent)) is None:
                    return 0
                if request.is_new:
                    slots[request.slot] = SlotWriter(recv_handle(connection), maker)
                waiting.append((request, slots[request.slot].begin(request)))
            request, pending = waiting.popleft()
            connection.send_bytes(pack(slots[request.slot].make(request, pending)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except Exception:
        with contextlib.suppress(OSError):
            connection.send(traceback.format_exc())
        return 1
    return 0


def _wait(connection: Connection, parent: int) -> Request | None:
    """Wait for a request; return None if the trainer ended. Raises EOFError if it closed its end."""
    # A forked child of the trainer may hold its end open, so the connection is not enough.
    while not connection.poll(_CHECK_S):
        if os.getppid() != parent:
            return None
    return connection.recv()


def pack(reply: Reply) -> bytes:
    """Return a reply, pickled; a reply with an error if its batch cannot be pickled."""
    # The connection's own pickler would share the memory of tensors, for which both sides need a server.
    try:
        return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps(Reply(error=f"the batch cannot be sent to the trainer: {error}"))


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # Threads that still decode need not finish.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
