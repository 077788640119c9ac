"""Limits that a conversion or a training run reaches: disk, memory, file handles, a read-only file system."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.chaos.loader import Training
from bench.chaos.yard import Broken, Fault, NotPossible, Place

_CGROUP = Path("/sys/fs/cgroup")


def disk_full(place: Place, fault: Fault, chance: random.Random) -> None:
    """Use a tmpfs as output that is full at a random point; every fourth time it has too few inodes instead."""
    if fault.tried % 4 == 0:
        room, more = f"size=1g,nr_inodes={chance.randrange(8, len(place.yard.reference))}", "size=1g,nr_inodes=100k"
    else:
        # Less than a few pages has no room for a folder, and a tmpfs rounds up.
        room, more = f"size={chance.randrange(16 << 10, int(place.yard.total_bytes * 0.9))}", "size=1g"
    fault.what = room
    with _mounted(place.out, room):
        with fault.program.running(place) as command:
            result = place.end(command)
        line = place.check_refused(result)
        fault.note(line, place)
        if "the disk is full" not in line:
            raise Broken(f"does not say that the disk is full: {line}")
        place.check_clean()
        _remount(place.out, more)
        fault.program.finish(place)


def read_only_output(place: Place, fault: Fault, chance: random.Random) -> None:
    """Convert to a read-only file system, every second time after a conversion was killed there."""
    with _mounted(place.out, "size=64m"):
        if fault.tried % 2 == 0:
            with fault.program.running(place) as command:
                place.wait_for(2, command)
                place.kill(command)
        before = sorted(place.out.rglob("*"))
        _remount(place.out, "ro")
        with fault.program.running(place) as command:
            result = place.end(command)
        fault.note(place.check_refused(result), place)
        if sorted(place.out.rglob("*")) != before or list(place.tmp.iterdir()):
            raise Broken("something was written")
        _remount(place.out, "rw")
        fault.program.finish(place)


def read_only_data(place: Place, fault: Fault, chance: random.Random) -> None:
    """Train on data on a read-only file system; nothing may differ."""
    root = place.folder / "data"
    with _mounted(root, "size=1g"):
        shutil.copytree(place.yard.root, root, dirs_exist_ok=True)
        _remount(root, "ro")
        Training(place.yard, root=root).finish(place)


def file_size_limit(place: Place, fault: Fault, chance: random.Random) -> None:
    """Limit the size of files, in blocks of 1,024 bytes."""
    _limited(place, fault, f"ulimit -f {chance.randrange(4, 60)}")


def few_handles(place: Place, fault: Fault, chance: random.Random) -> None:
    """Limit the number of open files."""
    limits = fault.program.handles
    _limited(place, fault, f"ulimit -n {limits[(fault.tried - 1) % len(limits)]}")


def address_space(place: Place, fault: Fault, chance: random.Random) -> None:
    """Limit the address space."""
    ranges = fault.program.address_space
    megabytes = chance.randrange(*ranges[(fault.tried - 1) % len(ranges)])
    _limited(place, fault, f"ulimit -v {megabytes * 1024}")


def memory_cgroup(place: Place, fault: Fault, chance: random.Random) -> None:
    """Use a control group with too little memory: the kernel kills a process of it."""
    megabytes = chance.randrange(*fault.program.memory)
    with _control_group(place.name, megabytes) as folder:
        _limited(place, fault, f"echo $$ > {folder}/cgroup.procs", what=f"{megabytes} MB")


def _limited(place: Place, fault: Fault, limit: str, *, what: str = "") -> None:
    """Run under a limit that the shell sets, and then without it, which must succeed."""
    fault.what = what or limit
    with fault.program.running(place, through=["bash", "-c", f'{limit} && exec "$0" "$@"']) as command:
        result = place.end(command)
    fault.check_refused_or_done(place, result)
    fault.program.finish(place)


@contextlib.contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    """Mount a tmpfs on a folder; raise NotPossible where mounting is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    _mount(["-t", "tmpfs", "-o", options, "tmpfs", str(folder)])
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


def _remount(folder: Path, options: str) -> None:
    _mount(["-o", f"remount,{options}", str(folder)])


def _mount(arguments: Sequence[str]) -> None:
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
