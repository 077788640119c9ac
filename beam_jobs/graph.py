"""The Beam graph: one element a job, or one for all jobs of this machine; one linear ParDo.

No image goes through a shuffle, no output is tagged and no bundle is finished, so that the graph runs on every runner:
Beam's Dask runner, for one, runs only the ancestors of the last transform and merges tagged outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import apache_beam as beam
from apache_beam.metrics import Metrics

from convert.engine.local import do_jobs
from convert.engine.work import Counts, Job, do_job, largest_first
from convert.errors import ConvertError
from convert.jobs import SplitJob
from convert.plan import DatasetPlan

NAMESPACE = "convert"
"""Namespace of the counters, which are those of ``convert.engine.work``."""


class DoJob(beam.DoFn):
    """A step whose elements are jobs, of which Beam takes care."""

    def __init__(self, plans: Mapping[str, DatasetPlan]) -> None:
        super().__init__()
        self._plans = dict(plans)

    def process(self, job: Job) -> None:
        """Do a job, and count the result for Beam."""
        try:
            _count(do_job(job, self._plans[job.dataset]))
        except ConvertError:
            _count({"splits_failed" if isinstance(job, SplitJob) else "shards_failed": 1})
            raise


class DoJobsHere(beam.DoFn):
    """A step whose one element is all jobs, which the processes of this machine take one by one.

    Beam's local runner deals elements out beforehand, so that one process would still work when the others are done.
    """

    def __init__(self, plans: Mapping[str, DatasetPlan], *, num_workers: int) -> None:
        super().__init__()
        self._plans = dict(plans)
        self._num_workers = num_workers

    def process(self, jobs: Sequence[Job]) -> None:
        """Do the jobs, and count the results for Beam."""
        for counts in do_jobs(jobs, self._plans, num_workers=self._num_workers):
            _count(counts)


def _count(counts: Counts) -> None:
    for counter_name, amount in counts.items():
        Metrics.counter(NAMESPACE, counter_name).inc(amount)


def build_graph(
    pipeline: beam.Pipeline, jobs: Sequence[Job], plans: Mapping[str, DatasetPlan], *, num_workers: int | None = None
) -> beam.PCollection[None]:
    """Add the conversion of shards, or the merging of splits, to a pipeline; the largest jobs come first.

    With ``num_workers``, that many processes of this machine do the jobs; else Beam deals them out.
    """
    is_here = num_workers is not None
    return (
        pipeline
        | "Jobs" >> beam.Create([list(jobs)] if is_here else largest_first(jobs), reshuffle=False)
        | "Spread" >> beam.Reshuffle()
        | "Convert" >> beam.ParDo(DoJob(plans) if num_workers is None else DoJobsHere(plans, num_workers=num_workers))
    )
