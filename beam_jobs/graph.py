"""The Beam graphs: one element a source shard, then one a split; one linear ParDo each.

No image goes through a shuffle, no output is tagged and no bundle is finished, so that it runs on every runner: Beam's
Dask runner, for one, runs only the ancestors of the last transform and merges tagged outputs.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Mapping, Sequence

import apache_beam as beam
from apache_beam.metrics import Metrics

from beam_jobs.stop import tell
from convert.errors import ConvertError, ShardError, UsageError
from convert.journal.remote import open_journal
from convert.journal.status import ShardFailure
from convert.plan import DatasetPlan, ShardJob, SplitJob
from convert.tasks.merge import merge_split
from convert.tasks.shard import convert_shard

_LOGGER = logging.getLogger(__name__)

NAMESPACE = "convert"
"""Of the counters: shards, episodes, pairs, splits, bytes_in, bytes_out, left_out, shards_elsewhere, splits_elsewhere,
shards_failed and splits_failed."""

Job = ShardJob | SplitJob
Summary = dict[str, str | int]


class DoJob(beam.DoFn):
    """Converts the shard, or merges the split, that an element describes, and yields a small record of what came out.

    What it did is counted, for the pages of services. Runners keep no counts of a bundle that failed, so a shard that
    failed also leaves a note in the journal.
    """

    def __init__(self, plans: Mapping[str, DatasetPlan], *, stop: bytes | None = None) -> None:
        """Small, travels with the graph.

        Args:
            plans: by dataset.
            stop: address of the `beam_jobs.stop.StopSocket` that a worker which fails tells, to wait then to be ended
                with the others. Beam's local runner would let the others work to the end, print the traceback several
                times, and hang if it cannot. None for runners that try a failed element again.
        """
        super().__init__()
        self._plans = dict(plans)
        self._stop_address = stop

    def process(self, job: Job) -> Iterator[Summary]:
        """Yield dataset, shard or split, and counts; nothing if another process is doing the job."""
        plan = self._plans[job.dataset]
        try:
            yield from _convert(job, plan) if isinstance(job, ShardJob) else _merge(job, plan)
        except Exception as error:
            _LOGGER.info("%s %s failed", job.dataset, job.name, exc_info=True)
            failure = _name_job(error, job)
            if isinstance(job, ShardJob):
                _count(shards_failed=1)
                note = ShardFailure(shard=job.stem, host=socket.gethostname(), message=str(failure))
                open_journal(plan.output, plan.staging).fail(note)
            else:
                _count(splits_failed=1)
            self._stop(failure)
            # Runners send the whole chain as text; the first of our messages in it is the one that is shown.
            raise failure from None

    def _stop(self, error: ConvertError) -> None:
        # Told again and again, to see whether somebody is there who will end this process.
        while self._stop_address is not None and tell(self._stop_address, str(error)):
            time.sleep(1)


def _convert(job: ShardJob, plan: DatasetPlan) -> Iterator[Summary]:
    status = convert_shard(job, plan)
    if status is None:
        _count(shards_elsewhere=1)
        return
    entry = status.entry
    _count(
        shards=1,
        episodes=entry.episodes,
        pairs=entry.records,
        bytes_in=status.bytes_in,
        bytes_out=status.bytes_out,
        left_out=sum(entry.left_out.values()),
    )
    yield {
        "dataset": job.dataset,
        "shard": job.stem,
        "records": entry.records,
        "episodes": entry.episodes,
        "bytes": status.bytes_out,
    }


def _merge(job: SplitJob, plan: DatasetPlan) -> Iterator[Summary]:
    status = merge_split(job, plan)
    if status is None:
        _count(splits_elsewhere=1)
        return
    _count(splits=1, bytes_out=status.bytes_out)
    yield {"dataset": job.dataset, "split": job.split, "bytes": status.bytes_out}


def _count(**amounts: int) -> None:
    for name, amount in amounts.items():
        Metrics.counter(NAMESPACE, name).inc(amount)


def _name_job(error: Exception, job: Job) -> ConvertError:
    """Return the same failure with the shard or split in its message: little more comes back from a worker."""
    message = str(error) if isinstance(error, ConvertError) else f"{type(error).__name__}: {error}"
    known = (job.shard.name, job.stem) if isinstance(job, ShardJob) else (job.split,)
    if not any(name in message for name in known):
        message = f"{message} (in {job.dataset} {job.name})"
    kind = UsageError if isinstance(error, UsageError) else ShardError
    return kind(message)


def build_graph(
    pipeline: beam.Pipeline,
    jobs: Sequence[Job],
    plans: Mapping[str, DatasetPlan],
    *,
    stop: bytes | None = None,
) -> beam.PCollection[Summary]:
    """Add the conversion of shards, or the merging of splits, to a pipeline.

    The largest come first: a runner that deals them out in order then ends evenly.
    """
    ordered = sorted(jobs, key=lambda job: (-job.size, job.dataset, job.name))
    return (
        pipeline
        | "Jobs" >> beam.Create(ordered, reshuffle=False)
        | "Spread" >> beam.Reshuffle()
        | "Convert" >> beam.ParDo(DoJob(plans, stop=stop))
    )
