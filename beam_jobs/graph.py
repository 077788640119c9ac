"""The Beam graph: one element a job, or a worker process that claims jobs; one linear ParDo.

No image goes through a shuffle, no output is tagged and no bundle is finished, so that the graph runs on every runner:
Beam's Dask runner, for one, runs only the ancestors of the last transform and merges tagged outputs.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence

import apache_beam as beam
from apache_beam.metrics import Metrics

from beam_jobs.claims import Claims
from convert.errors import ConvertError, ShardError, UsageError
from convert.jobs import ShardJob, SplitJob
from convert.journal.status import IndexStatus, ShardFailure, ShardStatus
from convert.plan import DatasetPlan
from convert.tasks.merge import merge_split
from convert.tasks.shard import convert_shard
from stream.base.errors import StreamError
from stream.format.names import Layout
from stream.storage.remote import RemoteError

_LOGGER = logging.getLogger(__name__)

NAMESPACE = "convert"
"""Namespace of the counters: shards, episodes, pairs or frames, splits, bytes_in, bytes_out, left_out,
shards_elsewhere, splits_elsewhere, shards_failed and splits_failed."""

Job = ShardJob | SplitJob


class DoJob(beam.DoFn):
    """A step that converts the shard, or merges the split, of an element, and counts the result for Beam.

    Runners keep no counts of a bundle that failed, so a shard that failed also leaves a note in the journal.
    """

    def __init__(self, plans: Mapping[str, DatasetPlan]) -> None:
        super().__init__()
        self._plans = dict(plans)

    def process(self, job: Job) -> None:
        """Do the job, unless another process is doing it."""
        plan = self._plans[job.dataset]
        try:
            if isinstance(job, SplitJob):
                _count(_count_split(merge_split(job, plan)))
            else:
                _count(_count_shard(convert_shard(job, plan), plan.layout))
        except Exception as error:
            _LOGGER.info("%s %s failed", job.dataset, job.name, exc_info=True)
            failure = _name_job(error, job)
            _count({f"{'shards' if isinstance(job, ShardJob) else 'splits'}_failed": 1})
            if isinstance(job, ShardJob):
                plan.journal.fail(ShardFailure(shard=job.stem, host=socket.gethostname(), message=str(failure)))
            # Runners send the chain of errors as text, of which the first message of ours is shown.
            raise failure from None


class ClaimJobs(DoJob):
    """A step whose elements are worker processes: each does the next of ``jobs`` until none is left or one failed.

    Beam's local runner deals elements out beforehand, so that one process would still work when the others are done.
    """

    def __init__(self, plans: Mapping[str, DatasetPlan], jobs: Sequence[Job], claims: Claims) -> None:
        super().__init__(plans)
        self._jobs = jobs
        self._claims = claims

    def process(self, worker: int) -> None:  # type: ignore[override]
        """Do the jobs that this process claims."""
        for number in self._claims:
            try:
                super().process(self._jobs[number])
            except ConvertError as error:
                # Raised, Beam would print it with its traceback, and let the others work to their end.
                self._claims.stop(str(error))


def _count_split(status: IndexStatus | None) -> dict[str, int]:
    if status is None:
        return {"splits_elsewhere": 1}
    return {"splits": 1, "bytes_out": sum(table.bytes for table in status.index.values())}


def _count_shard(status: ShardStatus | None, layout: Layout) -> dict[str, int]:
    if status is None:
        return {"shards_elsewhere": 1}
    if status.piece:
        # A piece counts when the shard is joined.
        return {}
    return {
        "shards": 1,
        "episodes": status.entry.episodes,
        layout: status.entry.records,
        "bytes_in": status.bytes_in,
        "bytes_out": status.entry.file.bytes,
        "left_out": sum(status.entry.left_out.values()),
    }


def _count(amounts: Mapping[str, int]) -> None:
    for counter_name, amount in amounts.items():
        Metrics.counter(NAMESPACE, counter_name).inc(amount)


def _name_job(error: Exception, job: Job) -> ConvertError:
    """Return the failure with the shard or split in its message: runners return little more than the message."""
    is_expected = isinstance(error, ConvertError | RemoteError)
    message = str(error) if is_expected else f"{type(error).__name__}: {error}"
    job_names = (job.shard.name, job.stem) if isinstance(job, ShardJob) else (job.split,)
    if not any(name in message for name in job_names):
        message = f"{message} (in {job.dataset} {job.name})"
    refused = isinstance(error, StreamError) and error.refused
    return (UsageError if refused else ShardError)(message)


def build_graph(
    pipeline: beam.Pipeline,
    jobs: Sequence[Job],
    plans: Mapping[str, DatasetPlan],
    *,
    claims: Claims | None = None,
    num_workers: int = 1,
) -> beam.PCollection[None]:
    """Add the conversion of shards, or the merging of splits, to a pipeline; the largest jobs come first.

    With ``claims`` there is an element for each of ``num_workers`` processes of this machine instead of each job.
    """
    ordered = sorted(jobs, key=lambda job: (-job.size, job.dataset, job.name))
    elements: Sequence[Job] | range = ordered if claims is None else range(num_workers)
    return (
        pipeline
        | "Jobs" >> beam.Create(elements, reshuffle=False)
        | "Spread" >> beam.Reshuffle()
        | "Convert" >> beam.ParDo(DoJob(plans) if claims is None else ClaimJobs(plans, ordered, claims))
    )
