"""What the trainer and a worker say to each other, and how a batch is made in a slot."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stream.batch import Assembled, Assembler, Batch, BatchSpec, Work
from stream.errors import RecordError
from stream.ring import Fields, Layout
from stream.rows import Rows

# The rows of a batch stand in its slot before the arrays, so that messages stay small whatever the batch size.
ROW_FIELDS: Fields = {
    "sample": ("i8", ()),
    "member": ("i2", ()),
    "epoch": ("i8", ()),
    "shard": ("i4", ()),
    "record": ("i8", ()),
}


@dataclass(frozen=True)
class Setup:
    """What a worker is told once."""

    spec: BatchSpec
    transforms: tuple[Any, ...]
    seed: int
    rank: int
    rows: int
    threads: int


@dataclass(frozen=True)
class Request:
    """Make the batch of a step in a slot of ``size`` bytes; its rows stand there. ``job`` comes back with the reply."""

    job: int
    step: int
    slot: int
    size: int


@dataclass
class Reply:
    """What came of a request.

    fields: name -> type, shape of a row, for the arrays in the slot; ``offset`` is where they begin. rest: values that
    are not
    arrays of the batch's length, by key. keys: all keys in order. failed: rows that could not be read. error: what a
    transform raised, as text.
    """

    step: int
    job: int = -1
    keys: list[str] = field(default_factory=list)
    fields: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    offset: int = 0
    rest: dict[str, Any] = field(default_factory=dict)
    failed: list[tuple[int, RecordError]] = field(default_factory=list)
    work: Work = field(default_factory=Work)
    error: str = ""


class BatchMaker:
    """Makes batches: assembles, and applies the transforms."""

    def __init__(self, setup: Setup, *, max_open: int | None = None) -> None:
        self.setup = setup
        self.assembler = Assembler(setup.spec, threads=setup.threads, max_open=max_open)
        self.row_layout = Layout(ROW_FIELDS, rows=setup.rows)
        self.base = -(-self.row_layout.nbytes // 4096) * 4096
        self.layout = Layout(self.assembler.fields, rows=setup.rows)
        self._keys = [*self.assembler.fields]
        self._scratch: dict[str, np.ndarray] | None = None

    @property
    def slot_size(self) -> int:
        """Bytes that a batch takes without transforms."""
        return max(1, self.base + self.layout.nbytes)

    def make(self, step: int, rows: Rows) -> tuple[Batch, Assembled]:
        """Make a batch in fresh arrays; the batch is empty if rows failed."""
        out = self.assembler.empty(len(rows))
        done = self.assembler.assemble(rows, out)
        if done.failed:
            return {}, done
        return self.transform({**out, **done.texts}, step), done

    def make_in(self, step: int, rows: Rows, buffer: Any) -> Reply:
        """Make a batch in a slot's buffer. Without transforms nothing is copied; with some, their results are written
        by the caller through ``store``."""
        out = self.layout.arrays(buffer, base=self.base)
        done = self.assembler.assemble(rows, out)
        reply = Reply(step, failed=done.failed, work=done.work)
        if not done.failed:
            reply.keys = [*self._keys, *done.texts]
            reply.fields = dict(self.layout.fields)
            reply.offset = self.base
            reply.rest = dict(done.texts)
        return reply

    def make_transformed(self, step: int, rows: Rows) -> tuple[Reply, dict[str, np.ndarray]]:
        """Make a batch and transform it; returns the arrays that have to be stored in the slot."""
        # Transforms may return views of what they got, so this memory is used again only after the result is stored.
        if self._scratch is None or len(self._scratch["sample"]) != len(rows):
            self._scratch = self.assembler.empty(len(rows))
        done = self.assembler.assemble(rows, self._scratch)
        reply = Reply(step, failed=done.failed, work=done.work)
        if done.failed:
            return reply, {}
        try:
            batch = self.transform({**self._scratch, **done.texts}, step)
        except Exception:
            reply.error = traceback.format_exc()
            return reply, {}
        arrays = {
            name: np.ascontiguousarray(value)
            for name, value in batch.items()
            if isinstance(value, np.ndarray) and value.ndim and len(value) == len(rows) and not value.dtype.hasobject
        }
        reply.keys = list(batch)
        reply.fields = {name: (value.dtype.str, value.shape[1:]) for name, value in arrays.items()}
        reply.offset = self.base
        reply.rest = {name: value for name, value in batch.items() if name not in arrays}
        return reply, arrays

    def transform(self, batch: Batch, step: int) -> Batch:
        """Apply the transforms in order; random ones share one generator of (seed, step, rank)."""
        return apply_transforms(self.setup.transforms, batch, seed=self.setup.seed, step=step, rank=self.setup.rank)


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


def store_rows(rows: Rows, arrays: dict[str, np.ndarray]) -> None:
    """Write rows into a slot."""
    for name in ROW_FIELDS:
        arrays[name][:] = getattr(rows, name)


def load_rows(arrays: dict[str, np.ndarray]) -> Rows:
    """Read rows from a slot."""
    return Rows(**{name: arrays[name].copy() for name in ROW_FIELDS})


def finish_batch(reply: Reply, buffer: Any, *, layout: Layout) -> Batch:
    """Return the batch that lies in a slot's buffer, its keys in the order of the transforms' result.

    ``layout`` is that of batches without transforms; it serves if the reply has the same arrays.
    """
    if reply.fields != layout.fields:
        layout = Layout(reply.fields, rows=layout.rows)
    arrays = layout.arrays(buffer, base=reply.offset)
    return {key: arrays[key] if key in arrays else reply.rest[key] for key in reply.keys}
