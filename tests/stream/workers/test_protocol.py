"""Slots grow and are mapped again; failures are reported to the trainer with their location."""

from __future__ import annotations

import mmap
import os
import re
import resource
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream.base.errors import LimitError, RecordError
from stream.batch.spec import Batch
from stream.loader.open_mixture import OpenMixture
from stream.order.rows import ROW_TYPE
from tests.fixtures.faults.memory_limit import memory_limit
from tests.stream.index_root import open_data, write_dataset
from tests.stream.workers.shared_slot import ROWS, Change, SlotOf, assert_same, larger, maker_of, rows_of


def test_a_slot_grows_for_a_larger_batch_and_is_mapped_again_by_other_workers(data: OpenMixture) -> None:
    slot = SlotOf(maker_of(data, larger))
    second = slot.new_worker()
    sizes = [slot.slot.size + 800_000]
    for step, worker in ((0, slot.worker), (2, second), (1, slot.worker), (0, second)):
        expected = slot.maker.make(step, rows_of(data, step)).batch
        assert_same(slot.batch(rows_of(data, step), worker=worker), expected)
        sizes.append(slot.slot.size)
    assert sizes == sorted(sizes) and sizes[0] < sizes[1]
    assert os.fstat(slot.slot.fd).st_size == sizes[-1]


def huge(batch: Batch) -> Batch:
    return {**batch, "huge": np.broadcast_to(np.uint8(0), 1 << 45)}


def test_a_batch_that_memory_does_not_hold_is_an_error(data: OpenMixture) -> None:
    slot = SlotOf(maker_of(data, huge))
    with memory_limit():
        reply = slot.reply(rows_of(data, 0))
    assert "bytes does not fit into memory (Cannot allocate memory); take a smaller batch_size" in str(reply.error)
    assert os.fstat(slot.slot.fd).st_size == slot.slot.size


def lock(batch: Batch) -> Batch:
    return {**batch, "lock": threading.Lock(), "frames": 255 - batch["frames"]}


class Stubborn:
    """A value that cannot be pickled, for a reason of its own."""

    def __reduce__(self) -> Any:
        raise RuntimeError("I stay")


def stubborn(batch: Batch) -> Batch:
    return {**batch, "stubborn": Stubborn()}


def fail(_: Batch) -> Batch:
    raise ValueError("no such thing")


def forget(_: Batch) -> None:
    return None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (fail, "^Traceback(.*\n)*ValueError: no such thing"),
        (forget, "^Traceback(.*\n)*.*returned NoneType, expected the batch as a dict"),
        (lock, "^the batch cannot be sent to the trainer: cannot pickle '_thread.lock'"),
        (stubborn, "^the batch cannot be sent to the trainer: I stay"),
    ],
)
def test_a_transform_that_fails_or_whose_batch_cannot_be_sent_is_reported(
    data: OpenMixture, change: Change, message: str
) -> None:
    reply = SlotOf(maker_of(data, change)).reply(rows_of(data, 0))
    assert re.search(message, str(reply.error))
    assert (reply.batch, reply.failed) == ({}, ())


def test_the_work_of_a_batch_is_reported(data: OpenMixture) -> None:
    reply = SlotOf(maker_of(data)).reply(rows_of(data, 0))
    afar = ("requests", "remote_bytes")
    assert all((amount > 0) != (name in afar) for name, amount in vars(reply.work).items())


def test_rows_that_cannot_be_read_are_reported_and_no_transform_is_applied(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "arm", {"train": [[5, 4], [6, 9]]})
    changed = open_data(tmp_path, {"arm": 1})
    slot = SlotOf(maker_of(changed, fail))
    rows = rows_of(changed, 0)
    bad = set(np.flatnonzero(rows.record >= 5).tolist())
    assert 0 < len(bad) < ROWS
    for path in folder.glob("train/*-00001-of-*.arrayrecord"):
        content = path.read_bytes()
        path.write_bytes(content[:100] + bytes(len(content) - 100))
    reply = slot.reply(rows)
    assert [row for row, _ in reply.failed] == sorted(bad)
    assert (reply.batch, reply.error) == ({}, "")
    for row, error in reply.failed:
        assert isinstance(error, RecordError)
        assert (error.dataset, error.shard, error.sample) == ("arm", "train-00001-of-00002", rows.sample[row])


def test_a_limit_on_open_files_is_reported_and_the_next_batch_is_made(data: OpenMixture) -> None:
    slot = SlotOf(maker_of(data))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        error = slot.reply(rows_of(data, 0)).error
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(error, LimitError)
    assert "cannot be opened: Too many open files; raise the limit" in str(error)
    assert slot.batch(rows_of(data, 0))


def test_a_slot_has_room_for_the_rows_and_the_arrays(data: OpenMixture) -> None:
    for rows in (1, 5, 64):
        maker = maker_of(data, rows=rows)
        arrays = maker.layout.arrays(mmap.mmap(-1, maker.layout.nbytes))
        assert min(maker.layout.offsets.values()) >= rows * ROW_TYPE.itemsize
        assert {name: array.shape[0] for name, array in arrays.items()} == dict.fromkeys(maker.assembler.fields, rows)
