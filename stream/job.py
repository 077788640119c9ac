"""What the trainer and a worker say to each other, and how a batch is made in a slot."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stream.batch import Assembled, Assembler, Stretch
from stream.errors import RecordError
from stream.ring import Layout
from stream.rows import ROW_TYPE, Rows
from stream.spec import Batch, BatchSpec, Decode


@dataclass(frozen=True)
class Setup:
    """What a worker is told once. rows: of a batch. together: steps that are planned at a time."""

    spec: BatchSpec
    transforms: tuple[Any, ...]
    seed: int
    rank: int
    rows: int
    together: int
    threads: int
    decode: Decode = "host"

    @property
    def whole(self) -> bool:
        """Whether a batch is made by one worker: transforms see all of it, and encoded frames are as wide as the
        largest."""
        return bool(self.transforms) or self.decode == "device"


class Request(NamedTuple):
    """Make rows [start, stop) of the batch of a step in a slot of ``size`` bytes; where they come from stands there.

    ``job`` and ``start`` come back with the reply. planned: of how many steps, from this one on, the rows stand in the
    slot; 0 if others stand in for some of those that were planned.
    """

    job: int
    step: int
    slot: int
    size: int
    start: int
    stop: int
    planned: int


@dataclass(frozen=True)
class Transformed:
    """A batch of which transforms, or encoded frames, decide what it holds.

    keys: all, in order. fields: type and shape of a row of the arrays, which lie in the slot from ``offset`` on. rest:
    values that are not arrays of the batch's length.
    """

    keys: tuple[str, ...]
    fields: dict[str, tuple[str, tuple[int, ...]]]
    offset: int
    rest: dict[str, Any]


class Reply(NamedTuple):
    """What came of a request; a message is the plain tuple of it, which takes a fifth of the time to pickle.

    texts: of the rows, by key. failed: rows that could not be read, counted in the batch. noted, bytes: of its
    ``Work``. transformed: if one worker makes the whole batch. error: what one of them raised, as text.
    """

    job: int
    start: int
    texts: Mapping[str, list[str]]
    failed: Sequence[tuple[int, RecordError]] = ()
    noted: Sequence[Stretch] = ()
    bytes: int = 0
    transformed: Transformed | None = None
    error: str = ""


class BatchMaker:
    """Makes batches: assembles, and applies the transforms."""

    def __init__(self, setup: Setup, *, max_open: int | None = None) -> None:
        self.setup = setup
        self.assembler = Assembler(setup.spec, decode=setup.decode, threads=setup.threads, max_open=max_open)
        # The rows of a batch stand in its slot before the arrays, so that messages stay small whatever the batch size;
        # in that of the first of some batches that were planned together, those of all of them.
        self.most_rows = setup.rows * setup.together
        self.base = -(-self.most_rows * ROW_TYPE.itemsize // 4096) * 4096
        self.layout = Layout(self.assembler.fields, rows=setup.rows)
        self._scratch: dict[str, np.ndarray] | None = None

    @property
    def slot_size(self) -> int:
        """Bytes that a batch takes without transforms and encoded frames."""
        return max(1, self.base + self.layout.nbytes)

    def make(self, step: int, rows: Rows) -> tuple[Batch, Assembled]:
        """Make a batch in fresh arrays; the batch is empty if rows failed."""
        out = self.assembler.empty(len(rows))
        done = self.assembler.assemble(rows, out)
        if done.failed:
            return {}, done
        return self.transform({**done.arrays, **out, **done.texts}, step), done

    def make_part(self, rows: Rows, out: Mapping[str, np.ndarray], *, start: int, stop: int) -> Assembled:
        """Make rows [start, stop) of a batch in its arrays; failed rows are counted in the batch."""
        part = {name: values[start:stop] for name, values in out.items()}
        return self.assembler.assemble(rows.cut(start, stop), part).moved(start)

    def make_transformed(self, request: Request, rows: Rows) -> tuple[Reply, dict[str, np.ndarray]]:
        """Make a whole batch and transform it; returns the arrays that have to be stored in the slot, whose size is not
        known before."""
        # Transforms may return views of what they got, so this memory is used again only after the result is stored.
        if self._scratch is None:
            self._scratch = self.assembler.empty(len(rows))
        done = self.assembler.assemble(rows, self._scratch)
        reply = Reply(request.job, request.start, {}, done.failed, done.work.noted, done.work.bytes)
        if done.failed:
            return reply, {}
        try:
            batch = self.transform({**done.arrays, **self._scratch, **done.texts}, request.step)
        except Exception:
            return reply._replace(error=traceback.format_exc()), {}
        arrays = {
            name: np.ascontiguousarray(value)
            for name, value in batch.items()
            if isinstance(value, np.ndarray) and value.ndim and len(value) == len(rows) and not value.dtype.hasobject
        }
        fields = {name: (value.dtype.str, value.shape[1:]) for name, value in arrays.items()}
        rest = {name: value for name, value in batch.items() if name not in arrays}
        return reply._replace(transformed=Transformed(tuple(batch), fields, self.base, rest)), arrays

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


def read_transformed(transformed: Transformed, buffer: Any, *, rows: int) -> Batch:
    """Return the batch that transforms left in a slot's buffer, its keys in their order."""
    arrays = Layout(transformed.fields, rows=rows).arrays(buffer, base=transformed.offset)
    return {key: arrays[key] if key in arrays else transformed.rest[key] for key in transformed.keys}
