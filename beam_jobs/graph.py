"""The Beam graph: one element a job, or one for all jobs of this machine; one linear ParDo.

No image goes through a shuffle, no output is tagged and no bundle is finished, so that the graph runs on every runner:
Beam's Dask runner, for one, runs only the ancestors of the last transform and merges tagged outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import apache_beam as beam
from apache_beam.metrics import Metrics

from convert.engine.local import do_jobs
from convert.engine.work import Job, largest_first
from convert.errors import ConvertError
from convert.jobs import SplitJob
from convert.plan import DatasetPlan

NAMESPACE = "convert"
"""Namespace of the counters, which are those of ``convert.engine.work``."""


class DoJobs(beam.DoFn):
    """A step whose elements are lists of jobs, which processes of one machine take one by one."""

    def __init__(self, plans: Mapping[str, DatasetPlan], *, num_workers: int) -> None:
        super().__init__()
        self._plans = dict(plans)
        self._num_workers = num_workers

    def process(self, jobs: Sequence[Job]) -> None:
        """Do the jobs, and count the results for Beam."""
        try:
            for counts in do_jobs(jobs, self._plans, num_workers=self._num_workers):
                for counter_name, amount in counts.items():
                    Metrics.counter(NAMESPACE, counter_name).inc(amount)
        except ConvertError:
            Metrics.counter(NAMESPACE, "splits_failed" if isinstance(jobs[0], SplitJob) else "shards_failed").inc()
            raise


def build_graph(
    pipeline: beam.Pipeline, jobs: Sequence[Job], plans: Mapping[str, DatasetPlan], *, num_workers: int | None = None
) -> beam.PCollection[None]:
    """Add the conversion of shards, or the merging of splits, to a pipeline; the largest jobs come first.

    With ``num_workers``, that many processes of this machine do the jobs. Beam's local runner would deal them out
    beforehand, so that one process would still work when the others are done. Without, Beam deals them out.
    """
    elements = [[job] for job in largest_first(jobs)] if num_workers is None else [list(jobs)]
    return (
        pipeline
        | "Jobs" >> beam.Create(elements, reshuffle=False)
        | "Spread" >> beam.Reshuffle()
        | "Convert" >> beam.ParDo(DoJobs(plans, num_workers=num_workers or 1))
    )
