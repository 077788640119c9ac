"""Run the graph and wait for it; nothing of it is left behind, however it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import apache_beam as beam
import psutil

from beam_jobs.graph import build_graph
from beam_jobs.options import choose_runner, open_runner
from convert.plan import DatasetPlan, ShardJob

_GRACE = 5.0


def run_pipeline(
    jobs: Sequence[ShardJob],
    plans: Mapping[str, DatasetPlan],
    arguments: Sequence[str],
    *,
    num_workers: int,
    known: Sequence[str],
    progress: AbstractContextManager[object],
) -> None:
    """Convert ``jobs`` with the runner that Beam's ``arguments`` name.

    Args:
        plans: by dataset.
        arguments: Beam's options as on the command line.
        num_workers: worker processes of a local runner.
        known: the program's own options, to suggest one for a typo.
        progress: entered while the pipeline runs.

    Raises:
        UsageError: no such runner or option. Anything else that a runner raises passes through.
    """
    choice = choose_runner(arguments, num_workers=num_workers, known=known)
    if not jobs:
        return
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    try:
        with progress, open_runner(choice) as (runner, options):
            pipeline = beam.Pipeline(runner=runner, options=options)
            build_graph(pipeline, jobs, plans)
            result = pipeline.run()
            try:
                result.wait_until_finish()
            finally:
                if choice.is_dask:
                    result.client.close()
    finally:
        _end_children(before)


def _end_children(before: set[int]) -> None:
    """End the worker processes that a runner left; Beam does not when it is interrupted."""
    children = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    for child in children:
        child.terminate()
    _, alive = psutil.wait_procs(children, timeout=_GRACE)
    for child in alive:
        child.kill()
