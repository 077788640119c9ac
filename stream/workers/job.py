"""Protocol between trainer and worker, and how a batch is made."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from stream.batch.assemble import Assembled, Assembler, Work
from stream.batch.layout import ALIGN, Layout
from stream.batch.spec import Batch, BatchSpec, Decode
from stream.order.rows import ROW_TYPE, Rows
from stream.storage.errors import LimitError, RecordError


@dataclass(frozen=True)
class Setup:
    """What a worker is told once; ``rows`` are those of a batch."""

    spec: BatchSpec
    transforms: tuple[Any, ...]
    seed: int
    rank: int
    rows: int
    threads: int
    decode: Decode = "host"


class Request(NamedTuple):
    """Make the batch of a step in a slot of ``size`` bytes, which begins with the batch's rows.

    ``is_new`` says that the slot's file descriptor follows.
    """

    job: int
    step: int
    slot: int
    size: int
    is_new: bool


Item = Literal["own", "place", "value"]


class Place(NamedTuple):
    """The location of an array in a slot."""

    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int


class Reply(NamedTuple):
    """The outcome of a request.

    Attributes:
        job: That of the request.
        batch: For each key, in order: that of the array of the layout that it is, a Place in the slot, or the value
            itself, each behind the name of its kind.
        failed: Rows that could not be read.
        work: See ``stream.batch.assemble.Work``.
        error: Exception of a transform, as text.
    """

    job: int
    batch: Sequence[tuple[str, Item, Any]] = ()
    failed: Sequence[tuple[int, RecordError]] = ()
    work: Work = Work()
    error: str = ""


class BatchMaker:
    """Makes batches: assembles, and applies the transforms."""

    def __init__(self, setup: Setup, *, max_open: int | None = None) -> None:
        self.setup = setup
        self.assembler = Assembler(setup.spec, decode=setup.decode, threads=setup.threads, max_open=max_open)
        self.base = -(-setup.rows * ROW_TYPE.itemsize // ALIGN) * ALIGN
        self.layout = Layout(self.assembler.fields, rows=setup.rows)

    @property
    def slot_size(self) -> int:
        """Bytes that a batch takes without what transforms or encoded frames add."""
        return max(1, self.base + self.layout.nbytes)

    def make(self, step: int, rows: Rows, out: Mapping[str, np.ndarray] | None = None) -> tuple[Batch, Assembled]:
        """Make a batch in ``out``, or in fresh arrays; the batch is empty if rows failed."""
        out = self.assembler.empty(len(rows)) if out is None else out
        done = self.assembler.assemble(rows, out)
        if done.failed:
            return {}, done
        batch = {**done.arrays, **out, **done.texts}
        setup = self.setup
        return apply_transforms(setup.transforms, batch, seed=setup.seed, step=step, rank=setup.rank), done


def apply_transforms(transforms: Sequence[Any], batch: Batch, *, seed: int, step: int, rank: int) -> Batch:
    """Apply Grain's ``Map`` and ``RandomMap`` transforms to a batch.

    The generator of random transforms is made of (seed, step, rank): ranks share no random numbers, and a step
    replayed draws the same again.
    """
    if not transforms:
        return batch
    generator = np.random.default_rng((seed % 2**63, step, rank))
    for transform in transforms:
        batch = transform.random_map(batch, generator) if hasattr(transform, "random_map") else transform.map(batch)
        if not isinstance(batch, dict):
            raise TypeError(f"transform {transform!r} returned {type(batch).__name__}, expected the batch as a dict")
    return batch


class SlotWriter:
    """A slot as a worker sees it.

    Args:
        buffer: Memory of the slot.
        maker: Makes the batches.
    """

    def __init__(self, buffer: Any, maker: BatchMaker) -> None:
        self.buffer = buffer
        self._maker = maker
        self.rows = Rows.unpacked(np.frombuffer(buffer, ROW_TYPE, maker.setup.rows))
        self._memory = np.frombuffer(buffer, np.uint8)
        self._arrays = maker.layout.arrays(buffer, base=maker.base)

    def make(self, request: Request) -> tuple[Reply, list[tuple[int, np.ndarray]], int]:
        """Make a batch in the slot.

        Returns:
            The reply; arrays that are still to be written, each with its offset; and the bytes that the slot needs.
            Values of the reply may be views of the slot, so it is to be pickled before the arrays are written.

        Raises:
            LimitError: A limit of this process is too low to open a file.
        """
        # Made for each batch: a transform may give an array another shape or type in place.
        arrays = self._maker.layout.arrays(self.buffer, base=self._maker.base)
        try:
            batch, done = self._maker.make(request.step, self.rows, arrays)
        except LimitError:
            raise
        except Exception:
            return Reply(request.job, error=traceback.format_exc()), [], 0
        reply = Reply(request.job, (), done.failed, done.work)
        if done.failed:
            return reply, [], 0
        items, left, needed = self._place(batch, arrays)
        return reply._replace(batch=items), left, needed

    def write(self, arrays: Sequence[tuple[int, np.ndarray]]) -> None:
        """Write arrays into the slot."""
        for offset, array in arrays:
            np.ndarray(array.shape, array.dtype, self.buffer, offset)[...] = array

    def _place(
        self, batch: Batch, arrays: Mapping[str, np.ndarray]
    ) -> tuple[list[tuple[str, Item, Any]], list[tuple[int, np.ndarray]], int]:
        """Find a place in the slot for each array of a batch: where it is already, where the array of its key was, or
        behind all others.

        Args:
            batch: What the transforms returned.
            arrays: Arrays of the layout that the first of them got.
        """
        base, offsets = self._maker.base, self._maker.layout.offsets
        own = {id(array): name for name, array in arrays.items() if _are_alike(array, self._arrays[name])}
        kept = {own[id(value)] for value in batch.values() if id(value) in own}
        end = base + self._maker.layout.nbytes
        items: list[tuple[str, Item, Any]] = []
        left: list[tuple[int, np.ndarray]] = []
        for key, value in batch.items():
            # A masked array has a mask of its own, and objects are no numbers.
            if type(value) is not np.ndarray or value.dtype.hasobject:
                items.append((key, "value", value))
                continue
            if id(value) in own:
                items.append((key, "own", own[id(value)]))
                continue
            mine = self._arrays.get(key)
            if mine is not None and key not in kept and _are_alike(mine, value):
                offset = base + offsets[key]
                items.append((key, "own", key))
            else:
                offset = -(-end // ALIGN) * ALIGN
                end = offset + value.nbytes
                items.append((key, "place", Place(value.dtype, value.shape, offset)))
            # Writing to its place could change another array that is a view of the same memory.
            left.append((offset, value.copy() if np.may_share_memory(value, self._memory) else value))
        return items, left, end


def _are_alike(array: np.ndarray, other: np.ndarray) -> bool:
    return (array.dtype, array.shape) == (other.dtype, other.shape)


def read_slot(items: Sequence[tuple[str, Item, Any]], own: Mapping[str, np.ndarray], buffer: Any) -> Batch:
    """Return the batch of a reply.

    Args:
        items: See ``Reply.batch``.
        own: Arrays of the layout over the slot's buffer.
        buffer: Memory of the slot.
    """
    batch = {}
    for key, kind, value in items:
        if kind == "own":
            batch[key] = own[value]
        elif kind == "place":
            batch[key] = np.ndarray(value.shape, value.dtype, buffer, value.offset)
        else:
            batch[key] = value
    return batch
