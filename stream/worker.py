"""A worker process: ``python -m stream.worker FD FD``, started by the trainer, never by hand.

The first file descriptor is the setup, the second the connection to the trainer. The worker ends when the trainer
closes its end, however the trainer died.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

if __name__ == "__main__":
    # Before the slow imports: Ctrl-C is for the trainer, which then closes the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

from stream.storage.errors import LimitError
from stream.storage.memory import available_memory
from stream.workers.job import BatchMaker, Reply, Request, SlotWriter

_LOOK_S = 1
"""Seconds without a request after which the worker looks whether the trainer is still there."""


def main(arguments: list[str]) -> int:
    """Serve requests until the trainer is gone."""
    parent = os.getppid()
    setup_fd, connection_fd = (int(argument) for argument in arguments)
    connection: Connection = Connection(connection_fd)
    try:
        # Opened again: each worker has a position of its own in the file.
        with open(f"/proc/self/fd/{setup_fd}", "rb") as file:
            maker = BatchMaker(pickle.load(file))
        os.close(setup_fd)
        slots = _Slots(maker)
        while (request := _wait(connection, parent)) is not None:
            if request.is_new:
                slots.add(request.slot, recv_handle(connection))
            connection.send_bytes(slots.make(request))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except Exception as error:
        with contextlib.suppress(OSError):
            connection.send(str(error) if isinstance(error, LimitError) else traceback.format_exc())
        return 1
    return 0


def _wait(connection: Connection, parent: int) -> Request | None:
    """Wait for a request; None if the trainer is gone. Raises EOFError if it closed its end."""
    # A child that the trainer forked may hold its end open, so the connection alone does not tell.
    while not connection.poll(_LOOK_S):
        if os.getppid() != parent:
            return None
    return Request(*connection.recv())


def _pack(reply: Reply) -> bytes:
    # Not by the connection: it would share the memory of tensors, for which both sides need a server.
    try:
        return pickle.dumps(tuple(reply), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps(tuple(Reply(reply.job, error=f"the batch cannot be sent to the trainer: {error}")))


class _Slots:
    """The slots that this worker was given."""

    def __init__(self, maker: BatchMaker) -> None:
        self._maker = maker
        self._fds: dict[int, int] = {}
        self._slots: dict[int, SlotWriter] = {}

    def add(self, number: int, fd: int) -> None:
        """Take a slot by its file descriptor."""
        self._fds[number] = fd
        self._map(number)

    def make(self, request: Request) -> bytes:
        """Make a batch in a slot, which grows if the batch does not fit; returns the reply, pickled."""
        slot = self._slots[request.slot]
        if len(slot.buffer) < request.size:
            # Another worker enlarged it.
            slot = self._map(request.slot)
        reply, arrays, needed = slot.make(request)
        # Now: its values may be views of memory that the arrays are written to.
        packed = _pack(reply)
        if needed > len(slot.buffer):
            try:
                _enlarge(self._fds[request.slot], len(slot.buffer), needed)
            except OSError as error:
                told = f"a batch of {needed:,} bytes does not fit into memory ({error.strerror})"
                return _pack(Reply(request.job, error=f"{told}; take a smaller batch_size"))
            slot = self._map(request.slot)
        slot.write(arrays)
        return packed

    def _map(self, number: int) -> SlotWriter:
        fd = self._fds[number]
        slot = self._slots[number] = SlotWriter(mmap.mmap(fd, os.fstat(fd).st_size), self._maker)
        return slot


def _enlarge(fd: int, size: int, needed: int) -> None:
    available = available_memory()
    if available is not None and needed - size > available:
        # Asked first: the kernel ends the process instead of refusing the memory.
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    os.posix_fallocate(fd, 0, needed)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # Threads of the decoder have nothing left to say.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
