"""Limits that a conversion runs into: a full disk, too little memory, too few file handles, a read-only place."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.chaos.yard import LIMIT_S, Broken, Fault, NotPossible, Place, Yard
from convert.run.limits import ADDRESS_SPACE

_CGROUP = Path("/sys/fs/cgroup")
_ADDRESS_SPACE_MB = ADDRESS_SPACE >> 20
_MB = 1 << 20


def disk_full(yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """A tmpfs as output that is full at a random point; every fourth time it has too few inodes instead."""
    for number in range(count):
        if number % 4 == 3:
            room = f"size=1g,nr_inodes={chance.randrange(8, len(yard.reference))}"
            more = "size=1g,nr_inodes=100k"
        else:
            # Below a few pages there is no room for a folder, and a tmpfs rounds up.
            room = f"size={chance.randrange(16 << 10, int(yard.total_bytes * 0.9))}"
            more = "size=1g"
        with fault.attempt(room), yard.place() as place, mounted(place.out, room):
            with place.converting(fault.where) as command:
                result = command.wait(LIMIT_S)
                place.check_gone(command)
            line = place.check_refused(result)
            fault.note(line, place)
            if "the disk is full" not in line:
                raise Broken(f"does not say that the disk is full: {line}")
            place.check_clean()
            remount(place.out, more)
            place.resume()


def file_size_limit(yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """No file may be longer than some size (``ulimit -f``)."""
    for _ in range(count):
        # In blocks of 1,024 bytes.
        blocks = chance.randrange(4, 60)
        with fault.attempt(f"ulimit -f {blocks}"), yard.place() as place:
            _limited(place, fault, through=shell(f"ulimit -f {blocks}"))


def few_handles(yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """``ulimit -n 64``, and fewer."""
    for number in range(count):
        handles = (64, 24, 40)[number % 3]
        with fault.attempt(f"ulimit -n {handles}"), yard.place() as place:
            _limited(place, fault, through=shell(f"ulimit -n {handles}"))


def address_space(yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """Little address space (``ulimit -v``), in turn from what Python needs to start up to what a conversion asks for,
    and from there on."""
    for number in range(count):
        low, high = (900, _ADDRESS_SPACE_MB) if number % 2 else (_ADDRESS_SPACE_MB, _ADDRESS_SPACE_MB * 3 // 2)
        megabytes = chance.randrange(low, high)
        with fault.attempt(f"ulimit -v {megabytes} MB"), yard.place() as place:
            _limited(place, fault, through=shell(f"ulimit -v {megabytes * 1024}"))


def memory_cgroup(yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """A control group with too little memory: the kernel kills a process of it."""
    for _ in range(count):
        megabytes = chance.randrange(120, 700)
        with fault.attempt(f"{megabytes} MB"), yard.place() as place, control_group(place.name, megabytes) as through:
            _limited(place, fault, through=through)


def read_only(yard: Yard, fault: Fault, chance: random.Random, count: int) -> None:
    """The output lies on a file system that is read-only."""
    for number in range(count):
        with fault.attempt(), yard.place() as place, mounted(place.out, "size=64m"):
            if number % 2:
                with place.converting(fault.where) as command:
                    place.wait_for(2, command)
                    command.kill()
                    place.check_gone(command)
            before = sorted(place.out.rglob("*"))
            remount(place.out, "ro")
            with place.converting(fault.where) as command:
                result = command.wait(LIMIT_S)
                place.check_gone(command)
            fault.note(place.check_refused(result), place)
            if sorted(place.out.rglob("*")) != before or list(place.tmp.iterdir()):
                raise Broken("something was written")
            remount(place.out, "rw")
            place.resume()


def _limited(place: Place, fault: Fault, *, through: Sequence[str]) -> None:
    """Convert under a limit: it ends well, or with one line, or is killed by the kernel; then without, it ends well."""
    with place.converting(fault.where, through=through) as command:
        result = command.wait(LIMIT_S)
        place.check_gone(command)
    if result.code == 0:
        place.check_complete(result)
    elif result.code == -signal.SIGKILL:
        # The kernel killed the main process itself; only the shell can say so.
        fault.told["(killed by the kernel)"] += 1
    else:
        fault.note(place.check_refused(result), place)
        place.check_clean()
    place.resume()


def shell(limit: str) -> list[str]:
    """What runs a command under a limit of the shell's ``ulimit``."""
    return ["bash", "-c", f'{limit} && exec "$0" "$@"']


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A tmpfs on a folder; raises NotPossible where mounting is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


def remount(folder: Path, options: str) -> None:
    """Change the options of what is mounted on a folder."""
    _mount("-o", f"remount,{options}", str(folder))


def _mount(*arguments: str) -> None:
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotPossible(f"mount: {error.strerror}") from None
    if done.returncode:
        raise NotPossible(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")


@contextlib.contextmanager
def control_group(name: str, megabytes: int) -> Iterator[list[str]]:
    """A memory limit of the kernel; gives what runs a command in it. Raises NotPossible where none can be made."""
    first = _CGROUP / "memory"
    version_1 = first.is_dir()
    folder = (first if version_1 else _CGROUP) / name
    limits = (
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if version_1 else ("memory.max", "memory.swap.max")
    )
    try:
        folder.mkdir()
        (folder / limits[0]).write_text(str(megabytes * _MB))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise NotPossible(f"no control group can be made here: {error.strerror}") from None
    with contextlib.suppress(OSError):
        # Swap would take what the limit takes away; not every kernel counts it.
        (folder / limits[1]).write_text(str(megabytes * _MB if version_1 else 0))
    try:
        yield ["bash", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$0" "$@"']
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()
