"""Processes of the benchmarks: a fresh one for each measured point, and teams that work at the same moments.

A fresh process takes a line of JSON, gives a line, and ends when the benchmark ends.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from bench.measure.machine import busy_seconds
from bench.measure.session import REPOSITORY, end
from convert.pool import end_with_parent
from stream.base.errors import StreamError
from stream.base.machine import describe_exit

_barrier: threading.Barrier


class BenchFailed(StreamError):
    """A benchmark that cannot go on; the message is complete."""


class ChildFailed(BenchFailed):
    """A process that ended without a result; the message says how and quotes the last line of its output."""


def ask(
    module: str, request: Mapping[str, Any], *, python: str | Path = sys.executable, timeout: float | None = None
) -> dict[str, Any]:
    """Call ``answer(request)`` of a module of this repository in a fresh process and return its result.

    The result also has ``exit_s``: seconds from the result to the end of the process.
    """
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Files, because a pipe that is read at the end could fill up.
    with tempfile.TemporaryFile("w+") as reply_file, tempfile.TemporaryFile("w+", errors="replace") as log_file:
        process = subprocess.Popen(
            [str(python), "-m", "bench.measure.answer", module],
            stdin=subprocess.PIPE,
            stdout=reply_file,
            stderr=log_file,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            # Ctrl-C reaches only this process, which then ends the child and its workers in order.
            process_group=0,
        )
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                # Left open: closing it would end the child.
                process.stdin.write(json.dumps(dict(request)) + "\n")
                process.stdin.flush()
            process.wait(timeout)
            ended = time.monotonic()
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"took longer than {timeout:.0f} s") from None
        finally:
            end(process)
        result, last_line = {}, _last_line(log_file)
        with contextlib.suppress(ValueError):
            result = json.loads(_last_line(reply_file))
    answered = result.pop("answered", None)
    if process.returncode == 0 and answered is not None:
        return {**result, "exit_s": ended - answered}
    reason = result.get("error") or f"{describe_exit(process.returncode)}{last_line and f': {last_line}'}"
    raise ChildFailed(" ".join(str(reason).split()))


def _last_line(file: IO[str]) -> str:
    file.seek(0)
    return next((line for line in reversed(file.read().splitlines()) if line.strip()), "").strip()


@dataclass(frozen=True)
class Turn:
    """Work of all processes at once: pairs or other pieces of work, from the first start to the last end.

    ``cpu_seconds`` are of the processes, ``others_cpu_seconds`` of everything else on the machine. ``peak_bytes`` is
    the largest resident set of a process so far.
    """

    pairs: int
    seconds: float
    pairs_per_s: float
    cpu_seconds: float
    others_cpu_seconds: float
    peak_bytes: int


class Team(ProcessPoolExecutor):
    """Processes that start each piece of work at the same moment; use them in a ``with`` statement."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        super().__init__(size, context, _join, (context.Barrier(size),))

    def run(self, work: Callable[[Any], int], parts: Iterable[Any]) -> Turn:
        """Call ``work(part)`` in each process, which returns a count; there are as many parts as processes."""
        try:
            columns = zip(*self.map(partial(_work, work), parts), strict=True)
            counts, starts, ends, machine_cpu, cpu_seconds, peaks = map(list, columns)
        except BrokenProcessPool:
            raise BenchFailed("a process that works alone died; is there enough memory?") from None
        rate = sum(count / max(end - start, 1e-9) for count, start, end in zip(counts, starts, ends, strict=True))
        others_cpu = max(last for _, last in machine_cpu) - min(first for first, _ in machine_cpu) - sum(cpu_seconds)
        return Turn(sum(counts), max(ends) - min(starts), rate, sum(cpu_seconds), max(0.0, others_cpu), max(peaks))


def _join(barrier: threading.Barrier) -> None:
    global _barrier
    _barrier = barrier
    # The processes of a pool do not notice that their parent was killed.
    end_with_parent(os.getppid())


def _work(work: Callable[[Any], int], share: Any) -> tuple[Any, ...]:
    # All have to be here, so that no process takes two parts.
    _barrier.wait()
    began, machine_cpu, cpu_seconds = time.monotonic(), busy_seconds(), time.process_time()
    count = work(share)
    times = (began, time.monotonic(), (machine_cpu, busy_seconds()), time.process_time() - cpu_seconds)
    return count, *times, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
