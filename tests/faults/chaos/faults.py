"""Faults: processes killed and stopped, limits hit, a full disk, files lost, a source that changes between runs,
and outages.

Each fault is a function of a trial and the fault's entry, whose ``tried`` counts the attempts from 1 on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil

from convert.errors import EXIT_USAGE
from tests.faults.chaos.labels import labels_killed
from tests.faults.chaos.outage import FORMS, SECONDS, outage
from tests.faults.chaos.programs import IN_MEMORY, Conversion, Training
from tests.faults.chaos.sandbox import LIMIT_S, Broken, Fault, NotPossible, Trial
from tests.fixtures.command import Command, tree
from tests.fixtures.faults.gate import STATUSES

_CGROUP = Path("/sys/fs/cgroup")
_MERGING_S = 3.0
"""Seconds from the last shard in which a kill may happen: reading the parts, statistics, the manifest."""


def killed(trial: Trial, fault: Fault) -> None:
    """SIGKILL the main process at a random moment, perhaps several times, then resume; each kill counts."""
    for number in range(fault.program.kills):
        if number:
            if fault.tried == fault.count or trial.is_complete():
                break
            fault.tried += 1
            fault.survived += 1
        _kill(trial, fault, fault.program.wait)
    fault.program.finish(trial)


def merging_killed(trial: Trial, fault: Fault) -> None:
    """SIGKILL the main process while the indexes are merged, up to four times, then resume."""

    def wait(trial: Trial, command: Command) -> None:
        trial.wait_for(trial.sandbox.total_shards, command)
        time.sleep(trial.chance.uniform(0, _MERGING_S))

    for _ in range(fault.program.kills):
        _kill(trial, fault, wait)
        if trial.is_complete():
            break
    fault.program.finish(trial)


def _kill(trial: Trial, fault: Fault, wait: Callable[[Trial, Command], None]) -> None:
    with fault.program.running(trial) as command:
        wait(trial, command)
        trial.kill(command)


def worker_killed(trial: Trial, fault: Fault) -> None:
    """SIGKILL a worker at a random moment."""
    program = fault.program
    with program.running(trial) as command:
        program.wait(trial, command)
        if workers := program.workers(command):
            trial.chance.choice(workers).kill()
        result = trial.end(command)
    if program.worker_lost is not None and program.worker_lost not in fault.note(trial, result):
        raise Broken(f"does not say that a worker was killed: {result.error()}")
    if program.worker_lost is None:
        fault.check_refused_or_done(trial, result)
    program.finish(trial)


def stopped(trial: Trial, fault: Fault, *, who: str) -> None:
    """SIGSTOP processes at a random moment, then SIGCONT; every second time kill the main process in between.

    Without the SIGCONT workers might stay: a stopped process cannot end.
    """
    program = fault.program
    with program.running(trial) as command:
        program.wait(trial, command)
        main, workers = psutil.Process(command.pid), program.workers(command)
        targets = {"all": [main, *workers], "main": [main], "worker": [trial.chance.choice(workers or [main])]}[who]
        _signal(targets, signal.SIGSTOP)
        time.sleep(1)
        kill = fault.tried % 2 == 0
        if kill:
            command.kill()
        _signal(targets, signal.SIGCONT)
        if kill:
            trial.check_gone(command)
        else:
            trial.check_done(trial.end(command))
    program.finish(trial)


def _signal(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def files_lost(trial: Trial, fault: Fault) -> None:
    """Delete or cut files of a complete dataset, repair with the same command, and kill it once meanwhile.

    Shards of a split that has its index stay unchanged; a lost index needs the complete source again.
    """
    shutil.copytree(trial.sandbox.root, trial.out)
    files = sorted(path for path in trial.out.rglob("*.arr*") if path.is_file())
    lost = trial.chance.sample(files, trial.chance.randint(1, 3))
    for path in lost:
        if trial.chance.random() < 0.5:
            path.unlink()
        else:
            os.truncate(path, path.stat().st_size // 2)
    lost_index = {path.parent for path in lost if path.suffix == ".arrow"}
    kept = {path: path.stat().st_ino for path in files if path not in lost and path.suffix == ".arrayrecord"}
    _kill(trial, fault, fault.program.wait)
    fault.program.finish(trial)
    changed = [path for path in kept if path.parent not in lost_index and path.stat().st_ino != kept[path]]
    if changed:
        raise Broken(f"{len(changed)} sound shards were converted again, such as {changed[0].name}")


def two_at_once(trial: Trial, fault: Fault) -> None:
    """Start two conversions into the same output; one is killed every third time, one has another size every third."""
    kill, other_size = fault.tried % 3 == 2, fault.tried % 3 == 0
    with ExitStack() as stack:
        first = stack.enter_context(fault.program.running(trial))
        time.sleep(trial.chance.uniform(0, trial.sandbox.seconds))
        conversion = Conversion("in memory", size=trial.sandbox.size * 2 if other_size else None)
        second = stack.enter_context(conversion.running(trial))
        if kill:
            trial.wait_for(trial.chance.uniform(1, trial.sandbox.total_shards), first)
            first.kill()
        results = [command.wait(LIMIT_S) for command in ([second] if kill else [first, second])]
        for command in (first, second):
            trial.check_gone(command)
    for result in results:
        if result.code:
            fault.note(trial, result)
    if other_size and sum(result.code != 0 for result in results) != 1:
        raise Broken("of two conversions with other image sizes not exactly one was refused")
    # If the second one came first, the output has its size.
    if not (other_size and results[0].code):
        IN_MEMORY.finish(trial)


def _flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


_CHANGES: Mapping[str, tuple[int, Callable[[bytes], bytes] | None]] = {
    "a finished shard is longer": (3, lambda content: content + b"more"),
    "a finished shard is damaged": (0, _flip),
    "a shard to come is damaged": (3, _flip),
    "a shard to come is gone": (2, None),
    "the metadata were edited": (2, lambda content: content.rstrip() + b"\n\n"),
}
"""Exit code of the next run, and the new content: a finished shard is read again only if its size differs."""


def source_changed(trial: Trial, fault: Fault) -> None:
    """Change a source file between two runs: it is refused or reported; with the old file the conversion goes on."""
    fault.what = change = list(_CHANGES)[(fault.tried - 1) % len(_CHANGES)]
    code, edit = _CHANGES[change]
    source = trial.folder / "source"
    shutil.copytree(trial.sandbox.source, source)
    trial.gates.close(STATUSES, after=trial.sandbox.total_shards * 3 // 4)
    with Conversion(fault.program.where, source=source).running(trial) as command:
        trial.wait_for(trial.chance.uniform(2, trial.sandbox.total_shards / 2), command)
        trial.kill(command)
    target = _choose(trial, source, change)
    before, output_before = target.read_bytes(), tree(trial.out)
    if edit is None:
        target.unlink()
    else:
        target.write_bytes(edit(before))
    changed = Conversion("in memory", source=source)
    result = trial.run(changed)
    if result.code != code:
        raise Broken(f"exit code {result.code}, expected {code}: {result.err.strip()[-200:]}")
    if result.code:
        fault.note(trial, result)
    if result.code != EXIT_USAGE:
        trial.check_clean()
    elif tree(trial.out) != output_before:
        # Also unfinished files of the killed run stay until a run goes on.
        raise Broken("the run was refused, but the output has changed")
    target.write_bytes(before)
    trial.check_done(trial.run(changed))
    # The manifest names the source's folder, so the comparison needs a conversion of the same folder.
    out, trial.out = trial.out, trial.folder / "fresh"
    trial.check_done(trial.run(changed))
    expected, trial.out = tree(trial.out), out
    trial.check_same(expected)
    trial.check_clean()


def _choose(trial: Trial, source: Path, change: str) -> Path:
    """Return a file of the source to change: of a finished shard, of an unfinished one, or the metadata."""
    candidates = []
    for journal in sorted(trial.out.glob("*/*/.convert")):
        finished = {path.name.removesuffix(".status.json") for path in journal.glob("*.status.json")}
        folder = source / journal.parent.relative_to(trial.out)
        if "metadata" in change:
            candidates.append(folder / "dataset_info.json")
            continue
        for path in sorted(folder.glob("*.tfrecord-*")):
            stem = path.name.split("-", 1)[1].replace(".tfrecord", "")
            if (stem in finished) == ("finished" in change):
                candidates.append(path)
    if not candidates:
        raise Broken("the conversion was over before it was killed")
    return trial.chance.choice(candidates)


def disk_full(trial: Trial, fault: Fault) -> None:
    """Use a tmpfs as output that is full at a random point; every fourth time it has too few inodes instead."""
    chance, more = trial.chance, "size=1g,nr_inodes=100k"
    if fault.tried % 4 == 0:
        limit = f"size=1g,nr_inodes={chance.randrange(8, len(trial.sandbox.reference))}"
    else:
        # Less than a few pages has no room for a folder, and a tmpfs rounds up.
        limit = f"size={chance.randrange(16 << 10, int(trial.sandbox.total_bytes * 0.9))}"
    fault.what = limit
    with _mounted(trial.out, limit):
        line = fault.note(trial, trial.run(fault.program))
        if "the disk is full" not in line:
            raise Broken(f"does not say that the disk is full: {line}")
        trial.check_clean()
        _mount("-o", f"remount,{more}", str(trial.out))
        fault.program.finish(trial)


def read_only_output(trial: Trial, fault: Fault) -> None:
    """Convert to a read-only file system, every second time after a conversion was killed there."""
    with _mounted(trial.out, "size=64m"):
        if fault.tried % 2 == 0:
            _kill(trial, fault, lambda trial, command: trial.wait_for(2, command))
        before = sorted(trial.out.rglob("*"))
        _mount("-o", "remount,ro", str(trial.out))
        fault.note(trial, trial.run(fault.program))
        if sorted(trial.out.rglob("*")) != before or list(trial.tmp.iterdir()):
            raise Broken("something was written")
        _mount("-o", "remount,rw", str(trial.out))
        fault.program.finish(trial)


def read_only_data(trial: Trial, fault: Fault) -> None:
    """Train on data on a read-only file system; nothing may differ."""
    root = trial.folder / "data"
    with _mounted(root, "size=1g"):
        shutil.copytree(trial.sandbox.root, root, dirs_exist_ok=True)
        _mount("-o", "remount,ro", str(root))
        Training(trial.sandbox, root=root).finish(trial)


def limited(trial: Trial, fault: Fault, *, limit: Callable[[Trial, Fault], str]) -> None:
    """Run under a limit that the shell sets, and then without it, which must succeed."""
    fault.what = command = limit(trial, fault)
    through = ["bash", "-c", f'{command} && exec "$0" "$@"']
    fault.check_refused_or_done(trial, trial.run(fault.program, through=through))
    fault.program.finish(trial)


def _file_size(trial: Trial, fault: Fault) -> str:
    return f"ulimit -f {trial.chance.randrange(4, 60)}"


def _handles(trial: Trial, fault: Fault) -> str:
    limits = fault.program.handles
    return f"ulimit -n {limits[(fault.tried - 1) % len(limits)]}"


def _address_space(trial: Trial, fault: Fault) -> str:
    ranges = fault.program.address_space
    return f"ulimit -v {trial.chance.randrange(*ranges[(fault.tried - 1) % len(ranges)]) * 1024}"


def memory_cgroup(trial: Trial, fault: Fault) -> None:
    """Use a control group with too little memory: the kernel kills a process of it."""
    megabytes = trial.chance.randrange(*fault.program.memory)
    with _control_group(trial.name, megabytes) as folder:
        limited(trial, fault, limit=lambda trial, fault: f"echo $$ > {folder}/cgroup.procs")


FAULTS: tuple[tuple[str, Callable[[Trial, Fault], None], tuple[int, ...], tuple[int, ...]], ...] = (
    ("conversion killed", killed, (40, 40, 20, 0), (1, 1, 0, 0)),
    ("merging killed", merging_killed, (8, 6, 2, 0), (1, 0, 0, 0)),
    ("files lost", files_lost, (8, 6, 2, 0), (1, 0, 0, 0)),
    ("worker of a conversion killed", worker_killed, (0, 4, 2, 0), (0, 0, 0, 0)),
    ("conversion stopped, continued or killed", partial(stopped, who="all"), (3, 3, 3, 0), (1, 0, 0, 0)),
    ("two conversions at once", two_at_once, (3, 3, 3, 0), (0, 0, 0, 0)),
    ("source changed between runs", source_changed, (5, 5, 0, 0), (1, 0, 0, 0)),
    ("disk full", disk_full, (8, 4, 4, 0), (1, 0, 0, 0)),
    ("file size limit", partial(limited, limit=_file_size), (3, 3, 3, 0), (0, 0, 0, 0)),
    ("few file handles", partial(limited, limit=_handles), (3, 3, 3, 0), (0, 0, 0, 0)),
    ("too little address space", partial(limited, limit=_address_space), (6, 4, 3, 0), (0, 0, 0, 0)),
    ("too little memory (cgroup)", memory_cgroup, (4, 4, 3, 0), (0, 0, 0, 0)),
    ("read-only output", read_only_output, (2, 2, 1, 0), (0, 0, 0, 0)),
    ("labels killed", labels_killed, (21, 0, 0, 0), (3, 0, 0, 0)),
    ("loader: worker killed", worker_killed, (0, 0, 0, 4), (0, 0, 0, 1)),
    ("loader: trainer killed", killed, (0, 0, 0, 4), (0, 0, 0, 0)),
    ("loader: worker stopped", partial(stopped, who="worker"), (0, 0, 0, 4), (0, 0, 0, 0)),
    ("loader: trainer stopped", partial(stopped, who="main"), (0, 0, 0, 4), (0, 0, 0, 1)),
    ("loader: few file handles", partial(limited, limit=_handles), (0, 0, 0, 4), (0, 0, 0, 0)),
    ("loader: too little address space", partial(limited, limit=_address_space), (0, 0, 0, 6), (0, 0, 0, 0)),
    ("loader: too little memory (cgroup)", memory_cgroup, (0, 0, 0, 4), (0, 0, 0, 0)),
    ("loader: read-only data", read_only_data, (0, 0, 0, 1), (0, 0, 0, 0)),
    *(
        (f"loader: outage, {form}", partial(outage, form=form), (0, 0, 0, len(SECONDS)), (0, 0, 0, form == "closed"))
        for form in FORMS
    ),
)
"""Attempts of each fault in the three ways to convert and in a training run; those of the short form."""


@contextlib.contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    """Mount a tmpfs on a folder; raise NotPossible where mounting is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


def _mount(*arguments: str) -> None:
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotPossible(f"mount: {error.strerror}") from None
    if done.returncode:
        raise NotPossible(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")


@contextlib.contextmanager
def _control_group(name: str, megabytes: int) -> Iterator[Path]:
    """Make a control group with a memory limit; raise NotPossible where this is not permitted."""
    first = _CGROUP / "memory"
    size = str(megabytes << 20)
    # Swap would make up for the limit; not every kernel counts it.
    if first.is_dir():
        folder, limits = first / name, {"memory.limit_in_bytes": size, "memory.memsw.limit_in_bytes": size}
    else:
        folder, limits = _CGROUP / name, {"memory.max": size, "memory.swap.max": "0"}
    (limit, swap) = limits
    try:
        folder.mkdir()
        (folder / limit).write_text(limits[limit])
        with contextlib.suppress(OSError):
            (folder / swap).write_text(limits[swap])
        yield folder
    except OSError as error:
        raise NotPossible(f"no control group can be made here: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()
