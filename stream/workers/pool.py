"""Worker processes: started as ``python -m stream.worker``, so that no main guard is needed and a notebook works."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections import deque
from multiprocessing.connection import wait
from multiprocessing.reduction import send_handle

import cloudpickle

from stream.storage.errors import WorkerError
from stream.workers.job import Reply, Request, Setup
from stream.workers.ring import Slot

# By default glibc gives free memory back to the kernel, and takes it page by page again.
_MALLOC = {
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(16 << 20),
    "MALLOC_TOP_PAD_": str(4 << 20),
}


class Worker:
    """One process and the connection to it."""

    def __init__(self, number: int, setup_fd: int) -> None:
        self.number = number
        self.jobs: deque[Request] = deque()
        self._known: set[int] = set()
        self.connection, theirs = multiprocessing.Pipe()
        with theirs:
            fds = (setup_fd, theirs.fileno())
            self.process = subprocess.Popen(
                # -P: what lies in the current folder is none of its modules, unless it is one of this process's.
                [sys.executable, "-P", "-m", "stream.worker", *map(str, fds)],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                env=_environment(),
                # Ctrl-C at a terminal goes to all of its process group; workers end when the trainer lets go of them.
                process_group=0,
            )

    def send(self, job: int, step: int, slot: Slot) -> None:
        """Send a request, and its slot if this worker does not know it yet. A worker that is gone is found by
        ``receive``."""
        request = Request(job, step, slot.fd, slot.size, slot.fd not in self._known)
        self.jobs.append(request)
        try:
            self.connection.send(tuple(request))
            if request.is_new:
                self._known.add(slot.fd)
                send_handle(self.connection, slot.fd, self.process.pid)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def close(self) -> None:
        """Let go of the process and end it; it has nothing that could be lost."""
        self.connection.close()
        self.process.kill()
        self.process.wait()

    def fate(self) -> str:
        """Return how the process ended."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = " (as the kernel does when memory runs out)" if -code == signal.SIGKILL else ""
        return f"was killed by {name}{hint}"


class WorkerPool:
    """Workers that make batches.

    Args:
        setup: What they are told.
        count: Number of processes, at least 1.

    Raises:
        WorkerError: They cannot be started.
    """

    def __init__(self, setup: Setup, count: int) -> None:
        self.workers: list[Worker] = []
        setup_fd = os.memfd_create("stream-setup", os.MFD_CLOEXEC)
        try:
            with open(setup_fd, "wb", closefd=False) as file:
                file.write(cloudpickle.dumps(setup))
            for number in range(count):
                self.workers.append(Worker(number, setup_fd))
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError):
                raise
            raise WorkerError(
                f"worker {len(self.workers)} of {count} cannot be started ({error.strerror}); take a smaller "
                "num_workers"
            ) from None
        finally:
            os.close(setup_fd)

    def ready(self) -> list[Worker]:
        """Return the workers whose next reply, or end, can be received without waiting."""
        there = wait([worker.connection for worker in self.workers], timeout=0)
        return [worker for worker in self.workers if worker.connection in there]

    def receive(self, worker: Worker) -> Reply | WorkerError:
        """Wait for a worker's next reply.

        A worker that is gone gives a WorkerError, after its replies; its ``jobs`` are those that it had not done. It
        takes no further requests.
        """
        try:
            message = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            message = ""
        if isinstance(message, str):
            self.workers.remove(worker)
            gone = _gone(worker, message)
            worker.close()
            return gone
        worker.jobs.popleft()
        return Reply._make(message)

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
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
    """Return that of this process, with its import path: what it can import, transforms in a worker can."""
    path = [entry or os.getcwd() for entry in sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    # A worker is one of many on the machine; a pool of BLAS threads in each would cost memory and time at the start.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.setdefault(name, "1")
    for name, value in _MALLOC.items():
        environment.setdefault(name, value)
    return environment
