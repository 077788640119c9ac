"""The programs that faults happen to: a conversion, and a training run on the loader."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from convert.run.command import ADDRESS_SPACE
from tests.faults.chaos.sandbox import Broken, Program, Sandbox, Trial
from tests.faults.soak import fresh_digests
from tests.fixtures.command import Command, Result

STEPS = 40
_BATCH = 8
_STEP_MS = 10.0
_LEFT = 11
"""Steps after the last one that a fault happens at: more than are prefetched."""
_ADDRESS_SPACE_MB = ADDRESS_SPACE >> 20
_MODES = {"in memory": "--num-workers=1", "2 processes": "--num-workers=2", "Dask": "--runner=DaskRunner"}
"""Ways to convert, with their argument; Dask has two workers too."""


class Conversion(Program):
    """A conversion of the sandbox's source, run in one of the ways ``in memory``, ``2 processes`` or ``Dask``."""

    kills = 4
    handles = (64, 24, 40)
    # From the need of Python at its start to the need of a conversion, and above.
    address_space = ((_ADDRESS_SPACE_MB, _ADDRESS_SPACE_MB * 3 // 2), (900, _ADDRESS_SPACE_MB))
    memory = (120, 700)

    def __init__(self, mode: str, *, source: Path | None = None, size: int | None = None) -> None:
        self.where = mode
        self._source, self._size = source, size

    @contextlib.contextmanager
    def running(self, trial: Trial, *, through: Sequence[str] = ()) -> Iterator[Command]:
        """Start a conversion into the output of a trial."""
        arguments = [*trial.sandbox.arguments(trial.out, source=self._source, size=self._size), _MODES[self.where]]
        with trial.starting("convert.run", *arguments, through=through) as command:
            yield command

    def wait(self, trial: Trial, command: Command) -> None:
        if trial.chance.random() < 0.25:
            time.sleep(trial.chance.uniform(0, 2 * trial.sandbox.seconds))
        else:
            trial.wait_for(trial.chance.uniform(trial.finished(), trial.sandbox.total_shards), command)
            time.sleep(trial.chance.uniform(0, 0.3))

    def check(self, trial: Trial, result: Result) -> None:
        super().check(trial, result)
        trial.check_same()

    def finish(self, trial: Trial) -> None:
        """Run the same command undisturbed, or another way of running, and check the output."""
        mode = trial.chance.choice([self.where, "in memory"])
        self.check(trial, trial.run(Conversion(mode, source=self._source, size=self._size)))


IN_MEMORY = Conversion("in memory")
WAYS = (IN_MEMORY, Conversion("2 processes"), Conversion("Dask"))


class Training(Program):
    """Runs of the script `tests.faults.chaos.trainer` on the sandbox's converted data, or on a copy of the data."""

    where = "2 workers"
    handles = (64, 24, 16)
    address_space = ((1000, 2500),)
    memory = (80, 300)
    worker = "stream.worker"
    worker_lost = "was killed by SIGKILL"

    def __init__(self, sandbox: Sandbox, *, root: Path | str | None = None, cache: str | None = None) -> None:
        self._sandbox, self._root, self._cache = sandbox, root or sandbox.root, cache
        self._loader = {"mixture": dict.fromkeys(sandbox.datasets.split(","), 1), "batch_size": _BATCH}

    @cached_property
    def reference(self) -> dict[int, str]:
        """Return the hash of each batch of an undisturbed loader on the sandbox's data, by step."""
        return fresh_digests({"root": str(self._sandbox.root), **self._loader}, list(range(STEPS)))

    @contextlib.contextmanager
    def running(self, trial: Trial, *, through: Sequence[str] = ()) -> Iterator[Command]:
        """Start the script, or start it again: it goes on from its state, and waits for a fault before its end."""
        trial.gates.close("state.json", after=STEPS - _LEFT - 1)
        folder = _log(trial).parent
        folder.mkdir(exist_ok=True)
        loader = {"root": str(self._root), **self._loader, "num_workers": 2, "num_steps": STEPS, "cache": self._cache}
        request = json.dumps({"loader": loader, "folder": str(folder), "step_s": _STEP_MS / 1000})
        with trial.starting("tests.faults.chaos.trainer", request, through=through) as command:
            yield command

    def wait(self, trial: Trial, command: Command) -> None:
        log, step = _log(trial), trial.chance.randrange(1, STEPS - _LEFT + 1)
        trial.wait_until(
            lambda: log.exists() and log.read_text().count("\n") >= step, command, condition=f"step {step} is reached"
        )

    def finish(self, trial: Trial) -> None:
        """Run the script again without a fault, and compare its batches with those of an undisturbed run.

        Each step is logged in order with the right batch; the step at which the script was killed perhaps twice.
        """
        self.check(trial, trial.run(self))
        last = -1
        for line in _log(trial).read_text().splitlines():
            step, hashed = int(line.split()[0]), line.split()[1]
            if step not in (last, last + 1):
                raise Broken(f"step {step} came after step {last}")
            if hashed != self.reference[step]:
                raise Broken(f"step {step} had another batch than an undisturbed run")
            last = step
        if last != STEPS - 1:
            raise Broken(f"the last step was {last}, expected {STEPS - 1}")


def _log(trial: Trial) -> Path:
    return trial.folder / "run" / "log"
