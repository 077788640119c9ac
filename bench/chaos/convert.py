"""Faults of a conversion: killed, stopped, started twice, its source changed between runs."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from bench.chaos.yard import LIMIT_S, Broken, Fault, Place, Program
from bench.measure.session import Command, Result, run, tree
from convert.errors import EXIT_USAGE
from convert.run.limits import ADDRESS_SPACE

_ADDRESS_SPACE_MB = ADDRESS_SPACE >> 20
_MODES = {"in memory": "--num-workers=1", "2 processes": "--num-workers=2", "Dask": "--runner=DaskRunner"}
"""Ways to convert, with their argument; Dask has two workers too."""
_KILLS_A_PLACE = 4
_MERGING_S = 3.0
"""Seconds from the last shard in which a kill may happen: reading the parts, statistics, the manifest."""


class Conversion(Program):
    """A conversion of the yard's source, run in one of the ways ``in memory``, ``2 processes`` or ``Dask``."""

    handles = (64, 24, 40)
    # From the need of Python at its start to the need of a conversion, and above.
    address_space = ((_ADDRESS_SPACE_MB, _ADDRESS_SPACE_MB * 3 // 2), (900, _ADDRESS_SPACE_MB))
    memory = (120, 700)

    def __init__(self, mode: str) -> None:
        self.where = mode

    @contextlib.contextmanager
    def running(
        self, place: Place, *, through: Sequence[str] = (), source: Path | None = None, size: int | None = None
    ) -> Iterator[Command]:
        """Start a conversion into the place."""
        arguments = [*place.yard.arguments(place.out, source=source, size=size), _MODES[self.where]]
        with place.starting("convert.run", *arguments, through=through) as command:
            yield command

    def check(self, place: Place, result: Result) -> None:
        """Check that the conversion is complete."""
        place.check_complete(result)

    def finish(self, place: Place) -> None:
        """Run the same command undisturbed, and check the output."""
        with self.running(place) as command:
            result = place.end(command)
        place.check_complete(result)


IN_MEMORY = Conversion("in memory")
WAYS = (IN_MEMORY, Conversion("2 processes"), Conversion("Dask"))


def killed(place: Place, fault: Fault, chance: random.Random) -> None:
    """SIGKILL the main process at a random moment, up to four times, then resume; each kill counts as an attempt."""
    for number in range(_KILLS_A_PLACE):
        if number:
            if fault.tried == fault.count or place.is_complete():
                break
            fault.tried += 1
            fault.survived += 1
        _kill(place, fault, wait=lambda command: place.wait_at_random(command, chance))
    chance.choice([fault.program, IN_MEMORY]).finish(place)


def merging_killed(place: Place, fault: Fault, chance: random.Random) -> None:
    """SIGKILL the main process while the indexes are merged, up to four times, then resume."""

    def wait(command: Command) -> None:
        place.wait_for(place.yard.total_shards, command)
        time.sleep(chance.uniform(0, _MERGING_S))

    for _ in range(_KILLS_A_PLACE):
        _kill(place, fault, wait=wait)
        if place.is_complete():
            break
    chance.choice([fault.program, IN_MEMORY]).finish(place)


def _kill(place: Place, fault: Fault, *, wait: Callable[[Command], None]) -> None:
    with fault.program.running(place) as command:
        wait(command)
        place.kill(command)


def files_lost(place: Place, fault: Fault, chance: random.Random) -> None:
    """Delete or cut files of a complete dataset, repair with the same command, and kill it once meanwhile.

    Shards of a split that has its index stay unchanged; a lost index needs the complete source again.
    """
    shutil.copytree(place.yard.root, place.out)
    files = sorted(path for path in place.out.rglob("*.arr*") if path.is_file())
    lost = chance.sample(files, chance.randint(1, 3))
    for path in lost:
        if chance.random() < 0.5:
            path.unlink()
        else:
            os.truncate(path, path.stat().st_size // 2)
    lost_index = {path.parent for path in lost if path.suffix == ".arrow"}
    kept = {path: path.stat().st_ino for path in files if path not in lost and path.suffix == ".arrayrecord"}
    _kill(place, fault, wait=lambda command: place.wait_at_random(command, chance))
    chance.choice([fault.program, IN_MEMORY]).finish(place)
    changed = [path for path in kept if path.parent not in lost_index and path.stat().st_ino != kept[path]]
    if changed:
        raise Broken(f"{len(changed)} sound shards were converted again, such as {changed[0].name}")


def worker_killed(place: Place, fault: Fault, chance: random.Random) -> None:
    """SIGKILL a worker process at a random moment."""
    with fault.program.running(place) as command:
        place.wait_for(chance.uniform(1, place.yard.total_shards / 2), command)
        if workers := sorted(command.processes(), key=lambda process: process.pid):
            chance.choice(workers).kill()
        result = place.end(command)
    if result.code:
        fault.note(place.check_refused(result), place)
        place.check_clean()
    else:
        place.check_complete(result)
    IN_MEMORY.finish(place)


def stopped(place: Place, fault: Fault, chance: random.Random) -> None:
    """SIGSTOP all processes at a random moment, then SIGCONT; every second time kill the main process in between.

    Without the SIGCONT its workers would stay: a stopped process cannot end.
    """
    with fault.program.running(place) as command:
        place.wait_at_random(command, chance)
        os.killpg(command.pid, signal.SIGSTOP)
        time.sleep(1)
        killed = fault.tried % 2 == 0
        if killed:
            command.kill()
        with suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGCONT)
        if killed:
            place.check_gone(command)
        else:
            result = place.end(command)
    if killed:
        IN_MEMORY.finish(place)
    else:
        place.check_complete(result)


def two_at_once(place: Place, fault: Fault, chance: random.Random) -> None:
    """Start two conversions into the same place; one is killed every third time, one has another size every third."""
    kill, other_size = fault.tried % 3 == 2, fault.tried % 3 == 0
    with ExitStack() as stack:
        first = stack.enter_context(fault.program.running(place))
        time.sleep(chance.uniform(0, place.yard.seconds))
        size = place.yard.size * 2 if other_size else None
        second = stack.enter_context(IN_MEMORY.running(place, size=size))
        if kill:
            place.wait_for(chance.uniform(1, place.yard.total_shards), first)
            first.kill()
        results = [command.wait(LIMIT_S) for command in ([second] if kill else [first, second])]
        for command in (first, second):
            place.check_gone(command)
    for result in results:
        if result.code:
            fault.note(place.check_refused(result), place)
    if other_size and sum(result.code != 0 for result in results) != 1:
        raise Broken("of two conversions with other image sizes not exactly one was refused")
    # If the second one came first, the output has its size.
    if not (other_size and results[0].code):
        IN_MEMORY.finish(place)


_CHANGES = {
    "a finished shard is longer": 3,
    "a finished shard is damaged": 0,
    "a shard to come is damaged": 3,
    "a shard to come is gone": 2,
    "the metadata were edited": 2,
}
"""Change of the source, and exit code of the next run: a finished shard is read again only if its size differs."""


def source_changed(place: Place, fault: Fault, chance: random.Random) -> None:
    """Change a source file between two runs: it is refused or reported; with the old file the conversion goes on."""
    fault.what = change = list(_CHANGES)[(fault.tried - 1) % len(_CHANGES)]
    source = place.folder / "source"
    shutil.copytree(place.yard.source, source)
    with Conversion(fault.program.where).running(place, source=source) as command:
        place.wait_for(chance.uniform(2, place.yard.total_shards / 2), command)
        place.kill(command)
    target = _choose(place, source, change, chance)
    before, found = target.read_bytes(), tree(place.out)
    _change(target, change)
    with IN_MEMORY.running(place, source=source) as command:
        result = place.end(command)
    if result.code != _CHANGES[change]:
        raise Broken(f"exit code {result.code}, expected {_CHANGES[change]}: {result.err.strip()[-200:]}")
    if result.code:
        fault.note(place.check_refused(result), place)
    if result.code != EXIT_USAGE:
        place.check_clean()
    elif tree(place.out) != found:
        # Also unfinished files of the killed run stay until a run goes on.
        raise Broken("the run was refused, but the output has changed")
    target.write_bytes(before)
    with IN_MEMORY.running(place, source=source) as command:
        result = place.end(command)
    if result.code:
        raise Broken(f"with the old file back, exit code {result.code}: {result.err.strip()[-200:]}")
    # The manifest names the source's folder, so the comparison needs a conversion of the same folder.
    fresh = place.folder / "fresh"
    done = run(*place.yard.arguments(fresh, source=source), _MODES["in memory"])
    if done.code:
        raise Broken(f"an undisturbed conversion failed: {done.err.strip()[-200:]}")
    place.check_same(tree(fresh))
    place.check_clean()


def _choose(place: Place, source: Path, change: str, chance: random.Random) -> Path:
    """Return a file of the source to change: of a finished shard, of an unfinished one, or the metadata."""
    found = []
    for journal in sorted(place.out.glob("*/*/.convert")):
        finished = {path.name.removesuffix(".status.json") for path in journal.glob("*.status.json")}
        folder = source / journal.parent.relative_to(place.out)
        if "metadata" in change:
            found.append(folder / "dataset_info.json")
            continue
        for path in sorted(folder.glob("*.tfrecord-*")):
            stem = path.name.split("-", 1)[1].replace(".tfrecord", "")
            if (stem in finished) == ("finished" in change):
                found.append(path)
    if not found:
        raise Broken("the conversion was over before it was killed")
    return chance.choice(found)


def _change(target: Path, change: str) -> None:
    before = target.read_bytes()
    if change.endswith("gone"):
        target.unlink()
    elif change.endswith("longer"):
        target.write_bytes(before + b"more")
    elif change.endswith("edited"):
        target.write_bytes(before.rstrip() + b"\n\n")
    else:
        middle = len(before) // 2
        target.write_bytes(before[:middle] + bytes([before[middle] ^ 0xFF]) + before[middle + 1 :])
