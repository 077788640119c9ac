from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.base.errors import RingError
from stream.base.machine import available_memory
from stream.batch.layout import Layout, empty_array
from stream.workers.ring import Ring, slot_of
from tests.fixtures.faults.open_files import memory_of_slots

FIELDS = {"frames": ("u1", (2, 3)), "step": ("i8", ()), "state": ("f4", (0,)), "mask": ("?", (5,))}


@pytest.fixture
def ring() -> Any:
    ring = Ring(1 << 16)
    yield ring
    ring.close()


def lend(ring: Ring, *, fill: int = 0) -> np.ndarray:
    """Return a batch of one array over all of a slot."""
    array = np.frombuffer(ring.lend(ring.take()), np.uint8)
    array[:] = fill
    return array


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=3),
        st.tuples(st.sampled_from(["u1", "i2", "f4", "i8", "?"]), st.lists(st.integers(0, 5), max_size=3).map(tuple)),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 9),
    st.sampled_from([0, 40, 4096]),
)
def test_arrays_are_aligned_and_do_not_overlap(
    fields: dict[str, tuple[str, tuple[int, ...]]], rows: int, header: int
) -> None:
    layout = Layout(fields, num_rows=rows, header=header)
    memory = mmap.mmap(-1, layout.nbytes + 1)
    arrays = layout.arrays(memory)
    assert list(arrays) == list(fields)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    for number, (name, (dtype, shape)) in enumerate(fields.items()):
        array = arrays[name]
        assert array.shape == (rows, *shape)
        assert array.dtype == np.dtype(dtype)
        if array.size:
            assert (array.ctypes.data - start) % 64 == (16 if dtype == "u1" and len(shape) >= 3 else 0)
            assert start + header <= array.ctypes.data <= start + layout.nbytes - array.nbytes
        array.view("u1")[...] = number
    for number, array in enumerate(arrays.values()):
        assert (array.view("u1") == number).all()


@pytest.mark.parametrize("rows", [1, 2, 3, 64])
def test_an_array_without_a_slot_lies_as_in_one(rows: int) -> None:
    for name, (dtype, shape) in {**FIELDS, "frames": ("u1", (2, 16, 24, 3))}.items():
        array = empty_array(rows, dtype, shape)
        assert (array.shape, array.dtype) == ((rows, *shape), np.dtype(dtype))
        assert array.flags.c_contiguous and array.flags.writeable
        assert name != "frames" or array.ctypes.data % 64 == 16


def test_a_ring_grows_only_with_the_batches_that_are_kept_and_overwrites_none(ring: Ring) -> None:
    for fill in range(50):
        lend(ring, fill=fill)
    assert len(ring.slots) == 1
    kept = [lend(ring, fill=fill) for fill in range(12)]
    assert len(ring.slots) == 12
    assert [set(array.tolist()) for array in kept] == [{fill} for fill in range(12)]
    del kept
    for fill in range(12):
        _ = lend(ring, fill=fill)
    assert len(ring.slots) == 12


@pytest.mark.parametrize(
    "derive",
    [
        lambda array: array[5:9],
        lambda array: array.view(np.float32).reshape(-1, 8)[3],
        lambda array: array[::2].T,
        lambda array: memoryview(array),
        lambda array: np.asarray(array).reshape(4, -1)[1][None],
        lambda array: pytest.importorskip("torch").from_numpy(array)[100:200].reshape(10, 10)[1:],
    ],
)
def test_a_slot_comes_back_with_its_last_view_or_tensor_and_not_before(ring: Ring, derive: Any) -> None:
    array = lend(ring, fill=7)
    view = derive(array)
    del array
    second = lend(ring, fill=9)
    assert len(ring.slots) == 2
    assert bytes(np.ascontiguousarray(view))[:1] == b"\x07"
    del view, second
    kept = [lend(ring), lend(ring)]
    assert len(ring.slots) == 2
    del kept


def test_an_array_has_its_slot_and_the_last_of_several_gives_it_back(ring: Ring) -> None:
    slot = ring.take()
    arrays = Layout(FIELDS, num_rows=8).arrays(ring.lend(slot))
    assert all(slot_of(array) is slot for array in arrays.values())
    assert slot_of(arrays["frames"][1:, ::2]) is slot
    assert slot_of(arrays["frames"].copy()) is None
    assert slot_of(["put the cup down"]) is None
    while len(arrays) > 1:
        arrays.popitem()
        lend(ring)
        assert len(ring.slots) == 2
    arrays.clear()
    kept = [lend(ring), lend(ring)]
    assert len(ring.slots) == 2
    del kept


