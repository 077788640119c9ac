"""``python -m convert.run``: convert datasets.

Everything is planned first, so that errors show before anything is written. Then an engine (Beam or Ray) converts the
shards that are not finished, and merges the index of each split whose shards are finished. At the end the manifests of
complete datasets are written. ``finalize`` converts no shard.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from convert.command import print_result
from convert.engine.engine import MODULES, Engine
from convert.engine.work import Counts
from convert.errors import ConvertError, UsageError
from convert.jobs import ShardJob, SplitJob
from convert.journal.journal import Journal
from convert.plan import Conversion
from convert.run.arguments import option_flags
from convert.run.config import check_request
from convert.run.finish import finalise
from convert.run.inherited import expand_datasets, inherit_options
from convert.run.outcome import Outcome, exit_code, print_outcome
from convert.run.planning import plan_conversions, select_datasets
from convert.run.progress import ShardProgress
from convert.run.report import describe_missing, describe_plans, format_plan
from convert.run.request import ConvertRequest, parse_request
from convert.run.status import ConversionStatus, empty_split, read_status
from convert.run.work import find_work
from convert.storage.object_store import StoreFolder
from stream.base.arguments import run_command
from stream.base.errors import StreamError
from stream.format.manifest import Manifest
from stream.storage.remote import is_remote, join
from stream.storage.remote_folder import RemoteFolder

ADDRESS_SPACE = 4 << 30
"""Bytes of addresses for each process, most of which the threads of the libraries reserve and never use. With fewer
addresses some libraries wait for ever or end in a traceback."""
_interrupted: list[int] = []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    request = parse_request(arguments)
    _interrupted.clear()
    # Runners log every failure of a worker with its traceback, in addition to our one message.
    level = logging.INFO if request.verbose else logging.CRITICAL + 1
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    return run_command(
        partial(_run, request), path=request.output, interrupted="interrupted; run the same command again to continue"
    )


def _run(request: ConvertRequest) -> int:
    try:
        request = expand_datasets(request) if request.command == "remove" else inherit_options(request)
        config = check_request(request)
        request = request.with_absolute_paths()
        engine = _choose_engine(request)
        for path in filter(is_remote, (*request.source, request.output)):
            # Checked now, because work that was started waits longer for a store.
            RemoteFolder(StoreFolder(path).url).check()
        if request.command == "remove":
            return _remove(request)
        conversions = plan_conversions(request, config)
        _check_reach(engine, conversions)
        statuses = find_work(conversions, request)
        if request.dry_run:
            plan_rows = describe_plans(statuses)
            print_result(json.dumps(plan_rows, indent=1) if request.json else format_plan(plan_rows))
            return 0
        counters = {} if request.command == "finalize" else _convert(statuses, request, engine)
        if engine.only_translates:
            print("Dataflow's translation took the graph; --dry_run: nothing was sent or converted")
            return 0
        outcome = _finish(statuses, request, engine, counters=counters)
        print_outcome(outcome, request)
        return exit_code(outcome, request)
    except (ImportError, MemoryError, SystemError) as error:
        # Python itself ends with a SystemError where memory runs out during an import.
        reason = "a library cannot be loaded by" if isinstance(error, ImportError) else "there is not enough memory for"
        detail = " ".join(str(error).split())
        details = f" ({detail})" if detail else ""
        raise ConvertError(f"{reason} this process{details}; see its limits with ulimit -a") from None


def _interrupt(signum: int, stack_frame: object) -> None:
    # Beam's in-process runner turns an exception inside a DoFn into a RuntimeError, so it is noted as well.
    _interrupted.append(signum)
    raise KeyboardInterrupt


def _choose_engine(request: ConvertRequest) -> Engine:
    """Return the engine that options ask for; raises UsageError before anything is written or removed."""
    engine: Engine = importlib.import_module(MODULES[request.engine]).make_engine(
        request.beam_arguments,
        address=request.address,
        num_workers=request.num_workers,
        program_flags=option_flags(request.command),
    )
    return engine


def _check_reach(engine: Engine, conversions: Sequence[Conversion]) -> None:
    """Raise UsageError if the workers of a service cannot reach a source or an output."""
    paths = [path for conversion in conversions for path in (conversion.source.path, conversion.target)]
    local_paths = [path for path in paths if not is_remote(path)]
    if local_paths and not engine.sees_local_paths:
        others = " and others" if local_paths[1:] else ""
        raise UsageError(
            f"the workers of {engine.name} cannot reach {local_paths[0]}{others}; copy the source to a bucket, "
            "and give gs:// or s3:// for --source and --output"
        )


def _remove(request: ConvertRequest) -> int:
    """Remove the converted files of the datasets."""
    for selected in select_datasets(request)[0]:
        spec = selected.spec
        output = join(request.output, spec.name, spec.version)
        splits = ", ".join(Journal(output).splits())
        if not request.dry_run:
            Journal(output).remove_output()
        print(f"{spec.name}: {splits or 'nothing'} {'to remove' if request.dry_run else 'removed'} in {output}")
    return 0


def _convert(statuses: Sequence[ConversionStatus], request: ConvertRequest, engine: Engine) -> Counts | None:
    """Convert this task's share of the shards that are not finished; returns the engine's counts, None without any."""
    all_jobs = [job for status in statuses for shard_job in status.conversion.jobs for job in shard_job.pieces()]
    pending_jobs = [job for status in statuses for shard_job in status.pending_jobs for job in shard_job.pieces()]
    pending = {(job.dataset, job.name): job for job in pending_jobs}
    # The share is one of all jobs, finished or not, so that it is the same however far the tasks are.
    share = [(job.dataset, job.name) for job in all_jobs[request.task_index :: request.task_count]]
    jobs = [pending[key] for key in share if key in pending]

    @contextlib.contextmanager
    def started() -> Iterator[None]:
        # Only now, as a runner that cannot start must leave the output as it is.
        if not engine.only_translates:
            _start_journals(statuses, jobs)
        plans = {status.name: status.conversion.plan for status in statuses}
        outputs = [(job, plans[job.dataset].output) for job in jobs]
        with ShardProgress(outputs, record_noun=plans[jobs[0].dataset].layout) if jobs else contextlib.nullcontext():
            yield

    return _run_jobs(jobs, statuses, engine, progress=started())


def _start_journals(statuses: Sequence[ConversionStatus], jobs: Sequence[ShardJob]) -> None:
    """Start the journals, and forget the shards that are converted again."""
    for status in statuses:
        journal = status.conversion.journal
        if status.discards_output:
            journal.remove_output()
        if not status.complete:
            journal.begin(status.conversion.journal_parameters)
            journal.remove_stale()
        stems = {job.stem for job in jobs if job.dataset == status.name}
        if forgotten := stems & {*status.redone_stems, *status.finished}:
            journal.forget(forgotten)


def _merge(statuses: Sequence[ConversionStatus], engine: Engine) -> Counts | None:
    """Merge the splits whose shards are finished; returns the engine's counts, None without any."""
    jobs: list[SplitJob] = []
    for status in statuses:
        current = read_status(status.conversion, redone_stems=status.redone_stems)
        jobs += current.pending_merges if not current.pending_jobs else ()
    if not jobs:
        return {}
    print(f"merging the index of {len(jobs):,} split{'s' if len(jobs) > 1 else ''}", file=sys.stderr)
    return _run_jobs(jobs, statuses, engine, progress=contextlib.nullcontext())


