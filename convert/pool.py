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
        return (
            f"the process that checked it was ended by {self.reason}, expected it to finish; out of memory, or damage "
            "that the manifest does not show"
        )


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
        for pipe, process in self._workers.items():
            process.join()
            pipe.close()

    def run(
        self,
        tasks: Sequence[Callable[[], Result]],
        *,
        shown: Progress,
        sizes: Sequence[int],
        fails: Callable[[Result], bool] = lambda _: False,
    ) -> list[Result | Crashed]:
        """Run tasks and return their results in the order of the tasks.

        Args:
            tasks: Functions that can be pickled and do not raise.
            shown: Progress to tell.
            sizes: Work of each task.
            fails: Returns whether a result counts as a failure; a task whose process died does.
        """
        results: dict[int, Result | Crashed] = {}
        waiting, idle = list(enumerate(tasks))[::-1], list(self._workers)
        busy: dict[Connection, int] = {}
        while self._jobs == 1 and waiting:
            number, task = waiting.pop()
            found = results[number] = task()
            shown.advance(sizes[number], failed=fails(found))
        while waiting or busy:
            while waiting and len(busy) < self._jobs:
                pipe = idle.pop() if idle else self._start()
                busy[pipe], task = waiting.pop()
                # If the process is dead, reading its answer reports it.
                with contextlib.suppress(ConnectionError):
                    pipe.send(task)
            for ready in wait(list(busy), timeout=_TICK):
                pipe = cast(Connection, ready)
                number = busy.pop(pipe)
                try:
                    results[number] = pipe.recv()
                    idle.append(pipe)
                except (EOFError, ConnectionError):
                    results[number] = self._bury(pipe)
                result = results[number]
                shown.advance(sizes[number], failed=isinstance(result, Crashed) or fails(result))
        return [results[number] for number in range(len(tasks))]

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs,), name="verify", daemon=True)
        # The resource tracker would unblock SIGINT if the process started it.
        resource_tracker.ensure_running()
        # Ctrl-C reaches the whole group, and a starting process would print a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._workers[ours] = process
        return ours

    def _bury(self, pipe: Connection) -> Crashed:
        process = self._workers.pop(pipe)
        process.join()
        pipe.close()
        code = process.exitcode or 0
        return Crashed(f"signal {-code}" if code < 0 else f"exit code {code}")


def _work(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            pipe.send(pipe.recv()())
