"""A slot that trainer and worker share, both in this process, and comparison of the batches that come through it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import grain
import numpy as np

from stream.batch.maker import BatchMaker, Setup
from stream.batch.spec import Batch
from stream.loader.open_mixture import OpenMixture
from stream.order.rows import ROW_TYPE, Rows
from stream.sample.frames import Decode
from stream.worker import pack
from stream.workers.protocol import Reply, Request, SlotWriter, read_batch
from stream.workers.ring import Slot

ROWS = 6
Change = Callable[[Batch], Any]


class Apply(grain.transforms.Map):
    """A transform that calls a function of this module."""

    def __init__(self, change: Change) -> None:
        self._change = change

    def map(self, batch: Batch) -> Any:
        return self._change(batch)


def maker_of(data: OpenMixture, *changes: Change, rows: int = ROWS, decode: Decode = "host") -> BatchMaker:
    transforms = tuple(Apply(change) for change in changes)
    return BatchMaker(Setup(data.spec, transforms, seed=0, rank=0, rows=rows, threads=1, decode=decode))


class SlotOf:
    """A slot as trainer and worker share it, both in this process."""

    def __init__(self, maker: BatchMaker) -> None:
        self.maker = maker
        self.slot = Slot(maker.layout.nbytes)
        self.worker = self.new_worker()

    def new_worker(self) -> SlotWriter:
        return SlotWriter(os.dup(self.slot.fd), self.maker)

    def reply(self, rows: Rows, *, step: int = 0, worker: SlotWriter | None = None) -> Reply:
        np.frombuffer(self.slot.map, ROW_TYPE, len(rows))[:] = rows.table
        request = Request(step, self.maker.setup.rows, self.slot.fd, self.slot.size, False)
        reply: Reply = pickle.loads(pack((worker or self.worker).make(request)))
        return reply

    def batch(self, rows: Rows, **options: Any) -> Batch:
        reply = self.reply(rows, **options)
        assert (reply.error, reply.failed) == ("", ())
        self.slot.refit()
        return read_batch(reply, self.maker.layout, self.slot.map)


def rows_of(data: OpenMixture, step: int) -> Rows:
    return data.plan.rows(data.plan.batch_samples(step, ROWS))


def assert_same(actual: Any, expected: Any, context: str = "batch") -> None:
    """Compare values with their types, dtypes and shapes, in lists and dicts too."""
    assert type(actual) is type(expected), context
    if isinstance(expected, Mapping):
        assert list(actual) == list(expected), context
        for key, value in expected.items():
            assert_same(actual[key], value, f"{context} {key}")
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), context
        for number, (actual_item, expected_item) in enumerate(zip(actual, expected, strict=True)):
            assert_same(actual_item, expected_item, f"{context} {number}")
    elif isinstance(expected, np.ndarray):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), context
        if isinstance(expected, np.ma.MaskedArray):
            np.testing.assert_array_equal(np.ma.getmaskarray(actual), np.ma.getmaskarray(expected), err_msg=context)
            np.testing.assert_array_equal(actual.data, expected.data, err_msg=context)
        else:
            np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected), err_msg=context)
    elif hasattr(expected, "numpy"):
        np.testing.assert_array_equal(actual.numpy(), expected.numpy(), err_msg=context)
    else:
        assert actual == expected, context


def larger(batch: Batch) -> Batch:
    count = 100_000 * (1 + int(batch["sample"][0]) % 3)
    return {**batch, "large": np.arange(count), "frames": 255 - batch["frames"], "more": np.ones(count // 2, np.uint8)}
