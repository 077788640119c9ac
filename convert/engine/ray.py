"""Ray as an engine of conversions: each job is a task of one core, which Ray places where one is free."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from convert.engine.work import Counts, Job, largest_first, try_job
from convert.errors import ConvertError, UsageError
from convert.plan import DatasetPlan
from stream.base.machine import usable_processors

_RETRIES = 3
"""Times that a job is given to another worker when its worker or node died."""
_CONNECT_S = 5.0
_TICK = 0.5
_TOGETHER = 100
"""Results to wait for together, as each wait of Ray looks at all jobs."""


class RayEngine:
    """Workers of a Ray cluster, or of a cluster on this machine that ends with the conversion.

    Args:
        address: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``; None for the variable ``RAY_ADDRESS``, else this
            machine.
        num_workers: Most jobs at once, None for as many as the cluster has cores, also those that it adds later.
    """

    name = "Ray"
    sees_local_paths = True
    only_translates = False

    def __init__(self, *, address: str | None, num_workers: int | None) -> None:
        self._address = address or os.environ.get("RAY_ADDRESS") or None
        self._num_workers = num_workers

    def run(
        self, jobs: Sequence[Job], plans: Mapping[str, DatasetPlan], *, progress: AbstractContextManager[object]
    ) -> Counts:
        """Do jobs as tasks."""
        if not jobs:
            with progress:
                return {}
        with _connected(self._address, num_workers=self._num_workers), progress:
            return self._run(largest_first(jobs), plans)

    def _run(self, jobs: Sequence[Job], plans: Mapping[str, DatasetPlan]) -> Counts:
        import ray

        do_remotely = ray.remote(num_cpus=1, max_retries=_RETRIES)(_do)
        plan_references = {dataset: ray.put(plan) for dataset, plan in plans.items()}
        version = importlib.metadata.version("pairstream")
        waiting, running, counts = list(jobs)[::-1], dict[Any, Job](), Counter[str]()
        try:
            while waiting or running:
                while waiting and (self._num_workers is None or len(running) < self._num_workers):
                    job = waiting.pop()
                    running[do_remotely.remote(job, plan_references[job.dataset], version)] = job
                done, _ = ray.wait(list(running), num_returns=min(len(running), _TOGETHER), timeout=_TICK)
                for reference in done:
                    counts.update(_result(reference, running.pop(reference)))
            return dict(sorted(counts.items()))
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def make_engine(
    arguments: Sequence[str], *, address: str | None, num_workers: int | None, program_flags: Sequence[str]
) -> RayEngine:
    """Return the engine; raises UsageError if Ray is not installed, or for an argument that nobody knows."""
    if arguments:
        raise UsageError(f"unknown option {arguments[0]}; with --engine ray, options of Beam have no effect")
    try:
        importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError("Ray is not installed; pip install -c constraints.txt -e '.[ray]'") from None
    return RayEngine(address=address, num_workers=num_workers)


def _do(job: Job, plan: DatasetPlan, version: str) -> Counts | ConvertError:
    """Do a job in a worker of Ray."""
    here = importlib.metadata.version("pairstream")
    if here != version:
        return UsageError(f"{socket.gethostname()} has pairstream {here}, this process {version}; install one version")
    return try_job(job, plan)


def _result(reference: Any, job: Job) -> Counts:
    """Return the counts of a job that has ended; raises ConvertError if it failed."""
    import ray

    try:
        result = ray.get(reference)
    except ray.exceptions.RayError as error:
        raise ConvertError(_explain(error, job)) from None
    if isinstance(result, ConvertError):
        raise result
    counts: Counts = result
    return counts


def _explain(error: Exception, job: Job) -> str:
    import ray

    job_name = f"{job.dataset} {job.name}"
    text = " ".join(str(error).split())
    if "ModuleNotFoundError" in text:
        return f"a node of the Ray cluster cannot import this package ({text[-200:]}); install pairstream on all nodes"
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return f"a node ran out of memory {_RETRIES + 1} times at {job_name}; start Ray with fewer --num-cpus there"
    if isinstance(error, ray.exceptions.WorkerCrashedError | ray.exceptions.NodeDiedError):
        return f"{_RETRIES + 1} workers of Ray died at {job_name}; run the same command again to continue"
    return f"Ray failed at {job_name}: {type(error).__name__}: {text[:300]}"


@contextlib.contextmanager
def _connected(address: str | None, *, num_workers: int | None) -> Iterator[None]:
    """Connect to a cluster, or start one on this machine; leave or end it with the context."""
    # Ray would export figures of its use, and print a warning about it.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    quiet: dict[str, Any] = {"logging_level": logging.CRITICAL, "log_to_driver": False, "configure_logging": False}
    try:
        if address is None:
            ray.init(num_cpus=num_workers or usable_processors(), include_dashboard=False, **quiet)
        else:
            _check_address(address)
            ray.init(address=address, **quiet)
    except Exception as error:
        # Ray raises plain exceptions too, such as for a node that does not start in time.
        reason = " ".join(str(error).split())
        where = "on this machine" if address is None else f"at {address}"
        raise UsageError(
            f"no Ray cluster {where}: {reason[:300]}; start one with ray start --head, or name its --address"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raise ConnectionError if nothing answers at an address: Ray itself would wait for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
        except OSError as error:
            raise ConnectionError(error.strerror or str(error)) from None
