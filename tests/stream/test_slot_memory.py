from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import libc, slot_memory
from stream.slot_memory import address_of, make_memory, map_memory

HUGE = 2 << 20
SIZES = [1, 4096, 100_000, HUGE - 1, HUGE, HUGE + 1, 3 * HUGE + 12_345]


def mapped(kind: str = "Rss") -> list[int]:
    """Kilobytes of that kind, of each mapping of slots in this process."""
    parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M)
    slots = [part for part in parts if "memfd:stream-slot" in part]
    return [int(line.split()[1]) for part in slots for line in part.splitlines() if line.startswith(f"{kind}:")]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    files = os.listdir("/proc/self/fd")
    assert mapped() == []
    yield
    gc.collect()
    assert mapped() == []
    assert len(os.listdir("/proc/self/fd")) == len(files)


@pytest.mark.parametrize("size", SIZES)
def test_memory_is_of_the_size_asked_for_reserved_and_zero(size: int) -> None:
    fd = make_memory(size)
    try:
        found = os.fstat(fd)
        assert found.st_size == size
        assert found.st_blocks * 512 >= size
        assert not np.frombuffer(map_memory(fd, size), np.uint8).any()
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", SIZES)
def test_all_of_a_mapping_can_be_written_and_is_seen_in_others(size: int) -> None:
    fd = make_memory(size)
    mine, other = map_memory(fd, size), map_memory(fd, size)
    values = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    assert len(mine) == len(other) == size
    np.frombuffer(mine, np.uint8)[:] = values
    assert (np.frombuffer(other, np.uint8) == values).all()
    code = f"import os; assert os.pread({fd}, {size}, 0)[-1] == {values[-1]}; os.pwrite({fd}, b'x', {size - 1})"
    subprocess.run([sys.executable, "-c", code], pass_fds=[fd], check=True, timeout=60)
    assert mine[size - 1] == ord("x")
    os.close(fd)


@pytest.mark.parametrize("size", SIZES)
def test_a_mapping_begins_where_a_page_can_lie(size: int) -> None:
    if slot_memory._huge_page() != HUGE:
        pytest.skip("huge pages of this machine are not of 2 MB")
    fd = make_memory(size)
    kept = [map_memory(fd, size) for _ in range(5)]
    assert {address_of(memory) % (HUGE if size >= HUGE else 4096) for memory in kept} == {0}
    os.close(fd)


def test_a_mapping_lasts_as_long_as_what_is_made_of_it() -> None:
    fd = make_memory(HUGE + 4096)
    memory = map_memory(fd, HUGE + 4096)
    os.close(fd)
    array = np.frombuffer(memory, np.uint8)[HUGE:]
    del memory
    array[:] = 7
    assert len(mapped()) == 1
    assert (array == 7).all()


def test_memory_of_a_slot_lies_on_huge_pages() -> None:
    size = 4 * HUGE + 4096
    fd = make_memory(size)
    memory = map_memory(fd, size)
    np.frombuffer(memory, np.uint8)[:] = 1
    os.close(fd)
    if not sum(mapped("ShmemPmdMapped")):
        pytest.skip("this kernel gives shared memory no huge pages now: before Linux 6.1, or none is free")
    assert sum(mapped("ShmemPmdMapped")) <= 4 * HUGE >> 10
    assert sum(mapped("Rss")) == size >> 10


@pytest.mark.parametrize("lacking", ["huge pages", "of a size for slots", "a kernel that makes them"])
def test_without_huge_pages_memory_is_as_it_was(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacking == "huge pages":
        monkeypatch.setattr(slot_memory, "_huge_page", lambda: 1 << 62)
    elif lacking == "of a size for slots":
        monkeypatch.setattr(slot_memory, "_huge_page", lambda: 32 << 20)
    else:
        monkeypatch.setattr(libc, "madvise", lambda *_: -1)
    size = 3 * HUGE + 1
    fd = make_memory(size)
    memory = map_memory(fd, size)
    array = np.frombuffer(memory, np.uint8)
    assert os.fstat(fd).st_blocks * 512 >= size
    assert not array.any()
    array[:] = 9
    assert sum(mapped("ShmemPmdMapped")) == 0
    os.close(fd)


def test_memory_that_cannot_be_mapped_is_an_error_of_the_system() -> None:
    fd = os.open(os.devnull, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=r"No such device|Permission denied"):
            map_memory(fd, HUGE)
    finally:
        os.close(fd)


_LIMITED = """
import os, resource, sys
from stream.slot_memory import make_memory
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), used + (8 << 20)))
files = len(os.listdir("/proc/self/fd"))
try:
    make_memory(64 << 20)
except OSError as error:
    print(error.strerror, len(os.listdir("/proc/self/fd")) - files)
"""


def test_memory_that_cannot_be_had_leaves_no_file_open() -> None:
    done = subprocess.run([sys.executable, "-c", _LIMITED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "Cannot allocate memory 0"), done.stderr
