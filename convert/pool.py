"""A pool of processes for conversions, ``verify`` and ``doctor``, whose tasks may kill them.

A damaged file can take down the process that opens it. Such a death costs only the task at hand. The pools of the
standard library lose all tasks when a process dies, or wait for it without end.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TypeVar, cast

from stream.base.progress import Progress

Result = TypeVar("Result")

_TICK = 0.5
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Crashed:
    """Result of a task whose process died, with the exit code of the process: negative for a signal."""

    exit_code: int

    def __str__(self) -> str:
        ending = f"signal {-self.exit_code}" if self.exit_code < 0 else f"exit code {self.exit_code}"
        cause = "out of memory, or damage that the manifest does not show"
        return f"the process that checked it was ended by {ending}, expected it to finish; {cause}"


class ProcessPool:
    """Up to ``jobs`` processes, started on demand, and terminated when the context or this process ends.

    With one job, tasks run in this process, and a crash ends the caller.
    """

    def __init__(self, jobs: int, *, name: str) -> None:
        """Start no process yet; ``name`` is that of the processes."""
        self._jobs = jobs
        self._name = name
        self._workers: dict[Connection, BaseProcess] = {}

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._workers.values():
            process.terminate()
        for connection, process in self._workers.items():
            process.join()
            connection.close()

    def results(self, tasks: Sequence[Callable[[], Result]]) -> Iterator[tuple[int, Result | Crashed]]:
        """Run tasks in their order, and yield the number and the result of each when it is done.

        Args:
            tasks: Functions that can be pickled and do not raise.
        """
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
                    result = self._bury(connection)
                yield task_number, result

    def run(
        self,
        tasks: Sequence[Callable[[], Result]],
        *,
        progress: Progress,
        task_sizes: Sequence[int],
        is_failure: Callable[[Result], bool] = lambda _: False,
    ) -> list[Result | Crashed]:
        """Run tasks and return their results in the order of the tasks.

        Args:
            tasks: Functions that can be pickled and do not raise.
            progress: Progress to advance.
            task_sizes: Work of each task.
            is_failure: Returns whether a result counts as a failure; a task whose process died does.
        """
        results: dict[int, Result | Crashed] = {}
        for task_number, result in self.results(tasks):
            results[task_number] = result
            progress.advance(task_sizes[task_number], failed=isinstance(result, Crashed) or is_failure(result))
        return [results[task_number] for task_number in range(len(tasks))]

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        parent_end, child_end = context.Pipe()
        process = context.Process(target=_work, args=(child_end, os.getpid()), name=self._name, daemon=True)
        # The resource tracker would unblock SIGINT if the process started it.
        resource_tracker.ensure_running()
        # Ctrl-C reaches the process group, and a starting process would print a traceback.
        blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
        child_end.close()
        self._workers[parent_end] = process
        return parent_end

    def _bury(self, connection: Connection) -> Crashed:
        process = self._workers.pop(connection)
        process.join()
        connection.close()
        return Crashed(process.exitcode or 0)


def _work(connection: Connection, parent_pid: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent_pid)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            connection.send(connection.recv()())


def end_with_parent(parent_pid: int) -> None:
    """Have the kernel end this process with its parent, however the parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the call.
    if os.getppid() != parent_pid:
        os._exit(1)
