"""Any step of a mixture, at once: its plan, where its rows come from, and its batch made in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stream.loader.mixed import MixedData
from stream.loader.running import Running
from stream.order.reference import SampleRef
from stream.order.rows import Rows
from stream.storage.errors import ArgumentError
from stream.workers.job import BatchMaker, Setup
from stream.workers.source import Made, Replacer, make_here

_PLAN_AHEAD = 1024
"""Rows that are planned at a time: numpy's cost of a call, not of an element, is what planning takes."""


class Steps:
    """The steps of one rank of a mixture, by number.

    Args:
        data: the mixture.
        running: batch size, rank, world size, transforms, and what happens to records that cannot be read.
    """

    def __init__(self, data: MixedData, running: Running) -> None:
        self.data = data
        self.running = running
        self.replacer = Replacer(data.plan, running.on_error)
        self._maker: BatchMaker | None = None
        _ = data.check  # raises now, not in the first batch

    @property
    def rows(self) -> int:
        """Rows of this rank's batches."""
        return self.running.batch_size // self.running.world_size

    @property
    def maker(self) -> BatchMaker:
        """Makes batches in this process."""
        if self._maker is None:
            self._maker = BatchMaker(self.setup())
        return self._maker

    @property
    def together(self) -> int:
        """How many steps are best planned at a time."""
        return max(1, _PLAN_AHEAD // self.rows)

    def on_host(self) -> Steps:
        """Return the same steps, with frames decoded in this process wherever the run decodes them."""
        return self if self.running.decode == "host" else Steps(self.data, replace(self.running, decode="host"))

    def setup(self) -> Setup:
        """What a worker is told."""
        return Setup(
            spec=self.data.spec,
            # A transform may bring a lighter form of itself for workers.
            transforms=tuple(getattr(each, "in_worker", each) for each in self.running.transforms),
            seed=self.data.options.seed,
            rank=self.running.rank,
            rows=self.rows,
            threads=self.running.thread_count,
            decode=self.running.decode,
        )

    def samples(self, step: int) -> np.ndarray:
        """Global sample numbers of a step, int64 [rows]."""
        if not isinstance(step, int | np.integer) or isinstance(step, bool) or step < 0:
            raise ArgumentError(f"step {step!r}; expected a whole number >= 0")
        running = self.running
        return self.data.plan.batch_samples(int(step), running.batch_size, running.rank, running.world_size)

    def plan(self, steps: Sequence[int]) -> Rows:
        """The rows of some steps, one behind the other, planned together."""
        return self.data.plan.rows(np.concatenate([self.samples(step) for step in steps]))

    def describe(self, step: int) -> list[SampleRef]:
        """Where each row of a step comes from; no image is read."""
        return self.data.describe(self.plan([step]))

    def make(self, step: int) -> Made:
        """Make the batch of a step; raises RecordError, or what a transform raises."""
        return make_here(self.maker, self.replacer, step, self.plan([step]))
