"""Surroundings of faults: a small source, an undisturbed conversion of it, and the checks after a fault."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from bench.measure.child import BenchFailed, ChildFailed
from stream.format.frame import Codec
from stream.format.video import VIDEO_CODECS
from tests.faults.shared_memory import own_shared_memory
from tests.fixtures.command import Command, Result, is_alive, run, start, tree, wait_until, written
from tests.fixtures.faults.gate import STATUSES, Gates

LIMIT_S = 180.0
"""Seconds after which a command counts as hanging."""
GONE_S = 60.0
"""Seconds in which all processes of a command must end once its main process has ended."""
_ENOUGH_PROBLEMS = 3
_NUMBERED = re.compile(r"(process|worker) \d+")


class Broken(BenchFailed):
    """A condition that must hold after a fault does not hold."""


class NotPossible(Exception):
    """The fault cannot be caused on this machine; the message says why."""


class Program(Protocol):
    """A program that faults happen to: a conversion or a training run.

    ``kills`` may happen in one trial before it must end. ``handles``, ``address_space`` and ``memory`` are limits to
    try in turn, in MB. ``worker`` is a word in the command line of its workers, ``worker_lost`` words of the error
    after one was killed, None if the program may end well.
    """

    where: str
    kills: int = 1
    handles: tuple[int, ...]
    address_space: tuple[tuple[int, int], ...]
    memory: tuple[int, int]
    worker: str = ""
    worker_lost: str | None = None

    def running(self, trial: Trial, *, through: Sequence[str] = ()) -> AbstractContextManager[Command]:
        """Start the program, or start it again: it resumes its work."""

    def wait(self, trial: Trial, command: Command) -> None:
        """Wait until a random moment of its work."""

    def workers(self, command: Command) -> list[psutil.Process]:
        workers = []
        for process in command.processes():
            with contextlib.suppress(psutil.Error):
                if self.worker in " ".join(process.cmdline()):
                    workers.append(process)
        return sorted(workers, key=lambda process: process.pid)

    def check(self, trial: Trial, result: Result) -> None:
        trial.check_done(result)
        trial.check_clean()

    def finish(self, trial: Trial) -> None:
        """Run the program again without a fault, and check that it ends as if nothing had happened."""


@dataclass
class Fault:
    """A fault in one way of running, and its result.

    ``run`` is one attempt, described by ``what``, which raises Broken. ``told`` are error lines that a user saw,
    ``problems`` conditions that did not hold, ``skipped`` the reason for not trying.
    """

    name: str
    program: Program
    run: Callable[[Trial, Fault], None]
    count: int
    what: str = ""
    tried: int = 0
    survived: int = 0
    told: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    skipped: str | None = None
    seconds: float = 0.0

    def try_all(self, sandbox: Sandbox, chance: random.Random) -> None:
        """Make all attempts, each in a new trial; three problems end the fault."""
        began = time.monotonic()
        try:
            while self.tried < self.count and len(self.problems) < _ENOUGH_PROBLEMS:
                with self.attempt(), sandbox.trial(chance) as trial:
                    self.run(trial, self)
        except NotPossible as reason:
            self.tried -= 1
            self.skipped = str(reason)
        except (OSError, ChildFailed) as error:
            self.problems.append(f"{type(error).__name__}: {error}")
        self.seconds = time.monotonic() - began

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        self.what = f"attempt {self.tried}"
        self.tried += 1
        try:
            yield
        except Broken as broken:
            self.problems.append(f"{self.what}: {broken}")
        except subprocess.TimeoutExpired as late:
            self.problems.append(f"{self.what}: hangs, no end after {late.timeout:.0f} s")
        else:
            self.survived += 1

    def note(self, trial: Trial, result: Result) -> str:
        """Check that a run was refused; keep its error line, without the parts that differ from run to run."""
        line = trial.check_refused(result)
        message = line.split(" The iterator")[0].replace(str(trial.out), "ROOT").replace(str(trial.folder), "DIR")
        self.told[_NUMBERED.sub(r"\1 N", message)] += 1
        return line

    def check_refused_or_done(self, trial: Trial, result: Result) -> None:
        """Check a run that may succeed, end with one error line, or be killed by the kernel."""
        if result.code == 0:
            self.program.check(trial, result)
        elif result.code == -signal.SIGKILL:
            self.told["(killed by the kernel)"] += 1
        else:
            self.note(trial, result)
            trial.check_clean()

    def as_dict(self) -> dict[str, Any]:
        names = ("tried", "survived", "problems", "skipped")
        return {
            "fault": self.name,
            "where": self.program.where,
            **{name: getattr(self, name) for name in names},
            "told": dict(self.told.most_common()),
            "seconds": round(self.seconds, 1),
        }


class Sandbox:
    """The source, and an undisturbed conversion of it."""

    def __init__(self, folder: Path, *, datasets: str, shards: int, size: int, codec: Codec = "jpeg") -> None:
        self.folder = folder
        self.source, self.root = folder / "source", folder / "reference"
        self.datasets, self.shards, self.size, self.codec = datasets, shards, size, codec
        self.reference: dict[str, str] = {}
        self.seconds = 0.0

    def make(self, *, episodes: int, steps: int) -> None:
        """Make the sample, and convert it without disturbance."""
        numbers = ["--episodes", str(episodes), "--steps", str(steps), "--shards", str(self.shards), "--jobs", "2"]
        commands = {
            "pairstream": ["sample", "--datasets", self.datasets, "--output", str(self.source), *numbers],
            "convert.run": [*self.arguments(self.root), "--num-workers=1"],
        }
        for module, arguments in commands.items():
            began = time.monotonic()
            done = run(*arguments, module=module)
            if done.code:
                raise Broken(f"python -m {module} failed: {done.err.strip()[-300:]}")
            self.seconds = time.monotonic() - began
        self.reference = tree(self.root)

    def arguments(self, output: Path, *, source: Path | None = None, size: int | None = None) -> list[str]:
        folders = ["--source", str(source or self.source), "--output", str(output)]
        frames = ["--codec", self.codec, *(["--layout", "frames"] if self.codec in VIDEO_CODECS else [])]
        return ["--datasets", self.datasets, *folders, "--image-size", str(size or self.size), *frames]

    @property
    def total_shards(self) -> int:
        return sum(name.endswith(".arrayrecord") for name in self.reference)

    @property
    def total_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())

    @contextlib.contextmanager
    def trial(self, chance: random.Random | None = None) -> Iterator[Trial]:
        with tempfile.TemporaryDirectory(prefix="trial-", dir=self.folder, ignore_cleanup_errors=True) as folder:
            yield Trial(self, Path(folder), chance or random.Random(0))


class Trial:
    """An output, its own TMPDIR, in which nothing may be left, and the chance that rules the attempt.

    A program may wait at ``gates``, so that it has not ended before a fault happens; they open when its end is awaited.
    """

    def __init__(self, sandbox: Sandbox, folder: Path, chance: random.Random) -> None:
        self.sandbox, self.folder, self.chance = sandbox, folder, chance
        self.name = f"{sandbox.folder.name}-{folder.name}"
        self.out, self.tmp, self._shared_memory = folder / "out", folder / "tmp", folder / "shm"
        self.gates = Gates(folder)
        self.tmp.mkdir(parents=True)

    @contextlib.contextmanager
    def starting(self, module: str, *arguments: str, through: Sequence[str] = ()) -> Iterator[Command]:
        """Start a command with this trial's TMPDIR and /dev/shm."""
        quiet = {"TMPDIR": str(self.tmp), "TF_CPP_MIN_LOG_LEVEL": "3", **self.gates.variables}
        through = [*own_shared_memory(self._shared_memory), *through]
        with start(*arguments, module=module, environment=quiet, through=through) as command:
            yield command

    def run(self, program: Program, *, through: Sequence[str] = ()) -> Result:
        """Run a program to its end, and check that none of its processes is left."""
        with program.running(self, through=through) as command:
            return self.end(command)

    def end(self, command: Command) -> Result:
        self.gates.open()
        result = command.wait(LIMIT_S)
        self.check_gone(command)
        return result

    def kill(self, command: Command) -> None:
        command.kill()
        self.check_gone(command)

    def finished(self) -> int:
        """Return the number of finished shards, in complete and incomplete datasets."""
        complete = [path.parent for path in written(self.out, "dataset.json")]
        shards = sum(len(written(folder, "*.arrayrecord")) for folder in complete)
        return len(written(self.out, STATUSES)) + shards

    def is_complete(self) -> bool:
        return self.finished() == self.sandbox.total_shards and not list(self.out.glob("*/*/.convert"))

    def wait_for(self, shards: float, command: Command) -> None:
        """Wait until a number of shards is finished, or the command has ended."""
        self.wait_until(lambda: self.finished() >= shards, command, condition=f"{shards:.0f} shards are finished")

    def wait_until(self, reached: Callable[[], bool], command: Command, *, condition: str) -> None:
        if not wait_until(lambda: reached() or command.process.poll() is not None, seconds=LIMIT_S):
            raise Broken(f"hangs: after {LIMIT_S:.0f} s it does not hold that {condition}")

    def check_gone(self, command: Command) -> None:
        """Check that no process of a command is left, in whichever session."""
        has_ended = wait_until(lambda: not self._processes(command), seconds=GONE_S, poll=0.1)
        if not has_ended and (left := self._processes(command)):
            raise Broken(f"processes left: {', '.join(left)}")

    def check_clean(self) -> None:
        """Check that no temporary file and no shared memory is left."""
        if not wait_until(lambda: not self._left(), seconds=GONE_S, poll=0.2) and (left := self._left()):
            raise Broken(f"left behind: {', '.join(left[:5])}")

    def check_same(self, expected: Mapping[str, str] | None = None) -> None:
        """Check that the output is the undisturbed conversion (or another tree), file by file, and nothing else."""
        files, expected = tree(self.out), self.sandbox.reference if expected is None else expected
        differ = sorted(name for name in {*files, *expected} if files.get(name) != expected.get(name))
        if differ:
            kinds = ["missing" if name not in files else "other" if name in expected else "new" for name in differ[:5]]
            names = ", ".join(f"{name} ({kind})" for name, kind in zip(differ, kinds, strict=False))
            raise Broken(f"{len(differ)} files are not those of an undisturbed conversion: {names}")

    def check_refused(self, result: Result) -> str:
        """Check that a command ended with an exit code and one clear error line; return the line."""
        if result.code == 0:
            raise Broken("ended with exit code 0, as if nothing had been wrong")
        if "Traceback" in result.err or len(result.errors) != 1:
            raise Broken(f"exit code {result.code}, not one error line but: {_shown(result.err)}")
        return result.errors[0]

    def check_done(self, result: Result) -> None:
        if result.code or result.errors:
            raise Broken(f"exit code {result.code}: {_shown(result.err)}")

    def _left(self) -> list[str]:
        paths = [*written(self.tmp, "*"), *written(self._shared_memory, "*"), *written(self.out, "*.tmp")]
        return [str(path.relative_to(self.folder)) for path in paths]

    def _processes(self, command: Command) -> list[str]:
        started = {process.pid for process in command.processes()}
        descriptions = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                is_other = process.pid not in started
                if is_other and (process.pid == command.pid or process.environ().get("TMPDIR") != str(self.tmp)):
                    continue
                if not is_other or is_alive(process):
                    descriptions.append(f"{process.pid} {' '.join(process.cmdline())[:80]}")
        return descriptions


def _shown(text: str) -> str:
    """Return the end of a command's output as one line."""
    lines = [line for line in text.splitlines() if line.strip()]
    return json.dumps(" | ".join(lines[-6:])[-500:])
