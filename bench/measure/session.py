"""Commands as a user starts them: real processes in separate sessions, all ended with their block."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
_GRACE = 10.0

TIMEOUT = 240.0
"""Seconds after which a command counts as hanging."""


@dataclass(frozen=True)
class Result:
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """Lines that begin with ``error:``."""
        return [line for line in self.err.splitlines() if line.startswith("error:")]

    def error(self) -> str:
        """Return the one error line; asserts that there is one, and no traceback."""
        assert "Traceback" not in self.err, self.err
        assert len(self.errors) == 1, self.err
        return self.errors[0]


class Command:
    """A running command in a separate session, whose number ``pid`` is that of its main process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.pid = process, process.pid

    def processes(self) -> list[psutil.Process]:
        """Return all live processes that the command started, directly or not, without itself."""
        processes = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if process.pid != self.pid and os.getsid(process.pid) == self.pid and is_alive(process):
                    processes.append(process)
        return processes

    def signal(self, number: int) -> None:
        """Send a signal to the main process only."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the main process only, and wait for its end."""
        self.process.kill()
        self.process.wait(TIMEOUT)

    def end(self) -> None:
        """End the main process, with time to end its own processes."""
        end(self.process)

    def wait(self, timeout: float | None = TIMEOUT) -> Result:
        """Wait for the end and return the result; raises subprocess.TimeoutExpired."""
        out, err = self.process.communicate(timeout=timeout)
        return Result(self.process.returncode, out, err)


@contextlib.contextmanager
def start(
    *arguments: str,
    module: str = "convert.run",
    cwd: Path = REPOSITORY,
    environment: Mapping[str, str | None] | None = None,
    through: Sequence[str] = (),
) -> Iterator[Command]:
    """Start ``python -m module``, or ``pairstream`` and a command; at the end of the block its processes are killed.

    ``environment`` has variables to set, or to leave out (None). ``through`` is a command that takes the complete
    command as arguments and becomes it (``prlimit --nofile=64``).
    """
    variables = {**os.environ, **(environment or {})}
    process = subprocess.Popen(
        [*through, sys.executable, "-m", *module.split(), *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        env={variable: value for variable, value in variables.items() if value is not None},
    )
    command = Command(process)
    try:
        yield command
    finally:
        left = command.processes()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for process_left in left:
            with contextlib.suppress(psutil.Error):
                process_left.kill()
        with process:
            process.kill()


def run(*arguments: str, **options: Any) -> Result:
    """Run a command to its end and return the result; arguments as of ``start``."""
    with start(*arguments, **options) as command:
        return command.wait()


def end(process: subprocess.Popen[Any]) -> None:
    """End a process if it still runs, with time to end its own processes, and close its input."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], *, seconds: float, poll: float = 0.01) -> bool:
    """Wait for a condition and return whether it came true in time."""
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(poll)
    return met or condition()
