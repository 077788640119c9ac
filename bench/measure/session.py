"""A command as a user starts it: real processes in a session of their own, none of which outlives its block."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]

TIMEOUT = 240.0
"""Seconds after which a command counts as hanging; one takes 4 to 12 on an idle machine."""


@dataclass(frozen=True)
class Result:
    """What a command left: exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """The lines that begin with ``error:``."""
        return [line for line in self.err.splitlines() if line.startswith("error:")]

    def error(self) -> str:
        """The one error line; there must be exactly one, and no traceback."""
        assert "Traceback" not in self.err, self.err
        assert len(self.errors) == 1, self.err
        return self.errors[0]


class Command:
    """A running command in a session of its own, so that all of its processes can be found and ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        """Of the main process; also of its session."""
        return self.process.pid

    def processes(self) -> list[psutil.Process]:
        """All live processes that the command started, directly or not, without itself; it may have ended."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if process.pid != self.pid and os.getsid(process.pid) == self.pid and is_alive(process):
                    found.append(process)
        return found

    def signal(self, number: int) -> None:
        """Send a signal to the main process only."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """``kill -9`` the main process only, and take note of its end."""
        self.process.kill()
        self.process.wait(TIMEOUT)

    def wait(self, timeout: float = TIMEOUT) -> Result:
        """Wait for its end; raises subprocess.TimeoutExpired."""
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
    """Start a command; at the end of the block it and whatever it started are killed.

    Args:
        arguments: of ``python -m module``.
        module: to run.
        cwd: the working directory.
        environment: variables to set besides those of this process, or (None) to leave out.
        through: a command that is given the whole command as its arguments, and becomes it (``prlimit --nofile=64``).
    """
    variables = {**os.environ, **(environment or {})}
    process = subprocess.Popen(
        [*through, sys.executable, "-m", module, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        env={name: value for name, value in variables.items() if value is not None},
    )
    command = Command(process)
    try:
        yield command
    finally:
        left = command.processes()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for other in left:
            with contextlib.suppress(psutil.Error):
                other.kill()
        with process:
            process.kill()


def run(
    *arguments: str,
    module: str = "convert.run",
    cwd: Path = REPOSITORY,
    environment: Mapping[str, str | None] | None = None,
) -> Result:
    """Run a command to its end; see ``start``."""
    with start(*arguments, module=module, cwd=cwd, environment=environment) as command:
        return command.wait()


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs: a zombie that nobody has waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], *, seconds: float, poll: float = 0.01) -> bool:
    """Wait for a condition; returns whether it came true in time."""
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(poll)
    return met or condition()


def tree(root: Path) -> dict[str, str]:
    """All that is below a folder: SHA-256 by name of file, and an entry for every folder."""
    return {
        str(path.relative_to(root)): "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
    }
