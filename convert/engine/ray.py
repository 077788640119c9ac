"""Ray as an engine of conversions: each job is a task of one core, which Ray runs where one is free."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from convert.engine.versions import library_versions
from convert.engine.work import Counts, Job, do_job, largest_first
from convert.errors import ConvertError, UsageError
from convert.plan import DatasetPlan
from stream.base.errors import closest
from stream.base.extras import missing
from stream.base.machine import usable_processors

_LOGGER = logging.getLogger(__name__)

_RETRIES = 3
"""Times that a job is given to another worker because its worker or node died."""
_LOCKED_S = 120.0
"""Seconds for which a network file system may keep the lock of a worker whose node died; NFS keeps it for 90."""
_CONNECT_S, _LEAVE_S, _TICK = 5.0, 5.0, 0.5
_ANSWER_S = 20.0
"""Seconds for which the head of a busy cluster may be silent."""
_STORE_BYTES = 80 << 20
"""Shared memory of a cluster on this machine, which nothing uses; Ray takes no less."""
_MOST_SUBMITTED = 10_000
"""Jobs that Ray has at once: enough for a cluster that grows by the tasks that wait."""
_TOGETHER = 100
"""Results to wait for together, as each wait of Ray looks at all jobs."""
_REMEDIES = {
    "Version mismatch": "install the same versions of Ray and Python on all nodes",
    "Failed to connect": "its token is another one than that of this account, ~/.ray/auth_token, or it is not Ray",
    "": "start one with `ray start --head`, and name its HOST:PORT",
}
"""Remedies by a part of the reason for which Ray does not connect."""


class RayEngine:
    """Workers of a Ray cluster, or of a cluster on this machine that ends with this engine.

    ``address`` is ``auto`` or ``HOST:PORT``, by default RAY_ADDRESS. ``num_workers`` is the most jobs at once, None for
    as many as the cluster has cores, also those that it adds later. Raises UsageError if Ray is not installed, or an
    argument or the address cannot be used.
    """

    name = "Ray"
    sees_local_paths = True
    only_translates = False

    def __init__(
        self, arguments: Sequence[str], *, address: str | None, num_workers: int | None, program_flags: Sequence[str]
    ) -> None:
        if arguments:
            hint = closest(arguments[0].partition("=")[0], program_flags, noun="options")
            raise UsageError(f"unknown option {arguments[0]}; {hint}; options of Beam do not go with --engine ray")
        if importlib.util.find_spec("ray") is None:
            raise UsageError(missing("ray", "ray", by="--engine ray"))
        self._address = address or os.environ.get("RAY_ADDRESS") or None
        _check_form(self._address)
        self._num_workers = num_workers
        self._stack = contextlib.ExitStack()
        # Shards and splits are done one after the other by the same cluster, whose start takes seconds.
        weakref.finalize(self, self._stack.close)
        self._is_connected = False

    def run(
        self, jobs: Sequence[Job], plans: Mapping[str, DatasetPlan], *, progress: AbstractContextManager[object]
    ) -> Counts:
        """Do jobs as tasks of Ray."""
        # Ray prints what happens to nodes, such as their deaths, on the standard output, which is for the result.
        with contextlib.redirect_stdout(sys.stderr):
            if jobs and not self._is_connected:
                self._stack.enter_context(_connected(self._address, num_workers=self._num_workers))
                self._is_connected = True
            try:
                with progress:
                    return _do_jobs(largest_first(jobs), plans, num_workers=self._num_workers) if jobs else {}
            except BaseException:
                # The traceback keeps this engine alive: its finalizer might run inside of Ray's own, which fails.
                self._stack.close()
                raise


make_engine = RayEngine


def _do_jobs(jobs: Sequence[Job], plans: Mapping[str, DatasetPlan], *, num_workers: int | None) -> Counts:
    """Do jobs in their order, those of dead workers again, and return the sums of their counts."""
    import ray

    do_remotely = ray.remote(num_cpus=1, max_retries=0)(_do)
    versions = library_versions()
    waiting, running = deque((job, 0) for job in jobs), dict[Any, tuple[Job, int]]()
    counts = Counter[str]()
    try:
        while waiting or running:
            while waiting and len(running) < (num_workers or _MOST_SUBMITTED):
                job, num_deaths = waiting.popleft()
                lock_s = _LOCKED_S if num_deaths else 0.0
                # A plan has 4 to 7 kB. As a separate object it would be lost with the node that stores it.
                reference = do_remotely.remote(job, plans[job.dataset], versions, lock_s)
                running[reference] = job, num_deaths
            done, _ = ray.wait(list(running), num_returns=min(len(running), _TOGETHER), timeout=_TICK)
            for reference in done:
                job, num_deaths = running.pop(reference)
                result = _result(reference, f"{job.dataset} {job.name}", num_deaths=num_deaths)
                if result is None:
                    waiting.append((job, num_deaths + 1))
                else:
                    counts.update(result)
        return dict(sorted(counts.items()))
    finally:
        _cancel(list(running))


def _check_nodes() -> None:
    """Raise UsageError if a node of the cluster has other versions; nodes that join later find out at their first job.

    If all jobs of a node ended at once with this error, the others would be cancelled while they end, which kills this
    process in some runs: https://github.com/ray-project/ray/pull/54798 has the race.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    compare = ray.remote(num_cpus=0, max_retries=0)(_differing_version)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    strategies = [NodeAffinitySchedulingStrategy(node, soft=True) for node in nodes]
    versions = library_versions()
    running = [compare.options(scheduling_strategy=strategy).remote(versions) for strategy in strategies]
    for reference in running:
        # If a node died, its jobs will find out, if there are any.
        _result(reference, "the comparison of versions", num_deaths=0)
    if not ray.cluster_resources().get("CPU"):
        print("the Ray cluster has no cores yet; the jobs wait for nodes", file=sys.stderr)


