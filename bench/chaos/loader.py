"""Faults of a training run: it or its workers killed or stopped, limits hit, data on a read-only file system."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from bench.chaos.limits import control_group, mounted, remount, shell
from bench.chaos.yard import LIMIT_S, Broken, Fault, Place, Yard
from bench.measure.session import Command, Result, wait_until
from bench.soak.check import fresh_digests

STEPS = 40
BATCH = 8
_STEP_MS = 10.0


class Training:
    """Runs of the script `bench.chaos.trainer` on the yard's converted data."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._mixture = dict.fromkeys(yard.datasets.split(","), 1)

    @cached_property
    def reference(self) -> dict[int, str]:
        """The hash of each batch, by step, of a loader that nobody disturbed."""
        loader = {"root": str(self._yard.root), "mixture": self._mixture, "batch_size": BATCH}
        return fresh_digests(loader, list(range(STEPS)))

    @contextlib.contextmanager
    def running(self, place: Place, *, through: Sequence[str] = (), root: Path | None = None) -> Iterator[Command]:
        """Start the script, or start it again: it goes on from its state."""
        folder = _run_folder(place)
        folder.mkdir(exist_ok=True)
        where = ["--root", str(root or self._yard.root), "--mixture", json.dumps(self._mixture), "--run", str(folder)]
        size = ["--steps", str(STEPS), "--batch-size", str(BATCH), "--step-ms", str(_STEP_MS)]
        with place.starting("bench.chaos.trainer", *where, *size, through=through) as command:
            yield command

    def finish(self, place: Place, *, root: Path | None = None) -> None:
        """Started again without a fault, the run ends, and its batches are those of a run that nobody disturbed."""
        with self.running(place, root=root) as command:
            result = command.wait(LIMIT_S)
            place.check_gone(command)
        if result.code:
            raise Broken(f"started again, it ended with exit code {result.code}: {result.err.strip()[-300:]}")
        self.check_log(place)

    def check_log(self, place: Place) -> None:
        """Every step was trained on, in order, with the right batch; the one at which it was killed perhaps twice."""
        found = [line.split() for line in (_run_folder(place) / "log").read_text().splitlines()]
        last = -1
        for step, hashed in ((int(step), hashed) for step, hashed in found):
            if step not in (last, last + 1):
                raise Broken(f"step {step} came after step {last}")
            if hashed != self.reference[step]:
                raise Broken(f"step {step} had another batch than an undisturbed run")
            last = step
        if last != STEPS - 1:
            raise Broken(f"the last step was {last}, expected {STEPS - 1}")
        place.check_clean()


def _run_folder(place: Place) -> Path:
    return place.folder / "run"


def _workers(command: Command) -> list[psutil.Process]:
    found = []
    for process in command.processes():
        with contextlib.suppress(psutil.Error):
            if "stream.worker" in process.cmdline():
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


def _wait_for_step(place: Place, command: Command, step: int) -> None:
    log = _run_folder(place) / "log"

    def reached() -> bool:
        lines = log.read_text().count("\n") if log.exists() else 0
        return lines >= step or command.process.poll() is not None

    if not wait_until(reached, seconds=LIMIT_S):
        raise Broken(f"hangs before step {step}")


def _refused_or_done(place: Place, fault: Fault, result: Result) -> None:
    if result.code == -signal.SIGKILL:
        fault.told["(killed by the kernel)"] += 1
    elif result.code:
        fault.note(place.check_refused(result), place)
    place.check_clean()


def worker_killed(training: Training, yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """SIGKILL of a worker: one error; started again, the run goes on at that step."""
    for number in range(count):
        with fault.attempt(f"kill {number}"), yard.place() as place:
            with training.running(place) as command:
                _wait_for_step(place, command, chance.randrange(1, STEPS - 10))
                chance.choice(_workers(command)).kill()
                result = command.wait(LIMIT_S)
                place.check_gone(command)
            line = place.check_refused(result)
            fault.note(line.split(" The iterator")[0], place)
            if "was killed by SIGKILL" not in line:
                raise Broken(f"does not say that a worker was killed: {line}")
            training.finish(place)


def trainer_killed(training: Training, yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """SIGKILL of the trainer: its workers end, and started again it goes on."""
    for number in range(count):
        with fault.attempt(f"kill {number}"), yard.place() as place:
            with training.running(place) as command:
                _wait_for_step(place, command, chance.randrange(0, STEPS - 10))
                command.kill()
                place.check_gone(command)
            training.finish(place)


def worker_stopped(training: Training, yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """SIGSTOP of a worker and SIGCONT: nothing is lost; every second time the trainer is killed meanwhile."""
    _stopped(training, yard, fault, chance, count, lambda command: chance.choice(_workers(command)))


def trainer_stopped(training: Training, yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """SIGSTOP of the trainer and SIGCONT, its workers running on; every second time it is killed while stopped."""
    _stopped(training, yard, fault, chance, count, lambda command: psutil.Process(command.pid))


def _stopped(
    training: Training,
    yard: Yard,
    fault: Fault,
    chance: random.Random,
    count: int,
    choose: Callable[[Command], psutil.Process],
) -> None:
    for number in range(count):
        with fault.attempt(f"stop {number}"), yard.place() as place:
            with training.running(place) as command:
                _wait_for_step(place, command, chance.randrange(1, STEPS - 10))
                process = choose(command)
                process.suspend()
                time.sleep(0.5)
                if number % 2:
                    command.kill()
                else:
                    process.resume()
                    if (result := command.wait(LIMIT_S)).code:
                        raise Broken(f"exit code {result.code}: {result.err.strip()[-300:]}")
                place.check_gone(command)
            training.finish(place)


def few_handles(training: Training, yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """``ulimit -n 64``, and fewer."""
    for number in range(count):
        handles = (64, 24, 16)[number % 3]
        with fault.attempt(f"ulimit -n {handles}"), yard.place() as place:
            _limited(training, place, fault, through=shell(f"ulimit -n {handles}"))


def address_space(training: Training, yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """Too little address space (``ulimit -v``), from what Python needs to start up to what a run takes."""
    for _ in range(count):
        megabytes = chance.randrange(1000, 2500)
        with fault.attempt(f"ulimit -v {megabytes} MB"), yard.place() as place:
            _limited(training, place, fault, through=shell(f"ulimit -v {megabytes * 1024}"))


def memory_cgroup(training: Training, yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """A control group with too little memory: the kernel kills a process of it."""
    for _ in range(count):
        megabytes = chance.randrange(80, 300)
        with fault.attempt(f"{megabytes} MB"), yard.place() as place, control_group(place.name, megabytes) as through:
            _limited(training, place, fault, through=through)


def read_only(training: Training, yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """The data lie on a file system that is read-only: nothing is different."""
    for _ in range(count):
        with fault.attempt(), yard.place() as place:
            root = place.folder / "data"
            with mounted(root, "size=1g"):
                shutil.copytree(yard.root, root, dirs_exist_ok=True)
                remount(root, "ro")
                training.finish(place, root=root)


def _limited(training: Training, place: Place, fault: Fault, *, through: Sequence[str]) -> None:
    with training.running(place, through=through) as command:
        result = command.wait(LIMIT_S)
        place.check_gone(command)
    _refused_or_done(place, fault, result)
    training.finish(place)


SCENARIOS: Mapping[str, Any] = {
    "worker killed": worker_killed,
    "trainer killed": trainer_killed,
    "worker stopped": worker_stopped,
    "trainer stopped": trainer_stopped,
    "few file handles": few_handles,
    "too little address space": address_space,
    "too little memory (cgroup)": memory_cgroup,
    "read-only data": read_only,
}
