"""Worker processes: started as ``python -m stream.worker``, so that no main guard is needed and a notebook works."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import deque

import cloudpickle

from stream.channel import Channel
from stream.errors import WorkerError
from stream.job import Reply, Request, Setup
from stream.pace import Pace
from stream.ring import Slot

# By default glibc gives memory that is free back to the kernel, and takes it page by page again: 17 page faults a batch
# of 64 in place of 0.1, of 3.5 microseconds each on a virtual machine.
_MALLOC = {
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(16 << 20),
    "MALLOC_TOP_PAD_": str(4 << 20),
}


class Worker:
    """One process and its two sockets."""

    def __init__(self, number: int, setup_fd: int) -> None:
        self.number = number
        self.jobs: deque[Request] = deque()
        self.pace = Pace()
        self._known: set[int] = set()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        slots, their_slots = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = (setup_fd, theirs.fileno(), their_slots.fileno())
        try:
            self.process = subprocess.Popen(
                # -P: what lies in the current folder is none of its modules, unless it is one of this process's.
                [sys.executable, "-P", "-m", "stream.worker", *map(str, fds)],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                env=_environment(),
                # Ctrl-C at a terminal goes to all of its process group; workers end when the trainer lets go of them.
                process_group=0,
            )
        except BaseException:
            ours.close()
            slots.close()
            raise
        finally:
            theirs.close()
            their_slots.close()
        self.channel = Channel(ours)
        self._slots = slots

    def seconds_left(self, now: float) -> float:
        """When it will be done with what it has, in seconds; see ``Pace``."""
        return self.pace.seconds_left([request.stop - request.start for request in self.jobs], now)

    def send(self, request: Request, slot: Slot) -> None:
        """Send a request, and its slot if this worker does not know it yet. A worker that is gone is found by
        ``receive``."""
        self.jobs.append(request)
        try:
            if slot.number not in self._known:
                self._known.add(slot.number)
                socket.send_fds(self._slots, [slot.number.to_bytes(8, "little")], [slot.fd])
            self.channel.send(tuple(request))
        except (BrokenPipeError, ConnectionResetError):
            pass

    def close(self) -> None:
        """Let go of the process and end it; it has nothing that could be lost."""
        self.channel.close()
        self._slots.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def fate(self) -> str:
        """How the process ended."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = " (as the kernel does when memory runs out)" if -code == signal.SIGKILL else ""
        return f"was killed by {name}{hint}"


class WorkerPool:
    """Workers that make batches.

    Args:
        setup: what they are told.
        count: processes, at least 1.

    Raises:
        WorkerError: they cannot be started.
    """

    def __init__(self, setup: Setup, count: int) -> None:
        self.workers: list[Worker] = []
        self._threads = setup.threads
        setup_fd = os.memfd_create("stream-setup", os.MFD_CLOEXEC)
        try:
            with open(setup_fd, "wb", closefd=False) as file:
                file.write(cloudpickle.dumps(setup))
            for number in range(count):
                # Each has a position of its own in the file, which it gets by opening it anew.
                fd = os.open(f"/proc/self/fd/{setup_fd}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    self.workers.append(Worker(number, fd))
                finally:
                    os.close(fd)
        except OSError as error:
            self.close()
            raise WorkerError(
                f"worker {len(self.workers)} of {count} cannot be started ({error.strerror}); take a smaller "
                "num_workers",
                step=-1,
            ) from None
        except BaseException:
            self.close()
            raise
        finally:
            os.close(setup_fd)

    def choose(self, count: int) -> list[Worker]:
        """Return the workers for so many parts of a batch: those with the least to do, and some of them more than once
        if there are fewer than that."""
        ordered = sorted(self.workers, key=lambda worker: len(worker.jobs))
        return [ordered[number % len(ordered)] for number in range(count)]

    def receive(self, worker: Worker, *, wait: bool = True) -> Reply | WorkerError | None:
        """Return a worker's next reply; without ``wait`` None if it is not there now.

        A worker that is gone gives a WorkerError, after its replies; its ``jobs`` are those that it had not done. It
        takes no further requests.
        """
        try:
            message = worker.channel.receive(wait=wait)
        except EOFError:
            message = ""
        if message is None:
            return None
        if isinstance(message, str):
            self.workers.remove(worker)
            gone = _gone(worker, message)
            worker.close()
            return gone
        reply = Reply._make(message)
        # In the order of the requests.
        request = worker.jobs.popleft()
        seconds, stop = 0.0, 0.0
        for _, _, _, start, stop in reply.noted:
            seconds += stop - start
        if stop:
            worker.pace.note(request.stop - request.start, seconds / self._threads, stop)
        return reply

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.channel.close()
            if worker.process.poll() is None:
                worker.process.kill()
        for worker in self.workers:
            worker.close()


def _gone(worker: Worker, told: str) -> WorkerError:
    step = min((request.step for request in worker.jobs), default=-1)
    at = f" at step {step}" if step >= 0 else ""
    text = f"worker {worker.number} (process {worker.process.pid}) {worker.fate()}{at}"
    if told:
        text += f":\n{told.rstrip()}\n"
    return WorkerError(f"{text}. The iterator goes on from there after set_state(get_state())", step=step)


def _environment() -> dict[str, str]:
    """That of this process, with its import path: what it can import, transforms in a worker can."""
    path = [entry or os.getcwd() for entry in sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    # A worker is one of many on the machine; a pool of BLAS threads in each would cost memory and time at the start.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.setdefault(name, "1")
    for name, value in _MALLOC.items():
        environment.setdefault(name, value)
    return environment
