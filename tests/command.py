"""The command ``python -m convert.run`` as a user starts it: real processes, none of which outlives its test."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from convert.tfrecord import encode_tfrecord
from tests.rlds_dataset import RldsDataset, demo_episode, demo_features, serialise, write_dataset

REPOSITORY = Path(__file__).resolve().parent.parent

TIMEOUT = 240.0
"""Seconds after which a command counts as hanging; one takes 4 to 12 on an idle machine."""


@dataclass(frozen=True)
class Result:
    """What a command left: exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    def error(self) -> str:
        """The one error line; there must be exactly one, and no traceback."""
        assert "Traceback" not in self.err, self.err
        errors = [line for line in self.err.splitlines() if line.startswith("error:")]
        assert len(errors) == 1, self.err
        return errors[0]


class Command:
    """A running command in a session of its own, so that all of its processes can be found and ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @property
    def pid(self) -> int:
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

    def wait(self) -> Result:
        out, err = self.process.communicate(timeout=TIMEOUT)
        return Result(self.process.returncode, out, err)


@contextlib.contextmanager
def start(
    *arguments: str,
    module: str = "convert.run",
    cwd: Path = REPOSITORY,
    environment: Mapping[str, str | None] | None = None,
) -> Iterator[Command]:
    """Start a command; at the end of the block it and whatever it started are killed.

    ``environment``: variables to set beside those of this process, or (None) to leave out.
    """
    changed = {**os.environ, **(environment or {})}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env={name: value for name, value in changed.items() if value is not None},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
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


def flip(path: Path, position: int) -> None:
    """Flip all bits of one byte of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def with_corrupt_frame(record: bytes, number: int) -> bytes:
    """A record whose JPEG of that number (a step, where there is one camera) ends soon after its header."""
    start = -1
    for _ in range(number + 1):
        start = record.index(b"\xff\xd8\xff", start + 1)
    pixels = record.index(b"\xff\xda", start) + 20
    return record[:pixels] + b"\xff\xd9" + record[pixels + 2 :]


def write_damaged_dataset(root: Path) -> RldsDataset:
    """Nine shards in two splits with all that can be wrong with episodes: short, empty, malformed, unreadable ones,
    a corrupt frame, a truncated file, and one that goes on after its declared records."""

    def shards(count: int, seed: int) -> list[list[Any]]:
        lengths = (6, 2, 0, 9)
        return [[demo_episode(n, seed=seed + 4 * i + j) for j, n in enumerate(lengths)] for i in range(count)]

    splits = {"train": shards(6, 0), "val": shards(3, 100)}
    splits["train"][1][3] = with_corrupt_frame(serialise(demo_features(), demo_episode(9, seed=50)), 4)
    splits["val"][0][1] = b"not an example"
    dataset = write_dataset(root, splits=splits)
    flip(dataset.shard("train", 2, count=6), 300)
    truncated = dataset.shard("train", 4, count=6)
    truncated.write_bytes(truncated.read_bytes()[:-50])
    with dataset.shard("val", 2, count=3).open("ab") as file:
        file.write(encode_tfrecord(serialise(demo_features(), demo_episode(3, seed=60))))
    return dataset
