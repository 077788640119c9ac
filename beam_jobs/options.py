"""Beam's runners and their options, chosen from the command line."""

from __future__ import annotations

import argparse
import difflib
import importlib
import logging
import resource
import socket
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions, PortableOptions, TestOptions
from apache_beam.runners import create_runner
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.runner import PipelineRunner

from convert.errors import UsageError
from stream.base.errors import closest

LOCAL_RUNNERS = ("FnApiRunner", "DirectRunner")
"""Names of Beam's in-process FnApiRunner: its DirectRunner would try to download a Go binary (Prism) first."""
_OTHER_RUNNERS = ("DaskRunner", "DataflowRunner", "PortableRunner")
_DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"
_MODULES = {
    "DaskRunner": ("apache_beam.runners.dask.dask_runner", "dask.distributed"),
    "DataflowRunner": ("apache_beam.runners.dataflow.internal.apiclient",),
}
"""Modules that come with the extra of a runner."""
_DASK_FILES = 256
_DASK_WORKER = "import logging, signal; logging.disable(logging.ERROR); signal.signal(signal.SIGINT, signal.SIG_IGN)"
"""Silences Dask's workers, and leaves Ctrl-C, which a terminal sends to all processes, to the main process."""
SCRATCH = "pairstream-beam-"
"""Prefix of scratch folders."""
_LEAVE_FILES = ("DataflowRunner", "PortableRunner")
"""Runners for which Beam leaves a folder of files for workers."""
_CONNECT_S = 20.0
_DASK_PLACES = ("--dask_client_address", "--dask_scheduler_file")


@dataclass(frozen=True, kw_only=True)
class RunnerChoice:
    """A runner by name, Beam's arguments for it, and the worker processes on this machine."""

    name: str
    arguments: tuple[str, ...]
    num_workers: int

    @property
    def is_local(self) -> bool:
        """True for Beam's in-process runner."""
        return self.name in LOCAL_RUNNERS

    @property
    def kind(self) -> str:
        """Name without the module."""
        return self.name.rsplit(".", 1)[-1]

    @property
    def is_service(self) -> bool:
        """True if no worker is on a machine of ours."""
        return self.kind == "DataflowRunner"

    @property
    def only_translates(self) -> bool:
        """True if the graph is made ready for Dataflow and not sent (``--dry_run=True``)."""
        return self.is_service and bool(PipelineOptions(list(self.arguments)).view_as(TestOptions).dry_run)


def choose_runner(arguments: Sequence[str], *, num_workers: int, program_flags: Sequence[str]) -> RunnerChoice:
    """Return the runner that ``arguments`` ask for, which the program's own parser did not know.

    ``num_workers`` is for a local runner. ``program_flags`` are the program's, to suggest one for a typo. Raises
    UsageError if Beam does not know an option either, or there is no such runner, or it is not installed or reached.
    """
    runner_parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    runner_parser.add_argument("--runner", default=LOCAL_RUNNERS[0])
    runner, remaining = runner_parser.parse_known_args(list(arguments))
    choice = RunnerChoice(name=_full_name(str(runner.runner)), arguments=tuple(remaining), num_workers=num_workers)
    _check_runner(choice)
    parser: Any = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)
    try:
        _, unknown = parser.parse_known_args(remaining)
    except argparse.ArgumentError as error:
        raise UsageError(f"Beam option {error}") from None
    if unknown:
        beam_flags = [option_flag for action in parser._actions for option_flag in action.option_strings]
        hints = [
            f"; did you mean {close_flag}?"
            for known_flags in (program_flags, beam_flags)
            for close_flag in difflib.get_close_matches(unknown[0].split("=")[0], known_flags, n=1, cutoff=0.8)
        ]
        raise UsageError(f"unknown option {unknown[0]}, neither ours nor Beam's{''.join(hints[:1])}")
    if choice.name == "PortableRunner":
        _reach_job_server(PipelineOptions(remaining).view_as(PortableOptions).job_endpoint)
    return choice


