"""Batches of rows: assembled, then transformed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream.base.errors import StreamError
from stream.batch.assemble import Assembler, BatchResult, PendingBatch
from stream.batch.layout import Layout
from stream.batch.spec import Batch, BatchSpec
from stream.order.rows import ROW_TYPE, Rows
from stream.sample.frames import Decode


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
    """Maker of the batches of one process: assembles them and applies the transforms.

    Attributes:
        setup: Setup.
        assembler: Assembler.
        layout: Arrays of a batch in a slot, behind the batch's rows.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.assembler = Assembler(setup.spec, decode=setup.decode, threads=setup.threads)
        self.layout = Layout(self.assembler.fields, num_rows=setup.rows, header=setup.rows * ROW_TYPE.itemsize)

    @property
    def asks_ahead(self) -> bool:
        """True if ``begin`` is worth calling as soon as rows are known: it asks an object store for their records."""
        return self.setup.spec.is_remote

    def begin(self, rows: Rows, arrays: Mapping[str, np.ndarray]) -> PendingBatch | None:
        """Begin a batch in ``arrays``, or return None if it fails; ``make`` then raises the error."""
        try:
            return self.assembler.begin(rows, arrays) if self.asks_ahead else None
        except (StreamError, OSError):
            return None

    def make(
        self, step: int, rows: Rows, arrays: Mapping[str, np.ndarray] | None = None, pending: PendingBatch | None = None
    ) -> BatchResult:
        """Make a batch in ``arrays``, or in new arrays; the batch is empty if rows failed."""
        arrays = self.assembler.empty(len(rows)) if arrays is None else arrays
        result, setup = self.assembler.assemble(rows, arrays, pending), self.setup
        batch, result.batch = result.batch, {}
        if not result.failed:
            result.batch = apply_transforms(setup.transforms, batch, seed=setup.seed, step=step, rank=setup.rank)
        return result


def apply_transforms(transforms: Sequence[Any], batch: Batch, *, seed: int, step: int, rank: int) -> Batch:
    """Apply Grain's ``Map`` and ``RandomMap`` transforms to a batch.

    Random transforms draw from (seed, step, rank): ranks share no random numbers, and a step draws the same again.

    Raises:
        TypeError: A transform does not return a dict.
    """
    if not transforms:
        return batch
    random_generator = np.random.default_rng((seed % 2**63, step, rank))
    for transform in transforms:
        batch = (
            transform.random_map(batch, random_generator) if hasattr(transform, "random_map") else transform.map(batch)
        )
        if not isinstance(batch, dict):
            raise TypeError(f"transform {transform!r} returned {type(batch).__name__}, expected the batch as a dict")
    return batch
