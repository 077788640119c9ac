"""Jobs done by processes of this machine: each takes the next job when it has finished one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from convert.engine.work import Counts, Job, do_job, largest_first
from convert.errors import ConvertError
from convert.jobs import SplitJob
from convert.plan import DatasetPlan
from convert.pool import Crashed, ProcessPool
from stream.base.machine import describe_exit

_MERGED_SHARDS = 32
"""Shards that one process merges in the time in which another one starts."""


def do_jobs(jobs: Sequence[Job], plans: Mapping[str, DatasetPlan], *, num_workers: int) -> Iterator[Counts]:
    """Do jobs in ``num_workers`` processes, the largest first, and yield the counts of each when it is done.

    With one worker, jobs are done in this process. Processes end with the iteration, and with this process. Raises
    ConvertError if a job failed, or a process died; the others are ended.
    """
    tasks = [partial(do_job, job, plans[job.dataset]) for job in largest_first(jobs)]
    if all(isinstance(job, SplitJob) for job in jobs):
        num_workers = min(num_workers, 1 + sum(job.size for job in jobs) // _MERGED_SHARDS)
    with ProcessPool(min(num_workers, len(tasks)), name="convert") as pool:
        for _, result in pool.results(tasks):
            if isinstance(result, Crashed):
                ending = describe_exit(result.exit_code)
                remedy = "run the same command again to continue, perhaps with fewer --num-workers"
                raise ConvertError(f"a worker process {ending}; {remedy}")
            if isinstance(result, ConvertError):
                raise result
            yield result
