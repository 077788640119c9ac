"""The Beam graph: one element a source shard, one linear ParDo.

No image goes through a shuffle, no output is tagged and no bundle is finished, so that it runs on every runner: Beam's
Dask runner, for one, runs only the ancestors of the last transform and merges tagged outputs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import apache_beam as beam
from apache_beam.metrics import Metrics

from convert.errors import ConvertError
from convert.plan import DatasetPlan, ShardJob
from convert.shard import convert_shard


class ConvertShard(beam.DoFn):
    """Converts the shard that an element describes and yields a small record of what came out."""

    def __init__(self, plans: Mapping[str, DatasetPlan], *, stop_file: str | None = None) -> None:
        """Small, travels with the graph.

        Args:
            plans: by dataset.
            stop_file: where a worker that fails leaves its message, and then waits to be ended with the others. Beam's
                local runner would let the others work to the end, print the traceback several times, and hang if it
                cannot. None for runners that try a failed element again.
        """
        super().__init__()
        self._plans = dict(plans)
        self._stop_file = stop_file

    def process(self, job: ShardJob) -> Iterator[dict[str, str | int]]:
        """Yield dataset, shard, records, episodes and bytes; nothing where another process is converting the shard."""
        try:
            status = convert_shard(job, self._plans[job.dataset])
        except ConvertError as error:
            self._stop(error)
            raise
        if status is None:
            Metrics.counter("convert", "shards_elsewhere").inc()
            return
        entry = status.entry
        Metrics.counter("convert", "shards").inc()
        Metrics.counter("convert", "records").inc(entry.records)
        Metrics.counter("convert", "episodes").inc(entry.episodes)
        Metrics.counter("convert", "left_out").inc(sum(entry.left_out.values()))
        yield {
            "dataset": job.dataset,
            "shard": job.stem,
            "records": entry.records,
            "episodes": entry.episodes,
            "bytes": status.bytes_out,
        }

    def _stop(self, error: ConvertError) -> None:
        if self._stop_file is None:
            return
        while True:
            try:
                with open(self._stop_file, "x") as file:
                    file.write(str(error))
            except FileExistsError:
                pass
            except OSError:
                # No room for the message: Beam reports the failure in its own way.
                return
            # Again, because another task that starts just now takes the file for a leftover.
            time.sleep(1)


def build_graph(
    pipeline: beam.Pipeline,
    jobs: Sequence[ShardJob],
    plans: Mapping[str, DatasetPlan],
    *,
    stop_file: str | None = None,
) -> beam.PCollection[dict[str, str | int]]:
    """Add the conversion of ``jobs`` to a pipeline.

    The largest shards come first: a runner that deals them out in order then ends evenly.
    """
    ordered = sorted(jobs, key=lambda job: (-job.bytes, job.dataset, job.stem))
    return (
        pipeline
        | "Shards" >> beam.Create(ordered, reshuffle=False)
        | "Spread" >> beam.Reshuffle()
        | "Convert" >> beam.ParDo(ConvertShard(plans, stop_file=stop_file))
    )
