"""Plan of one rank: the rows of any step, its batch, and sources that make many batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.batch.maker import BatchMaker, Setup
from stream.batch.result import BatchResult
from stream.loader.counters import Counters
from stream.loader.open_mixture import OpenMixture
from stream.loader.run_config import RunConfig
from stream.order.rows import Rows
from stream.workers.ring import Ring
from stream.workers.source import BatchSource, ProcessSource, Replacer, ThreadSource, make_here


class RankPlan:
    """The steps of one rank of a mixture, by number.

    Args:
        mixture: Open mixture.
        run_config: Settings of the run.

    Attributes:
        counters: Statistics of all batches.
        rank: Number of this rank.
        world_size: Count of ranks.
        rows: Rows of this rank's batches.
        num_steps: Step at which iteration stops, None for no end.
    """

    def __init__(self, mixture: OpenMixture, run_config: RunConfig) -> None:
        self.mixture = mixture
        self.run_config = run_config
        self.counters = Counters(mixture.names)
        self.rank, self.world_size = run_config.ranks
        self.rows = run_config.batch_size // self.world_size
        num_samples = mixture.plan.num_samples
        end_steps = [run_config.num_steps, None if num_samples is None else -(-num_samples // run_config.batch_size)]
        self.num_steps = min((end_step for end_step in end_steps if end_step is not None), default=None)
        self._replacer = Replacer(mixture.plan, run_config.on_error)
        if run_config.decode == "device":
            _check_encoded(mixture)
        _ = mixture.check  # raises now, not in the first batch

    @cached_property
    def _maker(self) -> BatchMaker:
        return BatchMaker(self._setup())

    def _setup(self) -> Setup:
        return Setup(
            spec=self.mixture.spec,
            # A transform may have a lighter form for workers.
            transforms=tuple(getattr(transform, "in_worker", transform) for transform in self.run_config.transforms),
            seed=self.mixture.sample_spec.seed,
            rank=self.rank,
            rows=self.rows,
            threads=self.run_config.workers.num_threads,
            decode=self.run_config.decode,
            augments=self.run_config.augment == "host",
        )

    def on_host(self) -> RankPlan:
        """Return the same steps with ``decode="host"``."""
        return (
            self
            if self.run_config.decode == "host"
            else RankPlan(self.mixture, replace(self.run_config, decode="host"))
        )

    def augmenting_on_device(self) -> RankPlan:
        """Return the same steps with frames that a device augments, and the same counters."""
        rank_plan = RankPlan(self.mixture, replace(self.run_config, augment="device"))
        rank_plan.counters = self.counters
        return rank_plan

    def samples(self, step: int) -> np.ndarray:
        """Return the global sample numbers of a step, int64 [rows]."""
        step = check_whole_number("step", step, least=0)
        return self.mixture.plan.batch_samples(step, self.run_config.batch_size, self.rank, self.world_size)

    def rows_of(self, steps: Sequence[int]) -> Rows:
        """Return the rows of some steps, one step after the other."""
        return self.mixture.plan.rows(np.concatenate([self.samples(step) for step in steps]))

    def make(self, step: int) -> BatchResult:
        """Make the batch of a step in this process; raises RecordError, or the error of a transform."""
        return make_here(self._maker, self._replacer, step, self.rows_of([step]))

    def start(self) -> tuple[BatchSource, int]:
        """Start workers or a thread; return their source, and the number of batches to keep in progress."""
        self.mixture.check.start()
        num_workers = self.run_config.workers.num_processes
        # The threads of this maker end with its iterator.
        maker = self._maker if num_workers else BatchMaker(self._setup())
        ring = self.counters.ring = Ring(maker.layout.nbytes)
        # One batch for each worker, two whose records are on their way, and `prefetch` more.
        num_batches = self.run_config.workers.prefetch + max(1, num_workers) * (3 if maker.asks_ahead else 1)
        ring.reserve(num_batches + 1)
        if num_workers:
            return ProcessSource(maker, workers=num_workers, replacer=self._replacer, ring=ring), num_batches
        return ThreadSource(maker, replacer=self._replacer, ring=ring), num_batches


def _check_encoded(mixture: OpenMixture) -> None:
    """Raise ArgumentError if frames cannot stay encoded until they are on a device."""
    if mixture.sample_spec.frames is not None and mixture.sample_spec.frames.size is not None:
        raise ArgumentError(
            "decode='device' gives frames in their stored size; leave size out and resize on the device, or take "
            "decode='host'"
        )
    for camera in mixture.cameras:
        if camera.is_depth:
            raise ArgumentError(f"decode='device' is for JPEGs, and {camera.frames} is depth; take decode='host'")
        for member, dataset_name in enumerate(mixture.names):
            if other_codecs := camera.codecs(member) - {"jpeg"}:
                raise ArgumentError(
                    f"decode='device' is for JPEGs, {dataset_name} has {' and '.join(sorted(other_codecs))}; "
                    "take decode='host'"
                )
