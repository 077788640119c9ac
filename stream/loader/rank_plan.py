"""The steps of one rank of a mixture: the plan of any step, its batch, and sources that make many batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from stream.base.arguments import check_whole
from stream.base.errors import ArgumentError
from stream.batch.assemble import BatchResult
from stream.batch.maker import BatchMaker, Setup
from stream.loader.counters import Counters
from stream.loader.open_mixture import OpenMixture
from stream.loader.run_config import RunConfig
from stream.order.rows import Rows
from stream.workers.ring import Ring
from stream.workers.source import BatchSource, ProcessSource, Replacer, ThreadSource, make_here


class RankPlan:
    """The steps of one rank of a mixture, by number.

    Args:
        data: Mixture.
        running: Settings of the run.

    Attributes:
        counters: Statistics of all batches.
        rank, world_size: Number of this rank, and count of ranks.
        rows: Rows of this rank's batches.
        num_steps: Step at which iteration stops, None for no end.
    """

    def __init__(self, data: OpenMixture, running: RunConfig) -> None:
        self.data = data
        self.running = running
        self.counters = Counters(data.names)
        self.rank, self.world_size = running.ranks
        self.rows = running.batch_size // self.world_size
        samples = data.plan.num_samples
        ends = [running.num_steps, None if samples is None else -(-samples // running.batch_size)]
        self.num_steps = min((end for end in ends if end is not None), default=None)
        self._replacer = Replacer(data.plan, running.on_error)
        if running.decode == "device":
            _check_encoded(data)
        _ = data.check  # raises now, not in the first batch

    @cached_property
    def _maker(self) -> BatchMaker:
        return BatchMaker(self._setup())

    def _setup(self) -> Setup:
        return Setup(
            spec=self.data.spec,
            # A transform may have a lighter form for workers.
            transforms=tuple(getattr(each, "in_worker", each) for each in self.running.transforms),
            seed=self.data.options.seed,
            rank=self.rank,
            rows=self.rows,
            threads=self.running.thread_count,
            decode=self.running.decode,
        )

    def on_host(self) -> RankPlan:
        """Return the same steps with ``decode="host"``."""
        return self if self.running.decode == "host" else RankPlan(self.data, replace(self.running, decode="host"))

    def samples(self, step: int) -> np.ndarray:
        """Return the global sample numbers of a step, int64 [rows]."""
        step = check_whole("step", step, least=0)
        return self.data.plan.batch_samples(step, self.running.batch_size, self.rank, self.world_size)

    def rows_of(self, steps: Sequence[int]) -> Rows:
        """Return the rows of some steps, one step after the other."""
        return self.data.plan.rows(np.concatenate([self.samples(step) for step in steps]))

    def make(self, step: int) -> BatchResult:
        """Make the batch of a step in this process; raises RecordError, or the error of a transform."""
        return make_here(self._maker, self._replacer, step, self.rows_of([step]))

    def start(self) -> tuple[BatchSource, int]:
        """Start workers or a thread; return their source, and the number of batches to keep in progress."""
        self.data.check.start()
        workers = self.running.worker_count
        # The threads of this maker end with its iterator.
        maker = self._maker if workers else BatchMaker(self._setup())
        ring = self.counters.ring = Ring(maker.layout.nbytes)
        # One batch for each worker, two whose records are on their way, and `prefetch` more.
        depth = self.running.prefetch + max(1, workers) * (3 if maker.asks_ahead else 1)
        ring.reserve(depth + 1)
        if workers:
            return ProcessSource(maker, workers=workers, replacer=self._replacer, ring=ring), depth
        return ThreadSource(maker, replacer=self._replacer, ring=ring), depth


def _check_encoded(data: OpenMixture) -> None:
    """Raise ArgumentError if frames cannot stay encoded until they are on a device."""
    if data.options.image_size is not None:
        raise ArgumentError(
            "decode='device' gives frames in their stored size; leave image_size out and resize there, or take "
            "decode='host'"
        )
    for camera in data.cameras:
        if camera.is_depth:
            raise ArgumentError(f"decode='device' is for JPEGs, and {camera.frames} is depth; take decode='host'")
        for member, name in enumerate(data.names):
            if others := camera.codecs(member) - {"jpeg"}:
                raise ArgumentError(
                    f"decode='device' is for JPEGs, {name} has {' and '.join(sorted(others))}; take decode='host'"
                )
