"""A worker process: ``python -m stream.worker FD FD FD``, started by the trainer, never by hand.

The first file descriptor is the setup, the second the socket of requests and replies, the third the socket that slots
come through. It ends when the trainer closes its end, however the trainer died.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import traceback

if __name__ == "__main__":
    # Before the slow imports: Ctrl-C is for the trainer, which then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

import numpy as np

from stream.batch import Begun
from stream.channel import Channel
from stream.errors import LimitError
from stream.job import BatchMaker, Reply, Request
from stream.ring import Layout
from stream.rows import ROW_TYPE, Rows
from stream.slot_memory import map_memory

_LOOK_S = 1
"""After so many seconds without a request, look whether the trainer is still there."""
_PARTS = 32
"""Of a slot, the arrays of so many different parts are kept."""
_TOGETHER = 2
"""So many requests are begun before the first of them is finished, see ``Assembler.begin``. With more of them the time
from one batch to the next is less even."""


def main(arguments: list[str]) -> int:
    """Serve requests until the trainer is gone."""
    parent = os.getppid()
    setup_fd, request_fd, slot_fd = (int(argument) for argument in arguments)
    channel = Channel(socket.socket(fileno=request_fd), timeout=_LOOK_S)
    slots = socket.socket(fileno=slot_fd)
    try:
        _serve(setup_fd, channel, slots, parent)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except LimitError as error:
        with contextlib.suppress(OSError):
            channel.send(str(error))
        return 1
    except Exception:
        with contextlib.suppress(OSError):
            channel.send(traceback.format_exc())
        return 1
    return 0


def _serve(setup_fd: int, channel: Channel, slots: socket.socket, parent: int) -> None:
    with open(setup_fd, "rb") as file:
        setup = pickle.load(file)
    maker = BatchMaker(setup)
    known: dict[int, _Slot] = {}
    together = 1
    while (request := _wait(channel, parent)) is not None:
        slot = _slot(known, slots, request, maker)
        if setup.whole:
            _send(channel, _transformed(maker, request, slot))
            continue
        begun = [(request, slot.begin(request, maker))]
        while len(begun) < together and (request := channel.receive(wait=False)) is not None:
            request = Request(*request)
            begun.append((request, _slot(known, slots, request, maker).begin(request, maker)))
        for request, part in begun:
            done = maker.assembler.finish(part).moved(request.start)
            work = done.work
            _send(channel, Reply(request.job, request.start, done.texts, done.failed, work.noted, work.bytes))
        # The first batch is waited for, and its shards have to be opened.
        together = _TOGETHER


def _wait(channel: Channel, parent: int) -> Request | None:
    """Wait for a request; None if the trainer is gone. Raises EOFError if it closed its end."""
    # A child that the trainer forked may hold its end of the channel open, so the channel alone does not tell.
    while (request := channel.receive()) is None:
        if os.getppid() != parent:
            return None
    return Request(*request)


def _send(channel: Channel, reply: Reply) -> None:
    try:
        channel.send(tuple(reply))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        told = f"the batch cannot be sent to the trainer: {error}"
        channel.send(tuple(Reply(reply.job, reply.start, {}, error=told)))


class _Slot:
    """A slot as this process sees it: its memory, the rows that are asked for, and the arrays of a batch."""

    def __init__(self, fd: int, maker: BatchMaker) -> None:
        self.fd = fd
        self.refit(maker)

    def refit(self, maker: BatchMaker) -> None:
        """Map it as large as it is now."""
        self.buffer = map_memory(self.fd, os.fstat(self.fd).st_size)
        self._packed = np.frombuffer(self.buffer, ROW_TYPE, maker.most_rows)
        self.arrays = maker.layout.arrays(self.buffer, base=maker.base)
        self._parts: dict[tuple[int, int], tuple[Rows, dict[str, np.ndarray]]] = {}

    def rows(self, start: int, stop: int) -> Rows:
        """Rows [start, stop) that are asked for."""
        return Rows.unpacked(self._packed[start:stop])

    def begin(self, request: Request, maker: BatchMaker) -> Begun:
        """Begin with a request."""
        start, stop = request.start, request.stop
        part = self._parts.get((start, stop))
        if part is None:
            if len(self._parts) >= _PARTS:
                self._parts.clear()
            arrays = {name: values[start:stop] for name, values in self.arrays.items()}
            part = self._parts[start, stop] = self.rows(start, stop), arrays
        if request.planned > 1:
            every = self.rows(0, request.planned * maker.setup.rows)
            maker.assembler.plan(request.step, every, steps=request.planned)
        planned = (request.step, (start, stop)) if request.planned else None
        return maker.assembler.begin(*part, planned=planned)


def _transformed(maker: BatchMaker, request: Request, slot: _Slot) -> Reply:
    rows = slot.rows(request.start, request.stop)
    reply, arrays = maker.make_transformed(request, rows)
    if reply.transformed is None:
        return reply
    layout = Layout(reply.transformed.fields, rows=len(rows))
    needed = maker.base + layout.nbytes
    if needed > len(slot.buffer):
        try:
            os.posix_fallocate(slot.fd, 0, needed)
        except OSError as error:
            told = f"a batch of {needed:,} bytes cannot be had ({error.strerror})"
            return Reply(request.job, request.start, {}, error=f"{told}; take a smaller batch_size")
        slot.refit(maker)
    for name, target in layout.arrays(slot.buffer, base=maker.base).items():
        target[...] = arrays[name]
    return reply


def _slot(known: dict[int, _Slot], slots: socket.socket, request: Request, maker: BatchMaker) -> _Slot:
    """The slot of a request, received through the socket when it is new, mapped again when another worker enlarged
    it."""
    while request.slot not in known:
        message, fds, _, _ = socket.recv_fds(slots, 8, 1)
        if not message:
            raise EOFError
        known[int.from_bytes(message, "little")] = _Slot(fds[0], maker)
    slot = known[request.slot]
    if len(slot.buffer) < request.size:
        slot.refit(maker)
    return slot


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # Threads of the decoder and readers have nothing left to say.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