def _run_jobs(
    jobs: Sequence[ShardJob] | Sequence[SplitJob],
    statuses: Sequence[ConversionStatus],
    engine: Engine,
    *,
    progress: contextlib.AbstractContextManager[object],
) -> Counts | None:
    """Have the engine do jobs, and remove the temporary files of its workers."""
    _check_address_space()
    try:
        return engine.run(jobs, {status.name: status.conversion.plan for status in statuses}, progress=progress)
    except Exception:
        if _interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        for status in statuses:
            status.conversion.journal.remove_stale()


def _check_address_space() -> None:
    """Raise UsageError if this process may not have the addresses that a conversion takes (``ulimit -v``)."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft_limit != resource.RLIM_INFINITY and soft_limit < ADDRESS_SPACE:
        raise UsageError(
            f"the address space is limited to {soft_limit / 1e9:.1f} GB (ulimit -v), each process of a conversion "
            f"takes {ADDRESS_SPACE / 1e9:.1f} GB of it, most of which is never used; raise the limit, or limit memory "
            "with a control group instead"
        )


def _finish(
    statuses: Sequence[ConversionStatus], request: ConvertRequest, engine: Engine, *, counters: Counts | None
) -> Outcome:
    """Merge the splits and write the manifests of complete datasets."""
    missing = []
    if request.command == "finalize":
        missing = [describe_missing(status) for status in statuses if status.pending_jobs]
        statuses = [status for status in statuses if not status.pending_jobs]
    empty = {status.name: message for status in statuses if (message := empty_split(status.conversion))}
    useful = [status for status in statuses if status.name not in empty]
    merge_counters = _merge(useful, engine)
    sums = Counter(counters)
    sums.update(merge_counters)
    return Outcome(
        missing=missing,
        empty=empty,
        manifests=[(status, _write_manifest(status)) for status in useful],
        counters=None if counters is None or merge_counters is None else dict(sorted(sums.items())),
    )


def _write_manifest(status: ConversionStatus) -> Manifest | None:
    """Write the manifest of a dataset if it is complete, and replace the output that ``--overwrite`` named."""
    conversion = status.conversion
    conversion.journal.remove_stale()
    try:
        manifest = finalise(conversion, redone_stems=status.redone_stems)
        if manifest is not None and conversion.target != conversion.plan.output:
            Journal(conversion.target).adopt(conversion.journal, manifest)
        return manifest
    except StreamError:
        conversion.journal.remove_stale()
        raise
