"""Faults of a conversion: killed, stopped, started twice, its source changed between runs."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from bench.chaos.yard import LIMIT_S, MODES, Broken, Fault, Place, Yard
from bench.measure.session import run, tree
from convert.errors import EXIT_USAGE

_KILLS_A_PLACE = 4
_MERGING_S = 3.0
"""Seconds from the last shard that a kill is spread over: reading the parts, statistics, the manifest."""


def killed(yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """SIGKILL of the main process at a random moment, again and again, then resumed."""
    while fault.tried < count and len(fault.problems) < 3:
        with yard.place() as place:
            with fault.attempt(f"kill {fault.tried}"):
                _kill(place, fault, chance)
            for _ in range(_KILLS_A_PLACE - 1):
                if fault.tried < count and not _is_complete(place):
                    with fault.attempt(f"kill {fault.tried}"):
                        _kill(place, fault, chance)
            try:
                place.resume(chance.choice([fault.where, "in memory"]))
            except Broken as broken:
                fault.problems.append(f"resumed after kill {fault.tried - 1}: {broken}")
                fault.survived -= 1


def _kill(place: Place, fault: Fault, chance: random.Random) -> None:
    with place.converting(fault.where) as command:
        place.wait_at_random(command, chance)
        command.kill()
        place.check_gone(command)


def _is_complete(place: Place) -> bool:
    return place.finished() == place.yard.total_shards and not list(place.out.glob("*/*/.convert"))


def merging_killed(yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """SIGKILL of the main process while the indexes are merged, again and again, then resumed."""
    for number in range(count):
        with fault.attempt(f"kill {number}"), yard.place() as place:
            for _ in range(_KILLS_A_PLACE):
                with place.converting(fault.where) as command:
                    place.wait_for(yard.total_shards, command)
                    time.sleep(chance.uniform(0, _MERGING_S))
                    command.kill()
                    place.check_gone(command)
                if _is_complete(place):
                    break
            place.resume(chance.choice([fault.where, "in memory"]))


def files_lost(yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """Files of a complete dataset are deleted or cut, the same command makes them again, and is killed once meanwhile.

    Shards of a split that has not lost its index stay as they are; a lost index takes what all of its source says.
    """
    for number in range(count):
        with fault.attempt(f"loss {number}"), yard.place() as place:
            shutil.copytree(yard.root, place.out)
            files = sorted(path for path in place.out.rglob("*.arr*") if path.is_file())
            lost = chance.sample(files, chance.randint(1, 3))
            for path in lost:
                if chance.random() < 0.5:
                    path.unlink()
                else:
                    os.truncate(path, path.stat().st_size // 2)
            whole = {path.parent for path in lost if path.suffix == ".arrow"}
            kept = {path: path.stat().st_ino for path in files if path not in lost and path.suffix == ".arrayrecord"}
            with place.converting(fault.where) as command:
                place.wait_at_random(command, chance)
                command.kill()
                place.check_gone(command)
            place.resume(chance.choice([fault.where, "in memory"]))
            changed = [path for path in kept if path.parent not in whole and path.stat().st_ino != kept[path]]
            if changed:
                raise Broken(f"{len(changed)} shards were converted again that were sound, such as {changed[0].name}")


def worker_killed(yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """SIGKILL of a worker process at a random moment."""
    for number in range(count):
        with fault.attempt(f"kill {number}"), yard.place() as place:
            with place.converting(fault.where) as command:
                place.wait_for(chance.uniform(1, yard.total_shards / 2), command)
                workers = sorted(command.processes(), key=lambda process: process.pid)
                if workers:
                    chance.choice(workers).kill()
                result = command.wait(LIMIT_S)
                place.check_gone(command)
            if result.code:
                fault.note(place.check_refused(result), place)
                place.check_clean()
            else:
                place.check_complete(result)
            place.resume()


def stopped(yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """SIGSTOP of all processes at a random moment, and SIGCONT; every second time the main one is killed meanwhile.

    Without the SIGCONT its workers would stay: a stopped process does nothing, so it cannot end either.
    """
    for number in range(count):
        with fault.attempt(f"stop {number}"), yard.place() as place:
            with place.converting(fault.where) as command:
                place.wait_at_random(command, chance)
                os.killpg(command.pid, signal.SIGSTOP)
                time.sleep(1)
                if number % 2:
                    command.kill()
                    with suppress(ProcessLookupError):
                        os.killpg(command.pid, signal.SIGCONT)
                    place.check_gone(command)
                    continue_with = None
                else:
                    os.killpg(command.pid, signal.SIGCONT)
                    continue_with = command.wait(LIMIT_S)
            if continue_with is not None:
                place.check_complete(continue_with)
            else:
                place.resume()


def two_at_once(yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """Two conversions into the same place at once; every third time one of them is killed, every third time the
    second wants another image size."""
    for number in range(count):
        with fault.attempt(f"pair {number}"), yard.place() as place, ExitStack() as stack:
            first = stack.enter_context(place.converting(fault.where))
            time.sleep(chance.uniform(0, yard.seconds))
            other = yard.size * 2 if number % 3 == 2 else None
            second = stack.enter_context(place.converting("in memory", size=other))
            if number % 3 == 1:
                place.wait_for(chance.uniform(1, yard.total_shards), first)
                first.kill()
            results = [command.wait(LIMIT_S) for command in ([second] if number % 3 == 1 else [first, second])]
            for command in (first, second):
                place.check_gone(command)
            for result in results:
                if result.code:
                    fault.note(place.check_refused(result), place)
            if other and sum(result.code != 0 for result in results) != 1:
                raise Broken("of two conversions with other image sizes not exactly one was refused")
            if other and results[0].code:
                # The one with the other size was first; the place is its own.
                continue
            place.resume()


CHANGES = {
    "a finished shard is longer": 3,
    "a finished shard is damaged": 0,
    "a shard to come is damaged": 3,
    "a shard to come is gone": 2,
    "the metadata were edited": 2,
}
"""What happens to the source, and the exit code of the next run: a finished shard is read again only if its source has
another size."""


def source_changed(yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """A source file is changed between two runs: refused, or said to be damaged; with the old file back all goes on."""
    for number in range(count):
        change = list(CHANGES)[number % len(CHANGES)]
        with fault.attempt(change), yard.place() as place:
            source = place.folder / "source"
            shutil.copytree(yard.source, source)
            with place.converting(fault.where, source=source) as command:
                place.wait_for(chance.uniform(2, yard.total_shards / 2), command)
                command.kill()
                place.check_gone(command)
            target = _choose(place, source, change, chance)
            before, found = target.read_bytes(), tree(place.out)
            _change(target, change)
            with place.converting("in memory", source=source) as command:
                result = command.wait(LIMIT_S)
            if result.code != CHANGES[change]:
                raise Broken(f"exit code {result.code}, expected {CHANGES[change]}: {result.err.strip()[-200:]}")
            if result.code:
                fault.note(place.check_refused(result), place)
            if result.code != EXIT_USAGE:
                place.check_clean()
            elif tree(place.out) != found:
                # Also what the killed run left half-written stays until a run goes on.
                raise Broken("it was refused, but the output is not what it was before")
            target.write_bytes(before)
            with place.converting("in memory", source=source) as command:
                result = command.wait(LIMIT_S)
            if result.code:
                raise Broken(f"with the old file back, exit code {result.code}: {result.err.strip()[-200:]}")
            _check_against_fresh(place, source)


def _choose(place: Place, source: Path, change: str, chance: random.Random) -> Path:
    """A file of the source, of a shard that is finished or of one that is not."""
    found = []
    for journal in sorted(place.out.glob("*/*/.convert")):
        finished = {path.name.removesuffix(".status.json") for path in journal.glob("*.status.json")}
        folder = source / journal.parent.relative_to(place.out)
        if "metadata" in change:
            found.append(folder / "dataset_info.json")
        for path in sorted(folder.glob("*.tfrecord-*")):
            stem = path.name.split("-", 1)[1].replace(".tfrecord", "")
            if "metadata" not in change and (stem in finished) == ("finished" in change):
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


def _check_against_fresh(place: Place, source: Path) -> None:
    """Compare with a conversion of the same source that nobody disturbed: the manifest names the source's folder."""
    fresh = place.folder / "fresh"
    done = run(*place.yard.arguments(fresh, source=source), *MODES["in memory"])
    if done.code:
        raise Broken(f"an undisturbed conversion failed: {done.err.strip()[-200:]}")
    place.check_same(tree(fresh))
    place.check_clean()
