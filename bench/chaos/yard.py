"""Where faults are tried: a small source, an undisturbed conversion of it, and what has to hold after a fault."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.measure.session import Command, Result, is_alive, run, start, tree, wait_until

MODES = {"in memory": ("--num-workers=1",), "2 processes": ("--num-workers=2",), "Dask": ("--runner=DaskRunner",)}
"""Ways to convert, with their arguments; Dask has two workers too."""
LIMIT_S = 180.0
"""Seconds after which a command counts as hanging."""
GONE_S = 5.0
"""Seconds in which all processes of a command have to be gone once its main process is."""
_OUR_ERROR = re.compile(r"process \d+|worker \d+")


class Broken(Exception):
    """Something that has to hold after a fault does not."""


class NotPossible(Exception):
    """The fault cannot be brought about on this machine; the message says why."""


@dataclass
class Fault:
    """A row of the result: what was done, how often, and what came of it.

    told: the error lines that a user saw, with counts. problems: what did not hold. skipped: why it was not tried.
    """

    name: str
    where: str
    tried: int = 0
    survived: int = 0
    told: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    skipped: str | None = None
    seconds: float = 0.0

    @contextlib.contextmanager
    def attempt(self, what: str = "") -> Iterator[None]:
        """Count one attempt; what breaks in the block is kept with ``what``."""
        self.tried += 1
        try:
            yield
        except Broken as broken:
            self.problems.append(f"{what}: {broken}" if what else str(broken))
        except subprocess.TimeoutExpired as late:
            self.problems.append(f"{what}: hangs, no end after {late.timeout:.0f} s")
        else:
            self.survived += 1

    def note(self, line: str, place: Place) -> None:
        """Keep an error line, without what differs from run to run."""
        line = line.replace(str(place.out), "ROOT").replace(str(place.folder), "DIR")
        self.told[_OUR_ERROR.sub(lambda found: f"{found[0].split()[0]} N", line)] += 1

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "fault": self.name,
            "where": self.where,
            "tried": self.tried,
            "survived": self.survived,
            "told": dict(self.told.most_common()),
            "problems": self.problems,
            "skipped": self.skipped,
            "seconds": round(self.seconds, 1),
        }


class Yard:
    """The source, and what an undisturbed conversion of it is.

    Args:
        folder: everything is below it.
        datasets, shards: of the sample.
        size: of the frames; larger ones take longer to convert.
    """

    def __init__(self, folder: Path, *, datasets: str, shards: int, size: int) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.datasets, self.shards, self.size = datasets, shards, size
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.reference: dict[str, str] = {}
        self.root = folder / "reference"
        self.seconds = 0.0

    def make(self, *, episodes: int, steps: int) -> None:
        """Make the sample, and convert it without disturbance.

        Raises:
            Broken: one of the commands failed.
        """
        numbers = ["--episodes", str(episodes), "--steps", str(steps), "--shards", str(self.shards), "--jobs", "2"]
        commands = [
            ("convert.sample", ["--datasets", self.datasets, "--output", str(self.source), *numbers]),
            ("convert.run", [*self.arguments(self.root), *MODES["in memory"]]),
        ]
        for module, arguments in commands:
            began = time.monotonic()
            done = run(*arguments, module=module)
            if done.code:
                raise Broken(f"python -m {module} failed: {done.err.strip()[-300:]}")
            self.seconds = time.monotonic() - began
        self.reference = tree(self.root)

    def arguments(self, output: Path, *, source: Path | None = None, size: int | None = None) -> list[str]:
        """Of ``convert.run``, without the mode."""
        where = ["--source", str(source or self.source), "--output", str(output)]
        return ["--datasets", self.datasets, *where, "--image-size", str(size or self.size)]

    @property
    def total_shards(self) -> int:
        """Of all datasets."""
        return sum(name.endswith(".arrayrecord") for name in self.reference)

    @property
    def total_bytes(self) -> int:
        """Of what the undisturbed conversion wrote."""
        return sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        """A folder for one attempt, removed at the end."""
        with self._lock:
            folder = self.folder / f"place-{next(self._numbers):03d}"
        place = Place(self, folder)
        try:
            yield place
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class Place:
    """An output, and a TMPDIR of its own, in which nothing may be left."""

    def __init__(self, yard: Yard, folder: Path) -> None:
        self.yard = yard
        self.folder = folder
        self.out = folder / "out"
        self.tmp = folder / "tmp"
        self.tmp.mkdir(parents=True)
        self._shm = _shared_memory()

    @property
    def name(self) -> str:
        """For what needs a name of its own, a control group for example."""
        return f"{self.yard.folder.name}-{self.folder.name}"

    @contextlib.contextmanager
    def converting(
        self, mode: str, *more: str, through: Sequence[str] = (), source: Path | None = None, size: int | None = None
    ) -> Iterator[Command]:
        """Start a conversion into this place."""
        arguments = [*self.yard.arguments(self.out, source=source, size=size), *MODES[mode], *more]
        with self.starting("convert.run", *arguments, through=through) as command:
            yield command

    @contextlib.contextmanager
    def starting(self, module: str, *arguments: str, through: Sequence[str] = ()) -> Iterator[Command]:
        """Start a command with this place's TMPDIR."""
        quiet = {"TMPDIR": str(self.tmp), "TF_CPP_MIN_LOG_LEVEL": "3"}
        with start(*arguments, module=module, environment=quiet, through=through) as command:
            yield command

    def finished(self) -> int:
        """Shards that are finished, in datasets that are complete or not."""
        complete = [path.parent for path in self.out.glob("*/*/dataset.json")]
        statuses = sum(1 for _ in self.out.glob("*/*/.convert/*.status.json"))
        return statuses + sum(1 for folder in complete for _ in folder.glob("*/*.arrayrecord"))

    def wait_for(self, shards: float, command: Command) -> None:
        """Wait until so many shards are finished, or the command is."""
        ended = wait_until(
            lambda: self.finished() >= shards or command.process.poll() is not None, seconds=LIMIT_S, poll=0.01
        )
        if not ended:
            raise Broken(f"hangs with {self.finished()} shards finished after {LIMIT_S:.0f} s")

    def wait_at_random(self, command: Command, chance: random.Random) -> None:
        """Wait until some moment of a conversion that goes on from what is finished: its start, a shard, its end."""
        if chance.random() < 0.25:
            time.sleep(chance.uniform(0, 2 * self.yard.seconds))
        else:
            self.wait_for(chance.uniform(self.finished(), self.yard.total_shards), command)
            time.sleep(chance.uniform(0, 0.3))

    def check_gone(self, command: Command) -> None:
        """No process of a command is left, whichever session it put itself into."""
        if not wait_until(lambda: not self._processes(command), seconds=GONE_S, poll=0.1):
            raise Broken(f"processes left: {', '.join(self._processes(command))}")

    def check_clean(self) -> None:
        """No temporary file and no shared memory is left."""
        if not wait_until(lambda: not self._left(), seconds=GONE_S, poll=0.2):
            raise Broken(f"left behind: {', '.join(self._left()[:5])}")

    def check_same(self, expected: Mapping[str, str] | None = None) -> None:
        """The output is that of the undisturbed conversion (or another tree), file by file, and nothing else."""
        found, expected = tree(self.out), self.yard.reference if expected is None else expected
        differ = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        if differ:
            what = {
                name: "missing" if name not in found else "new" if name not in expected else "other" for name in differ
            }
            told = ", ".join(f"{name} ({why})" for name, why in list(what.items())[:5])
            raise Broken(f"{len(differ)} files are not those of an undisturbed conversion: {told}")

    def check_refused(self, result: Result) -> str:
        """It ended with an exit code and one clear error line, which is returned."""
        if result.code == 0:
            raise Broken("ended with exit code 0, as if nothing had been wrong")
        if "Traceback" in result.err or len(result.errors) != 1:
            raise Broken(f"exit code {result.code}, not one error line but: {_shown(result.err)}")
        return result.errors[0]

    def check_complete(self, result: Result) -> None:
        """It said that all is well, and so it is."""
        if result.code or result.errors:
            raise Broken(f"exit code {result.code}: {_shown(result.err)}")
        self.check_same()
        self.check_clean()

    def resume(self, mode: str = "in memory") -> None:
        """The same command, undisturbed, ends as if nothing had been wrong, and leaves nothing."""
        with self.converting(mode) as command:
            result = command.wait(LIMIT_S)
            self.check_gone(command)
        self.check_complete(result)

    def _left(self) -> list[str]:
        left = [str(path.relative_to(self.folder)) for path in self.tmp.rglob("*")]
        left += [str(path.relative_to(self.folder)) for path in self.out.rglob("*.tmp")]
        return left + [f"/dev/shm/{name}" for name in sorted(_shared_memory() - self._shm) if not _is_mapped(name)]

    def _processes(self, command: Command) -> list[str]:
        mine = {process.pid: process for process in command.processes()}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if (
                    process.environ().get("TMPDIR") == str(self.tmp)
                    and process.pid != command.pid
                    and is_alive(process)
                ):
                    mine[process.pid] = process
        told = []
        for pid, process in mine.items():
            with contextlib.suppress(psutil.Error):
                told.append(f"{pid} {' '.join(process.cmdline())[:80]}")
        return told


def _shown(text: str) -> str:
    """The end of what a command said, in a line of JSON."""
    lines = [line for line in text.splitlines() if line.strip()]
    return json.dumps(" | ".join(lines[-6:])[-500:])


def _shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _is_mapped(name: str) -> bool:
    """Whether a living process uses it: then it is another program's, which started meanwhile."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if f"/dev/shm/{name}" in maps.read_text():
                return True
    return False
