"""Processes that check one thing at a time, and of which any may die.

What they open may be damaged in any way. A process that a library takes down with it costs only the task that it was
at, and it is known which that was; the pools of the standard library lose all tasks, or wait for the lost one for ever.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

_TICK = 0.5


@dataclass(frozen=True)
class Crashed:
    """The result of a task whose process died. reason: how, for messages."""

    reason: str


@dataclass
class _Worker(Generic[Task]):
    process: BaseProcess
    pipe: Connection
    at: int | None = None


class WorkerPool:
    """Up to ``jobs`` processes, started when there is work; leave it as a context manager and they are gone.

    With one job everything is done in this process, and whatever takes that down takes down the caller.
    """

    def __init__(self, jobs: int) -> None:
        """Start nothing yet."""
        self._jobs = jobs
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker[Any]] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()
        self._workers.clear()

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], *, tick: Callable[[], None]
    ) -> Iterator[tuple[int, Result | Crashed]]:
        """Yield (task number, result) as they are done.

        Args:
            function: at the top level of a module. It must not raise.
            tasks: one argument each.
            tick: called at least twice a second, to show progress.
        """
        if self._jobs == 1:
            for index, task in enumerate(tasks):
                yield index, function(task)
                tick()
            return
        waiting = iter(enumerate(tasks))
        while len(self._workers) < min(self._jobs, len(tasks)):
            self._workers.append(self._start())
        for worker in self._workers:
            _give(worker, function, next(waiting, None))
        while busy := {worker.pipe: worker for worker in self._workers if worker.at is not None}:
            ready = set(wait(list(busy), timeout=_TICK))
            for worker in [worker for pipe, worker in busy.items() if pipe in ready]:
                number = worker.at
                assert number is not None
                result: Result | Crashed
                try:
                    result = worker.pipe.recv()
                except (EOFError, ConnectionError):
                    result = self._replace(worker)
                _give(worker, function, next(waiting, None))
                yield number, result
            tick()

    def _start(self) -> _Worker[Any]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs,), name="verify", daemon=True)
        # Started by the first of them, it would unblock what is blocked here.
        resource_tracker.ensure_running()
        # Ctrl-C reaches the whole group: one that is still starting would print a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return _Worker(process=process, pipe=ours)

    def _replace(self, worker: _Worker[Any]) -> Crashed:
        worker.process.join()
        code = worker.process.exitcode or 0
        worker.pipe.close()
        fresh = self._start()
        worker.process, worker.pipe, worker.at = fresh.process, fresh.pipe, None
        return Crashed(f"signal {-code}" if code < 0 else f"exit code {code}")


def _give(worker: _Worker[Task], function: Callable[[Task], Any], item: tuple[int, Task] | None) -> None:
    worker.at = None
    if item is not None:
        worker.at = item[0]
        # A process that died meanwhile is found out when its answer is read.
        with contextlib.suppress(ConnectionError):
            worker.pipe.send((function, item[1]))


def _work(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            function, task = pipe.recv()
            pipe.send(function(task))
        except (EOFError, ConnectionError):
            return
