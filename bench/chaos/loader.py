"""Faults of a training run: the trainer or its workers killed or stopped."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import psutil

from bench.chaos.yard import LIMIT_S, Broken, Fault, Place, Program, Yard
from bench.measure.session import Command, Result, wait_until
from bench.soak.check import fresh_digests

STEPS = 40
BATCH = 8
_STEP_MS = 10.0


class Training(Program):
    """Runs of the script `bench.chaos.trainer` on the yard's converted data, or on a copy of the data."""

    where = "2 workers"
    handles = (64, 24, 16)
    address_space = ((1000, 2500),)
    memory = (80, 300)

    def __init__(self, yard: Yard, *, root: Path | None = None) -> None:
        self._yard, self._root = yard, root or yard.root
        self._mixture = dict.fromkeys(yard.datasets.split(","), 1)

    @cached_property
    def reference(self) -> dict[int, str]:
        """Return the hash of each batch of an undisturbed loader on the yard's data, by step."""
        loader = {"root": str(self._yard.root), "mixture": self._mixture, "batch_size": BATCH}
        return fresh_digests(loader, list(range(STEPS)))

    @contextlib.contextmanager
    def running(self, place: Place, *, through: Sequence[str] = ()) -> Iterator[Command]:
        """Start the script, or start it again: it goes on from its state."""
        folder = _log(place).parent
        folder.mkdir(exist_ok=True)
        where = ["--root", str(self._root), "--mixture", json.dumps(self._mixture), "--run", str(folder)]
        size = ["--steps", str(STEPS), "--batch-size", str(BATCH), "--step-ms", str(_STEP_MS)]
        with place.starting("bench.chaos.trainer", *where, *size, through=through) as command:
            yield command

    def check(self, place: Place, result: Result) -> None:
        """Check that the run has left nothing."""
        place.check_clean()

    def finish(self, place: Place) -> None:
        """Run the script again without a fault, and compare its batches with those of an undisturbed run.

        Each step is logged in order with the right batch; the step at which the script was killed perhaps twice.
        """
        with self.running(place) as command:
            result = place.end(command)
        if result.code:
            raise Broken(f"started again, it ended with exit code {result.code}: {result.err.strip()[-300:]}")
        last = -1
        for line in _log(place).read_text().splitlines():
            step, hashed = int(line.split()[0]), line.split()[1]
            if step not in (last, last + 1):
                raise Broken(f"step {step} came after step {last}")
            if hashed != self.reference[step]:
                raise Broken(f"step {step} had another batch than an undisturbed run")
            last = step
        if last != STEPS - 1:
            raise Broken(f"the last step was {last}, expected {STEPS - 1}")
        place.check_clean()


def worker_killed(place: Place, fault: Fault, chance: random.Random) -> None:
    """SIGKILL a worker: one error; started again, the run goes on at the same step."""
    with fault.program.running(place) as command:
        _wait_for_step(place, command, chance.randrange(1, STEPS - 10))
        chance.choice(_workers(command)).kill()
        result = place.end(command)
    line = place.check_refused(result)
    fault.note(line.split(" The iterator")[0], place)
    if "was killed by SIGKILL" not in line:
        raise Broken(f"does not say that a worker was killed: {line}")
    fault.program.finish(place)


def trainer_killed(place: Place, fault: Fault, chance: random.Random) -> None:
    """SIGKILL the trainer: its workers end, and started again it goes on."""
    with fault.program.running(place) as command:
        _wait_for_step(place, command, chance.randrange(0, STEPS - 10))
        place.kill(command)
    fault.program.finish(place)


def worker_stopped(place: Place, fault: Fault, chance: random.Random) -> None:
    """SIGSTOP and SIGCONT a worker: nothing is lost; every second time kill the trainer in between."""
    _stopped(place, fault, chance, lambda command: chance.choice(_workers(command)))


def trainer_stopped(place: Place, fault: Fault, chance: random.Random) -> None:
    """SIGSTOP and SIGCONT the trainer while its workers run; every second time kill it in between."""
    _stopped(place, fault, chance, lambda command: psutil.Process(command.pid))


def _stopped(place: Place, fault: Fault, chance: random.Random, choose: Callable[[Command], psutil.Process]) -> None:
    with fault.program.running(place) as command:
        _wait_for_step(place, command, chance.randrange(1, STEPS - 10))
        process = choose(command)
        process.suspend()
        time.sleep(0.5)
        if fault.tried % 2 == 0:
            place.kill(command)
        else:
            process.resume()
            if (result := place.end(command)).code:
                raise Broken(f"exit code {result.code}: {result.err.strip()[-300:]}")
    fault.program.finish(place)


def _log(place: Place) -> Path:
    return place.folder / "run" / "log"


def _workers(command: Command) -> list[psutil.Process]:
    found = []
    for process in command.processes():
        with contextlib.suppress(psutil.Error):
            if "stream.worker" in process.cmdline():
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


def _wait_for_step(place: Place, command: Command, step: int) -> None:
    log = _log(place)

    def reached() -> bool:
        lines = log.read_text().count("\n") if log.exists() else 0
        return lines >= step or command.process.poll() is not None

    if not wait_until(reached, seconds=LIMIT_S):
        raise Broken(f"hangs before step {step}")
