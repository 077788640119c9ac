"""Batches of given rows: assembled, then transformed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream.base.errors import StreamError
from stream.batch.assemble import Assembled, Assembler, PendingBatch
from stream.batch.layout import Layout
from stream.batch.spec import Batch, BatchSpec, Decode
from stream.order.rows import ROW_TYPE, Rows


@dataclass(frozen=True)
class Setup:
    """Everything that a process needs to make batches. It is sent to a worker once.

    Attributes:
        spec: Content of a batch.
        transforms: Transforms of batches, in order.
        seed: Seed of random transforms.
        rank: Rank of this loader.
        rows: Rows of a batch.
        threads: Threads that decode.
        decode: ``host`` or ``device``.
    """

    spec: BatchSpec
    transforms: tuple[Any, ...]
    seed: int
    rank: int
    rows: int
    threads: int
    decode: Decode = "host"


class BatchMaker:
    """The maker of batches in one process: it assembles them and applies the transforms.

    Attributes:
        setup: Setup.
        assembler: Assembler.
        layout: Arrays of a batch in a slot, which begins with the batch's rows.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.assembler = Assembler(setup.spec, decode=setup.decode, threads=setup.threads)
        self.layout = Layout(self.assembler.fields, rows=setup.rows, header=setup.rows * ROW_TYPE.itemsize)

    @property
    def asks_ahead(self) -> bool:
        """True if ``begin`` is worth calling as soon as rows are known: it asks an object store for their records."""
        return self.setup.spec.is_remote

    def begin(self, rows: Rows, out: Mapping[str, np.ndarray]) -> PendingBatch | None:
        """Begin a batch in ``out``, or return None where that fails: making it tells why."""
        try:
            return self.assembler.begin(rows, out) if self.asks_ahead else None
        except (StreamError, OSError):
            return None

    def make(
        self, step: int, rows: Rows, out: Mapping[str, np.ndarray] | None = None, begun: PendingBatch | None = None
    ) -> tuple[Batch, Assembled]:
        """Make a batch in ``out``, or in new arrays; the batch is empty if rows failed."""
        out = self.assembler.empty(len(rows)) if out is None else out
        done = self.assembler.assemble(rows, out, begun)
        if done.failed:
            return {}, done
        batch = {**done.arrays, **out, **done.texts}
        setup = self.setup
        return apply_transforms(setup.transforms, batch, seed=setup.seed, step=step, rank=setup.rank), done


def apply_transforms(transforms: Sequence[Any], batch: Batch, *, seed: int, step: int, rank: int) -> Batch:
    """Apply Grain's ``Map`` and ``RandomMap`` transforms to a batch.

    Random transforms draw from (seed, step, rank): ranks share no random numbers, and a step draws the same again.

    Raises:
        TypeError: A transform does not return a dict.
    """
    if not transforms:
        return batch
    generator = np.random.default_rng((seed % 2**63, step, rank))
    for transform in transforms:
        batch = transform.random_map(batch, generator) if hasattr(transform, "random_map") else transform.map(batch)
        if not isinstance(batch, dict):
            raise TypeError(f"transform {transform!r} returned {type(batch).__name__}, expected the batch as a dict")
    return batch