def _reach_job_server(endpoint: str | None) -> None:
    """Raise UsageError unless a job server answers: Beam would wait for it without a word."""
    host, _, port = (endpoint or "").rpartition(":")
    if not (host and port.isdecimal()):
        raise UsageError("the PortableRunner needs --job_endpoint HOST:PORT, the job server of a cluster")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--job_endpoint {endpoint}: nothing answers there ({reason})") from None


@contextmanager
def open_runner(choice: RunnerChoice, scratch: Path) -> Iterator[tuple[PipelineRunner, PipelineOptions]]:
    """Make the runner, its options, and a local Dask cluster if one is needed, for the time of the context.

    Files that Beam or Dask leaves are made in ``scratch``. Raises UsageError if Dask may not open enough files.
    """
    if choice.is_local:
        yield fn_runner.FnApiRunner(), PipelineOptions(list(choice.arguments))
        return
    if choice.kind == "DaskRunner":
        with _dask_arguments(choice, scratch) as arguments:
            yield create_runner(_DASK), PipelineOptions(arguments)
        return
    with temporary_files_in(scratch) if choice.name in _LEAVE_FILES else nullcontext():
        options = PipelineOptions([*choice.arguments, f"--runner={choice.name}"])
        # Each thread would convert its own shard, in the memory of one process and on one core.
        threads = options.view_as(DebugOptions)
        threads.number_of_worker_harness_threads = threads.number_of_worker_harness_threads or 1
        yield create_runner(choice.name), options


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Make the temporary files of this process in a folder."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextmanager
def _dask_arguments(choice: RunnerChoice, scratch: Path) -> Iterator[list[str]]:
    import dask
    from dask.distributed import LocalCluster

    for logger_name in ("distributed", "tornado"):
        logging.getLogger(logger_name).setLevel(logging.CRITICAL)
    # The first pipeline's tracker ends with its workers, and the second pipeline starts another.
    warnings.filterwarnings("ignore", "resource_tracker: process died unexpectedly")

    arguments = list(choice.arguments)
    if not _mentions(arguments, ("--dask_npartitions", "--dask_partition_size")):
        # With one shard a partition, the scheduler deals shards out one by one.
        arguments.append("--dask_partition_size=1")
    if _mentions(arguments, _DASK_PLACES):
        yield arguments
        return
    max_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= max_files < _DASK_FILES:
        # With fewer files Dask's processes fail one by one, and leave semaphores in shared memory.
        raise UsageError(
            f"only {max_files} files may be open (ulimit -n), a local Dask cluster needs {_DASK_FILES}; raise the "
            "limit, or convert without Dask"
        )
    with (
        # By default Dask makes a folder in the current one.
        dask.config.set({"temporary-directory": str(scratch)}),
        LocalCluster(
            local_directory=str(scratch),
            n_workers=choice.num_workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            preload=[_DASK_WORKER],
        ) as cluster,
    ):
        yield [*arguments, f"--dask_client_address={cluster.scheduler_address}"]


def _mentions(arguments: Sequence[str], option_flags: Sequence[str]) -> bool:
    return any(argument.split("=")[0] in option_flags for argument in arguments)


def _full_name(runner_name: str) -> str:
    """Return the name of a runner, which may be given in any case and without its ending, as Beam allows."""
    full_names = {runner.lower(): runner for runner in (*LOCAL_RUNNERS, *_OTHER_RUNNERS)}
    return full_names.get(runner_name.lower(), full_names.get(f"{runner_name.lower()}runner", runner_name))


def _check_runner(choice: RunnerChoice) -> None:
    try:
        # Importing the module of a runner adds the runner's options.
        for module in _MODULES.get(choice.kind, ()):
            importlib.import_module(module)
    except ImportError:
        extra_name = choice.kind.removesuffix("Runner")
        raise UsageError(
            f"the {extra_name} runner is not installed; pip install -c constraints.txt -e '.[{extra_name.lower()}]'"
        ) from None
    if choice.is_local or choice.kind == "DaskRunner":
        return
    try:
        create_runner(choice.name)
    except (ImportError, AttributeError, ValueError):
        hint = closest(choice.name, (*LOCAL_RUNNERS, *_OTHER_RUNNERS), noun="runners")
        raise UsageError(f"no Beam runner {choice.name!r}; {hint}") from None
