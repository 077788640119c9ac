"""Worker processes, started as ``python -m stream.worker``: scripts need no main guard, and notebooks work."""

from __future__ import annotations

import multiprocessing
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from multiprocessing.reduction import send_handle

import cloudpickle

from stream.base.errors import WorkerError
from stream.base.machine import anonymous_file
from stream.batch.maker import Setup
from stream.workers.protocol import Reply, Request
from stream.workers.ring import Slot

_ENVIRONMENT = {
    # Many workers share the machine; threads of BLAS and OpenCV in each would cost memory and time at the start.
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"), "1"),
    # By default glibc returns free memory to the kernel, and takes it page by page again.
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(16 << 20),
    "MALLOC_TOP_PAD_": str(4 << 20),
}
"""Variables of a worker, unless the trainer sets them."""


@dataclass(eq=False)
class Job:
    """A batch of ``rows`` rows that a worker makes in a slot; ``reply`` is None while the worker has the job."""

    step: int
    rows: int
    slot: Slot
    reply: Reply | WorkerError | None = None


class Worker:
    """One worker process, the connection to it, and the jobs that it has not done, oldest first."""

    def __init__(self, number: int, setup_fd: int) -> None:
        self.number = number
        self.jobs: deque[Job] = deque()
        self._known: set[int] = set()
        self.connection, worker_end = multiprocessing.Pipe()
        with worker_end:
            descriptors = (setup_fd, worker_end.fileno())
            self.process = subprocess.Popen(
                # -P: a worker must not import modules of the current folder that the trainer would not import.
                [sys.executable, "-P", "-m", "stream.worker", *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                env=_environment(),
                # Ctrl-C reaches the whole process group of a terminal; workers end with the trainer's connection.
                process_group=0,
            )

    @property
    def name(self) -> str:
        """Number and process, for messages."""
        return f"worker {self.number} (process {self.process.pid})"

    def send(self, job: Job) -> None:
        """Send a job, and its slot if it is new to this worker; ``WorkerPool.receive`` finds a lost worker."""
        slot = job.slot
        is_new = slot.fd not in self._known
        self.jobs.append(job)
        try:
            self.connection.send(Request(job.step, job.rows, slot.fd, slot.size, is_new))
            if is_new:
                self._known.add(slot.fd)
                send_handle(self.connection, slot.fd, self.process.pid)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def close(self) -> None:
        """End the process; it has nothing to lose."""
        self.connection.close()
        self.process.kill()
        self.process.wait()

    def fate(self) -> str:
        """Return how the process ended."""
        try:
            exit_code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if exit_code >= 0:
            return f"ended with exit code {exit_code}"
        signal_name = signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else f"signal {-exit_code}"
        hint = " (as the kernel does when memory runs out)" if -exit_code == signal.SIGKILL else ""
        return f"was killed by {signal_name}{hint}"


class WorkerPool:
    """Workers that make batches; raise WorkerError if one cannot be started.

    ``workers`` are those that run, and ``lost`` is the error of the first one that was lost, if any.
    """

    def __init__(self, setup: Setup, num_workers: int) -> None:
        self.workers: list[Worker] = []
        self.lost: WorkerError | None = None
        # Kept, as registering hundreds of connections again for each batch would cost the trainer most of its time.
        self._selector = selectors.DefaultSelector()
        setup_fd = anonymous_file("stream-setup")
        try:
            with open(setup_fd, "wb", closefd=False) as setup_file:
                setup_file.write(cloudpickle.dumps(setup))
            for worker_number in range(num_workers):
                worker = Worker(worker_number, setup_fd)
                self.workers.append(worker)
                self._selector.register(worker.connection, selectors.EVENT_READ, worker)
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError):
                raise
            worker_name = f"worker {len(self.workers)} of {num_workers}"
            message = f"{worker_name} cannot be started ({error.strerror}); take a smaller num_workers"
            raise WorkerError(message) from None
        finally:
            os.close(setup_fd)

    def ready(self) -> list[Worker]:
        """Return the workers whose next reply, or end, can be received without waiting."""
        return [selected.data for selected, _ in self._selector.select(0)]

    def receive(self, worker: Worker) -> list[Job]:
        """Wait for a worker, and return the job that it has done.

        If the worker is lost, return all jobs that it had, each with a WorkerError. The pool drops the worker.
        """
        try:
            message = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            message = ""
        if not isinstance(message, str):
            job = worker.jobs.popleft()
            job.reply = message
            return [job]
        self.workers.remove(worker)
        self._selector.unregister(worker.connection)
        error = _loss(worker, message)
        worker.close()
        self.lost = self.lost or error
        for job in worker.jobs:
            job.reply = WorkerError(str(error), step=job.step)
        return list(worker.jobs)

    def close(self) -> None:
        """End all workers."""
        self._selector.close()
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.close()


def _loss(worker: Worker, reason: str) -> WorkerError:
    step = min((job.step for job in worker.jobs), default=-1)
    message = f"{worker.name} {worker.fate()}" + (f" at step {step}" if step >= 0 else "")
    message += f":\n{reason.rstrip()}\n" if reason else ""
    return WorkerError(f"{message}. The iterator continues from there after set_state(get_state())", step=step)


def _environment() -> dict[str, str]:
    """Return the environment of a worker, which imports from the same places as this process."""
    import_path = [entry or os.getcwd() for entry in sys.path]
    return {**_ENVIRONMENT, **os.environ, "PYTHONPATH": os.pathsep.join(import_path)}
