"""One job of a conversion, done the same way by every engine."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence

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

Job = ShardJob | SplitJob
Counts = dict[str, int]
"""Counts of the jobs that are done: shards, episodes, pairs or frames, splits, bytes_in, bytes_out, left_out,
shards_elsewhere, splits_elsewhere, shards_failed and splits_failed."""


def largest_first(jobs: Sequence[Job]) -> list[Job]:
    """Return jobs in the order in which processes take them, so that all end at about the same time."""
    return sorted(jobs, key=lambda job: (-job.size, job.dataset, job.name))


def do_job(job: Job, plan: DatasetPlan) -> Counts | ConvertError:
    """Convert the shard, or merge the split, of a job, unless another process is doing it; return its counts.

    If it fails, its error is returned and not raised, so that it comes through every engine as it is: a UsageError if
    the request cannot be done here, else a ShardError; the message names the job. Engines keep no counts of a job that
    failed, so a shard that failed also leaves a note in the journal.
    """
    try:
        if isinstance(job, SplitJob):
            return _count_split(merge_split(job, plan))
        return _count_shard(convert_shard(job, plan), plan.layout)
    except Exception as error:
        _LOGGER.info("%s %s failed", job.dataset, job.name, exc_info=True)
        failure = _name_job(error, job)
        if isinstance(job, ShardJob):
            plan.journal.fail(ShardFailure(shard=job.stem, host=socket.gethostname(), message=str(failure)))
        return failure


def _count_split(status: IndexStatus | None) -> Counts:
    if status is None:
        return {"splits_elsewhere": 1}
    return {"splits": 1, "bytes_out": sum(table.bytes for table in status.index.values())}


def _count_shard(status: ShardStatus | None, layout: Layout) -> Counts:
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


def _name_job(error: Exception, job: Job) -> ConvertError:
    """Return the failure with the shard or split in its message: engines return little more than the message."""
    is_expected = isinstance(error, ConvertError | RemoteError)
    message = str(error) if is_expected else f"{type(error).__name__}: {error}"
    job_names = (job.shard.name, job.stem) if isinstance(job, ShardJob) else (job.split,)
    if not any(name in message for name in job_names):
        message = f"{message} (in {job.dataset} {job.name})"
    refused = isinstance(error, StreamError) and error.refused
    return (UsageError if refused else ShardError)(message)
