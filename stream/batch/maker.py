"""Batches of rows: assembled, then transformed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream.base.errors import ArgumentError, StreamError
from stream.batch.assemble import Assembler
from stream.batch.layout import Layout
from stream.batch.result import BatchResult, PendingBatch
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
        augments: Whether frames are augmented here, if the spec has an augmentation.
    """

    spec: BatchSpec
    transforms: tuple[Any, ...]
    seed: int
    rank: int
    rows: int
    threads: int
    decode: Decode = "host"
    augments: bool = True


class BatchMaker:
    """Maker of the batches of one process: assembles them and applies the transforms.

    Attributes:
        setup: Setup.
        assembler: Assembler.
        layout: Arrays of a batch in a slot, behind the batch's rows.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.assembler = Assembler(setup.spec, decode=setup.decode, threads=setup.threads, augments=setup.augments)
        self.layout = Layout(self.assembler.fields, num_rows=setup.rows, header=setup.rows * ROW_TYPE.itemsize)
        self._num_before_dropout = _num_before_dropout(setup.transforms)

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
            transforms = list(setup.transforms)
            if (dropout := setup.spec.state_dropout) is not None:
                transforms.insert(self._num_before_dropout, DropState(dropout.draw(rows.sample)))
            result.batch = apply_transforms(transforms, batch, seed=setup.seed, step=step, rank=setup.rank)
        return result


def _num_before_dropout(transforms: Sequence[Any]) -> int:
    """Return the count of transforms that see the true state: up to the last normalisation, or all without one."""
    normalizations = [
        number for number, transform in enumerate(transforms) if getattr(transform, "is_normalization", False)
    ]
    return normalizations[-1] + 1 if normalizations else len(transforms)


@dataclass(frozen=True, eq=False)
class DropState:
    """A transform of one batch, whose dropped states become 0 with mask False.

    Attributes:
        dropped: Mask of the rows, bool [b].
    """

    dropped: np.ndarray

    def map(self, element: Batch) -> Batch:
        """Return the batch; raise ArgumentError if a transform has removed the state."""
        vectors = {}
        for key in ("state", "state_mask"):
            values = element.get(key)
            if not isinstance(values, np.ndarray) or len(values) != len(self.dropped):
                raise ArgumentError(
                    f"state=Vector(dropout=...): a transform returned {type(values).__name__} as {key}; expected the "
                    f"array of {len(self.dropped)} rows. Put a normalisation in front of this transform, which then "
                    "gets the dropped state, or draw in it from stream.row_random"
                )
            vectors[key] = values.copy()
            vectors[key][self.dropped] = 0
        return {**element, **vectors}


def apply_transforms(transforms: Sequence[Any], batch: Batch, *, seed: int, step: int, rank: int) -> Batch:
    """Apply Grain's ``Map`` and ``RandomMap`` transforms to a batch.

    Random transforms draw from (seed, step, rank): ranks share no random numbers, and a step draws the same again.

    Raises:
        TypeError: A transform does not return a dict.
    """
    random_generator = None
    for transform in transforms:
        if hasattr(transform, "random_map"):
            random_generator = random_generator or np.random.default_rng((seed % 2**63, step, rank))
            batch = transform.random_map(batch, random_generator)
        else:
            batch = transform.map(batch)
        if not isinstance(batch, dict):
            raise TypeError(f"transform {transform!r} returned {type(batch).__name__}, expected the batch as a dict")
    return batch
