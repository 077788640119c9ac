"""A pool of processes for ``verify`` and ``doctor``, whose tasks may kill them.

A damaged file can take down the process that opens it. Such a death costs only the task at hand. The pools of the
standard library lose all tasks when a process dies, or wait for it without end.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TypeVar, cast

from stream.base.progress import Progress

Result = TypeVar("Result")

_TICK = 0.5


@dataclass(frozen=True)
class Crashed:
    """Result of a task whose process died; ``reason`` names the signal or the exit code."""

    reason: str

    def __str__(self) -> str:
        cause = "out of memory, or damage that the manifest does not show"
        return f"the process that checked it was ended by {self.reason}, expected it to finish; {cause}"


class ProcessPool:
    """Up to ``jobs`` processes, started on demand and terminated when the context ends.

    With one job, tasks run in this process, and a crash ends the caller.
    """

    def __init__(self, jobs: int) -> None:
        """Start no process yet."""
        self._jobs = jobs
        self._workers: dict[Connection, BaseProcess] = {}

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._workers.values():
            process.terminate()
        for connection, process in self._workers.items():
            process.join()
            connection.close()

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
        waiting_tasks, idle_connections = list(enumerate(tasks))[::-1], list(self._workers)
        task_by_connection: dict[Connection, int] = {}
        while self._jobs == 1 and waiting_tasks:
            task_number, task = waiting_tasks.pop()
            outcome = results[task_number] = task()
            progress.advance(task_sizes[task_number], failed=is_failure(outcome))
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
                try:
                    results[task_number] = connection.recv()
                    idle_connections.append(connection)
                except (EOFError, ConnectionError):
                    results[task_number] = self._bury(connection)
                result = results[task_number]
                progress.advance(task_sizes[task_number], failed=isinstance(result, Crashed) or is_failure(result))
        return [results[task_number] for task_number in range(len(tasks))]

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        parent_end, child_end = context.Pipe()
        process = context.Process(target=_work, args=(child_end,), name="verify", daemon=True)
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
        exit_code = process.exitcode or 0
        return Crashed(f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}")


def _work(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            connection.send(connection.recv()())
