"""Launch of the graph: it runs to its end, and leaves no process or scratch folder however it ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

import apache_beam as beam
import psutil
from apache_beam.metrics import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult

from beam_jobs.graph import NAMESPACE, build_graph
from beam_jobs.options import SCRATCH, RunnerChoice, open_runner, temporary_files_in
from convert.engine.work import Counts, Job
from convert.plan import DatasetPlan
from convert.storage.staging import stage, staging_base, sweep

_LOGGER = logging.getLogger(__name__)
_GRACE = 5.0


def run_pipeline(
    jobs: Sequence[Job],
    plans: Mapping[str, DatasetPlan],
    choice: RunnerChoice,
    *,
    progress: AbstractContextManager[object],
) -> Counts | None:
    """Convert shards, or merge splits, with a runner; return the counters, None if the runner has none.

    ``progress`` is entered once the runner is ready, while the pipeline runs. Errors of a runner pass through.
    """
    # A killed run may have left a folder, also if it left nothing to convert.
    sweep(staging_base(None), prefix=SCRATCH)
    if not jobs:
        with progress:
            return {}
    earlier_children = {child_process.pid for child_process in psutil.Process().children(recursive=True)}
    try:
        with ExitStack() as exit_stack:
            scratch = exit_stack.enter_context(stage(staging_base(None), prefix=SCRATCH))
            runner, options = exit_stack.enter_context(open_runner(choice, scratch))
            # Other runners have further temporary files, which Beam removes when this process ends.
            moves_files = choice.is_local or choice.kind == "DaskRunner"
            with temporary_files_in(scratch) if moves_files else nullcontext():
                pipeline = beam.Pipeline(runner=runner, options=options)
            if choice.kind == "DaskRunner":
                _reach_scheduler(options)
            exit_stack.enter_context(progress)
            build_graph(pipeline, jobs, plans, num_workers=choice.num_workers if choice.is_local else None)
            counters = _run(pipeline)
            _LOGGER.info("counters: %s", counters)
            return counters
    finally:
        if not choice.is_local:
            _end_children(earlier_children)
        # Another run may have been killed meanwhile.
        sweep(staging_base(None), prefix=SCRATCH)


def _reach_scheduler(options: PipelineOptions) -> None:
    """Connect to Dask's scheduler and leave again; raises OSError if it does not answer."""
    from dask.distributed import Client

    beam_options = options.get_all_options()
    names = [name for name in ("address", "scheduler_file", "timeout") if beam_options.get(name)]
    Client(**{name: beam_options[name] for name in names}).close()


def _run(pipeline: beam.Pipeline) -> Counts | None:
    result = pipeline.run()
    try:
        result.wait_until_finish()
        return _counters(result)
    finally:
        # Beam's Dask runner leaves its client open, which would complain that the cluster is gone.
        if client := getattr(result, "client", None):
            client.close()


def _counters(result: PipelineResult) -> Counts | None:
    try:
        metrics = result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["counters"]
    except Exception as error:
        # Dask's runner has no metrics, and a service may not answer any more; the conversion is complete anyway.
        _LOGGER.info("the runner gives no counters: %r", error)
        return None
    return dict(sorted((metric.key.metric.name, int(metric.result or 0)) for metric in metrics))


def _end_children(earlier_children: set[int]) -> None:
    """End the worker processes that an interrupted runner leaves."""
    children = [child for child in psutil.Process().children(recursive=True) if child.pid not in earlier_children]
    for child in children:
        child.terminate()
    _, alive = psutil.wait_procs(children, timeout=_GRACE)
    for child in alive:
        child.kill()