def _differing_version(versions: Mapping[str, str]) -> UsageError | None:
    """Return the error of a node on which a library has another version than in the process that converts."""
    local_versions = library_versions()
    for name, version in versions.items():
        if local_versions[name] != version:
            return UsageError(
                f"{socket.gethostname()} has {name} {local_versions[name]}, this process has {version}, so files might "
                "differ; install the same versions on all nodes (-c constraints.txt)"
            )
    return None


def _do(job: Job, plan: DatasetPlan, versions: Mapping[str, str], lock_s: float) -> Counts | ConvertError:
    """Do a job in a worker of Ray, which waits ``lock_s`` seconds for the lock of a worker that died."""
    if (difference := _differing_version(versions)) is not None:
        return difference
    deadline = time.monotonic() + lock_s
    while True:
        result = do_job(job, plan)
        is_locked = isinstance(result, dict) and not result.keys().isdisjoint(("shards_elsewhere", "splits_elsewhere"))
        if not is_locked or time.monotonic() >= deadline:
            return _name_host(result) if isinstance(result, ConvertError) else result
        time.sleep(_TICK)


def _name_host(error: ConvertError) -> ConvertError:
    """Return the error with the name of this machine, which may be the only one that sees no source or output."""
    host = socket.gethostname()
    return error if host in str(error) else type(error)(f"{error} (on {host})")


def _result(reference: Any, doing: str, *, num_deaths: int) -> Any:
    """Return the result of a task that has ended, None if its worker died; raises ConvertError if it failed."""
    import ray

    try:
        result = ray.get(reference)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError) as error:
        if num_deaths < _RETRIES:
            _LOGGER.info("a worker died at %s: %s", doing, error)
            return None
        reason = ""
        if isinstance(error, ray.exceptions.OutOfMemoryError):
            reason = ", the last because memory ran out on its node: start Ray there with fewer --num-cpus"
        raise ConvertError(
            f"{doing}: {_RETRIES + 1} workers of Ray died{reason}; run the same command again to continue"
        ) from None
    except ray.exceptions.RayError as error:
        raise ConvertError(_explain(error, doing)) from None
    if isinstance(result, ConvertError):
        raise result
    return result


