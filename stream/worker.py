"""A worker process: ``python -m stream.worker FD FD FD``, started by the trainer, never by hand.

The first file descriptor is the setup, the second the socket of requests and replies, the third the socket that slots
come through. It ends when the trainer closes its end, however the trainer died.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import socket
import sys
import traceback
from multiprocessing.connection import Connection

_POLL_S = 1.0


def main(arguments: list[str]) -> int:
    """Serve requests until the trainer is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then closes the pipe
    parent = os.getppid()
    setup_fd, request_fd, slot_fd = (int(argument) for argument in arguments)
    requests = Connection(request_fd)
    slots = socket.socket(fileno=slot_fd)
    try:
        _serve(setup_fd, requests, slots, parent)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except Exception:
        with contextlib.suppress(OSError):
            requests.send(traceback.format_exc())
        return 1
    return 0


def _serve(setup_fd: int, requests: Connection, slots: socket.socket, parent: int) -> None:
    from stream.job import BatchMaker, Reply, load_rows
    from stream.ring import Layout

    with open(setup_fd, "rb") as file:
        setup = pickle.load(file)
    maker = BatchMaker(setup)
    known: dict[int, tuple[int, mmap.mmap]] = {}
    while True:
        # A child that the trainer forked may hold its end of the pipe open, so the pipe alone does not tell.
        while not requests.poll(_POLL_S):
            if os.getppid() != parent:
                return
        request = requests.recv()
        fd, buffer = _slot(known, slots, request.slot, request.size)
        rows = load_rows(maker.row_layout.arrays(buffer))
        if setup.transforms:
            reply, arrays = maker.make_transformed(request.step, rows)
            layout = Layout(reply.fields, rows=setup.rows)
            needed = reply.offset + layout.nbytes
            if needed > len(buffer):
                try:
                    os.posix_fallocate(fd, 0, needed)
                except OSError as error:
                    reply = Reply(request.step, error=f"a batch of {needed:,} bytes cannot be had ({error.strerror})")
                    arrays = {}
                else:
                    buffer = mmap.mmap(fd, needed)
                    known[request.slot] = (fd, buffer)
            if arrays:
                for name, target in layout.arrays(buffer, base=reply.offset).items():
                    target[...] = arrays[name]
            reply.job = request.job
            try:
                requests.send(reply)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                requests.send(
                    Reply(request.step, request.job, error=f"the batch cannot be sent to the trainer: {error}")
                )
        else:
            reply = maker.make_in(request.step, rows, buffer)
            reply.job = request.job
            requests.send(reply)


def _slot(
    known: dict[int, tuple[int, mmap.mmap]], slots: socket.socket, number: int, size: int
) -> tuple[int, mmap.mmap]:
    """The memory of a slot, received through the socket when it is new, mapped again when another worker enlarged
    it."""
    while number not in known:
        message, fds, _, _ = socket.recv_fds(slots, 8, 1)
        if not message:
            raise EOFError
        known[int.from_bytes(message, "little")] = (fds[0], mmap.mmap(fds[0], os.fstat(fds[0]).st_size))
    fd, buffer = known[number]
    if len(buffer) < size:
        buffer = mmap.mmap(fd, size)
        known[number] = (fd, buffer)
    return fd, buffer


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # Threads of the decoder and readers have nothing left to say.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
