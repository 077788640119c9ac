"""A pool of processes for conversions, ``verify`` and ``doctor``, whose tasks may kill them.

A damaged file can take down the process that opens it. Such a death costs only the task at hand. The pools of the
standard library lose all tasks when a process dies, or wait for it without end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import TypeVar, cast

from stream.base.machine import describe_exit
from stream.base.progress import Progress

Result = TypeVar("Result")

_TICK = 0.5
_PR_SET_PDEATHSIG = 1
_PROGRAM = "import sys; from convert.pool import work; work(*map(int, sys.argv[1:3]))"


@dataclass(frozen=True)
class Crashed:
    """Result of a task whose process died, with the exit code of the process: negative for a signal."""

    exit_code: int

    def __str__(self) -> str:
        ending = describe_exit(self.exit_code)
        return f"the process that checked it {ending}; expected it to finish, so this may be damage"


class ProcessPool:
    """Up to ``jobs`` processes, started on demand, and terminated when the context or this process ends.

    With one job, tasks run in this process, and a crash ends the caller.
    """

    def __init__(self, jobs: int, *, name: str) -> None:
        """Start no process yet; ``name`` is shown by programs that list processes."""
        self._jobs = jobs
        self._name = name
        self._workers: dict[Connection, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._workers.values():
            process.terminate()
        for connection, process in self._workers.items():
            process.wait()
            connection.close()

    def results(self, tasks: Sequence[Callable[[], Result]]) -> Iterator[tuple[int, Result | Crashed]]:
        """Run tasks, which can be pickled and do not raise, in their order; yield the number and result of each."""
        waiting_tasks, idle_connections = list(enumerate(tasks))[::-1], list(self._workers)
        task_by_connection: dict[Connection, int] = {}
        while self._jobs == 1 and waiting_tasks:
            task_number, task = waiting_tasks.pop()
            yield task_number, task()
        while waiting_tasks or task_by_connection:
            while waiting_tasks and len(task_by_connection) < self._jobs:
                connection = idle_connections.pop() if idle_connections else self._start()
                task_by_connection[connection], task = waiting_tasks.pop()
                # If the process is dead, reading its answer reports it.
                with contextlib.suppress(ConnectionError):
                    connection.send(task)
            for ready_object in wait(list(task_by_connection), timeout=_TICK):
                connection = cast(Connection, ready_object)
                task_number = task_by_connection.pop(connection)
                result: Result | Crashed
                try:
                    result = connection.recv()
                    idle_connections.append(connection)
                except (EOFError, ConnectionError):
                    result = Crashed(self._workers.pop(connection).wait())
                    connection.close()
                yield task_number, result

    def run(
        self,
        tasks: Sequence[Callable[[], Result]],
        *,
        progress: Progress,
        task_sizes: Sequence[int],
        is_failure: Callable[[Result], bool] = lambda _: False,
    ) -> list[Result | Crashed]:
        """Run tasks as ``results`` does, and return their results in the order of the tasks.

        ``progress`` advances by the size of each task; a task whose process died counts as a failure too.
        """
        results: dict[int, Result | Crashed] = {}
        for task_number, result in self.results(tasks):
            results[task_number] = result
            progress.advance(task_sizes[task_number], failed=isinstance(result, Crashed) or is_failure(result))
        return [results[task_number] for task_number in range(len(tasks))]

    def _start(self) -> Connection:
        parent_end, child_end = Pipe()
        # Programs, as multiprocessing would start one more process, which outlives this one by a moment. A
        # separate process group keeps Ctrl-C from a worker.
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(child_end.fileno()), str(os.getpid()), self._name],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            pass_fds=[child_end.fileno()],
            process_group=0,
        )
        child_end.close()
        self._workers[parent_end] = process
        return parent_end


def work(descriptor: int, parent_pid: int) -> None:
    """Run tasks that come through a file descriptor, until the parent closes it."""
    end_with_parent(parent_pid)
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            connection.send(connection.recv()())


def end_with_parent(parent_pid: int) -> None:
    """Have the kernel end this process with its parent, however the parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the call.
    if os.getppid() != parent_pid:
        os._exit(1)