def _explain(error: Exception, doing: str) -> str:
    text = " ".join(str(error).split())
    if "ModuleNotFoundError" in text or "No module named" in text:
        name = text.rpartition("No module named ")[2].split()[0]
        return f"a node of the Ray cluster has no module {name}; install the same version of pairstream on all nodes"
    return f"Ray failed at {doing}: {type(error).__name__}: {text[:300]}"


def _cancel(references: list[Any]) -> None:
    """End tasks: at first so that they remove their temporary files, those that do not end by killing their worker.

    The last tasks are the first, so that workers which become free begin none of those that wait: cancelling a task in
    the moment in which it ends may kill this process (see ``_check_nodes``).
    """
    import ray

    for force in (False, True):
        if not references or not ray.is_initialized():
            return
        with contextlib.suppress(ray.exceptions.RayError):
            for reference in reversed(references):
                ray.cancel(reference, force=force)
            _, references = ray.wait(references, num_returns=len(references), timeout=_LEAVE_S)


@contextlib.contextmanager
def _connected(address: str | None, *, num_workers: int | None) -> Iterator[None]:
    """Connect to a cluster, or start one on this machine; leave or end it with the context."""
    _prepare_environment(address)
    import ray

    # Ray logs above the level of the root logger otherwise.
    logging.getLogger("ray").setLevel(logging.getLogger().level)
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    local: dict[str, Any] = {"num_cpus": num_workers or usable_processors(), "object_store_memory": _STORE_BYTES}
    # Ray ends the process without our message.
    handle_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        if address is None:
            # Without an address, Ray would connect to a cluster that somebody else runs on this machine.
            context: Any = ray.init(address="local", include_dashboard=False, **local, **quiet)
        else:
            _check_answer(address)
            context = ray.init(address=address, **quiet)
    except Exception as error:
        # Ray raises plain exceptions too, such as for a node that does not start in time.
        reason = " ".join(str(error).split())[:300]
        if address is None:
            raise UsageError(f"Ray does not start on this machine: {reason}") from None
        remedy = next(remedy for part, remedy in _REMEDIES.items() if part in reason)
        if "Could not find any running Ray instance" in reason:
            reason = "none runs on this machine"
        raise UsageError(f"no Ray cluster at {address}: {reason}; {remedy}") from None
    finally:
        signal.signal(signal.SIGTERM, handle_sigterm)
    try:
        if address is not None:
            _check_nodes()
        yield
    finally:
        ray.shutdown()
        if address is None:
            shutil.rmtree(context.address_info["session_dir"], ignore_errors=True)


def _prepare_environment(address: str | None) -> None:
    """Set variables that Ray reads when it is imported."""
    if address is None and os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
        # Ray would write ~/.ray/auth_token, which changes the clusters that this account starts later.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    if address is not None:
        # With another token Ray would try 20 times, each with a warning and a second's pause.
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "3")
    # Without this Ray prints a tip about accelerators.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray keeps repeated messages back otherwise, and prints them when it ends.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    # `ray start` takes the token of this account if there is one. Ray's clients do so for the address auto only.
    token_path = os.environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token")
    if "RAY_AUTH_TOKEN" in os.environ or os.path.exists(token_path):
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _check_form(address: str | None) -> None:
    """Raise UsageError if an address is neither ``auto`` nor ``HOST:PORT``."""
    if address is None or address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address:
        raise UsageError(f"--address {address}: run this command on a node of the cluster, with HOST:PORT or auto")
    if not (host and port.isdecimal()):
        raise UsageError(f"--address {address}: expected HOST:PORT, such as 10.0.0.1:6379, or auto")


def _check_answer(address: str) -> None:
    """Raise ConnectionError if no server of Ray's kind answers at an address: Ray itself would wait for minutes."""
    import grpc
    from ray._private.services import get_ray_address_from_environment

    # The address auto remains that of a cluster which was killed.
    address = get_ray_address_from_environment(address, None) if address == "auto" else address

    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(getattr(error, "strerror", None) or str(error)) from None
    if os.environ.get("RAY_USE_TLS", "0") == "0":
        with grpc.insecure_channel(address) as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=_ANSWER_S)
            except grpc.FutureTimeoutError:
                raise ConnectionError(f"no Ray answered there for {_ANSWER_S:.0f} s") from None