def test_no_python_runs_while_a_batch_is_released_as_ctrl_c_would_be_lost_in_it(ring: Ring) -> None:
    array, calls = lend(ring), list[str]()
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del array
    finally:
        sys.setprofile(None)
    assert calls == []
    lend(ring)
    assert len(ring.slots) == 1


def test_batches_outlive_their_ring(ring: Ring) -> None:
    before = memory_of_slots()
    kept = [lend(ring, fill=fill) for fill in range(4)]
    lend(ring)
    ring.close()
    assert [set(array.tolist()) for array in kept] == [{0}, {1}, {2}, {3}]
    kept[2][:] = 5
    assert set(kept[2].tolist()) == {5}
    kept.clear()
    assert memory_of_slots() <= before


def test_a_batch_that_is_let_go_of_while_the_ring_closes_leaves_no_file_open(ring: Ring) -> None:
    before = memory_of_slots()
    for _ in range(50):
        short = Ring(4096)
        batches = [[lend(short)] for _ in range(8)]
        thread = threading.Thread(target=lambda batches=batches: [batch.clear() for batch in batches])
        thread.start()
        short.close()
        thread.join()
        batches.clear()
        assert memory_of_slots() <= before


def test_a_batch_that_is_lent_after_the_ring_closed_leaves_no_file_open(ring: Ring) -> None:
    before = memory_of_slots()
    slot = ring.take()
    ring.close()
    array = np.frombuffer(ring.lend(slot), np.uint8)
    assert not array.any() and memory_of_slots() > before
    del array
    assert memory_of_slots() <= before


def test_another_process_sees_what_is_written(ring: Ring) -> None:
    slot = ring.take()
    array = np.frombuffer(ring.lend(slot), np.uint8)
    code = f"import mmap; mmap.mmap({slot.fd}, {slot.size})[:5] = b'hello'"
    subprocess.run([sys.executable, "-c", code], pass_fds=[slot.fd], check=True, timeout=60)
    assert bytes(array[:5]) == b"hello"


def test_memory_that_is_not_there_is_not_asked_for() -> None:
    assert available_memory() is not None
    large = Ring(1 << 50)
    for ask in (lambda: large.reserve(3), large.take):
        with pytest.raises(RingError, match=r"needs [\d,]+ bytes .*are available; take a smaller batch_size"):
            ask()
    assert len(large.slots) == 0


_LIMITED = """
import numpy as np, resource, sys
from stream.base.errors import RingError
from stream.workers.ring import Ring, slot_of
ring = Ring(1 << 22)
kept = [np.frombuffer(ring.lend(ring.take()), np.uint8)]
limit = sys.argv[1]
if limit == "memory":
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 24), used + (1 << 24)))
else:
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
try:
    for _ in range(200):
        kept.append(np.frombuffer(ring.lend(ring.take()), np.uint8))
except RingError as error:
    print(f"{len(kept) >= 2} {error}")
kept.pop()
kept.append(np.frombuffer(ring.lend(ring.take()), np.uint8))
print("continues")
"""


@pytest.mark.parametrize(("limit", "reason"), [("memory", "Cannot allocate memory"), ("files", "Too many open files")])
def test_a_slot_that_is_not_available_is_an_error_that_says_how_large_it_is(limit: str, reason: str) -> None:
    done = subprocess.run([sys.executable, "-c", _LIMITED, limit], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"True a slot of 4,194,304 bytes for a batch is not available ({reason}" in done.stdout
    assert "slots of the ring are in use already" in done.stdout
    assert done.stdout.endswith("continues\n")


def test_a_slot_that_a_worker_made_larger_is_seen_completely_and_unlocked_while_it_is_mapped(ring: Ring) -> None:
    mapped: list[bool] = []
    slot = ring.take()
    slot.unlock = lambda: mapped.append(not slot.map.closed)
    os.ftruncate(slot.fd, 1 << 17)
    slot.refit()
    slot.refit()
    assert mapped == [True]
    assert len(np.frombuffer(ring.lend(slot), np.uint8)) == slot.size == 1 << 17
    slot.unlock = lambda: mapped.append(not slot.map.closed)
    ring.close()
    assert mapped == [True, True]
