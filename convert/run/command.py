"""``python -m convert.run``: convert datasets.

Everything is planned first, so that errors show before anything is written. Then one Beam pipeline converts the shards
that are not finished, and a second one merges the index of each split whose shards are finished. At the end the
manifests of complete datasets are written. ``--finalize`` leaves the first pipeline out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from convert.command import print_result, run_command
from convert.errors import EXIT_DAMAGED, EXIT_FAILED, ConvertError, ShardError, UsageError
from convert.plan import Conversion, Options, ShardJob, SplitJob, check_cameras, check_rates, plan_conversion
from convert.registry.registry import load_registry
from convert.run.arguments import build_parser, check_arguments, read_episode_lists
from convert.run.finish import finalise
from convert.run.progress import Progress
from convert.run.report import describe_missing, describe_plan, format_missing, format_plan, format_result, summarise
from convert.run.survey import Survey, barren_split, survey
from convert.run.work import find_work, overwriting_work
from convert.source.lerobot.dataset import find_repository
from convert.source.protocol import Source
from convert.source.rlds.dataset import find_dataset
from convert.tasks.shard import count_damage
from stream.format.manifest import Manifest
from stream.storage.remote import RemoteError, RemoteFolder, is_remote, join

_OUR_ERROR = re.compile(r"convert\.errors\.\w+: (.+)")
_BEAM_SUFFIX = re.compile(r" ?\[while running .*$", re.DOTALL)
ADDRESS_SPACE = 4 << 30
"""Bytes of addresses for each process, most of which the threads of the libraries reserve and never use. With fewer
addresses some libraries wait for ever or end in a traceback."""
_interrupted: list[int] = []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parsed, beam = build_parser().parse_known_args(arguments)
    parsed.beam = beam
    # Runners log every failure of a worker with its traceback, beside our one message.
    level = logging.INFO if parsed.verbose else logging.CRITICAL + 1
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    return run_command(
        lambda: _run(parsed),
        place=parsed.output,
        interrupted="interrupted; run the same command again to go on",
    )


def _run(parsed: Any) -> int:
    try:
        options = check_arguments(parsed)
        only_translates = bool(parsed.beam) and _only_translates(parsed)
        for place in (*parsed.source, parsed.output):
            if is_remote(place):
                RemoteFolder(place).check()
        works = _find_work(_plan(parsed, options), parsed)
        if parsed.dry_run:
            rows = [describe_plan(work) for work in works]
            print_result(json.dumps(rows, indent=1) if parsed.json else format_plan(rows))
            return 0
        if parsed.finalize:
            return _finish(works, parsed, counters={})
        counters = _convert(works, parsed, begin=not only_translates)
        if only_translates:
            print("Dataflow's translation took the graph; --dry_run: nothing was sent or converted")
            return 0
        return _finish(works, parsed, counters=counters)
    except (ImportError, MemoryError, SystemError) as error:
        # Python itself ends with a SystemError where memory runs out during an import.
        why = "a library cannot be loaded by" if isinstance(error, ImportError) else "there is not enough memory for"
        detail = " ".join(str(error).split())
        _tell(f"error: {why} this process{f' ({detail})' if detail else ''}; see its limits with ulimit -a")
        return EXIT_FAILED


def _tell(message: str) -> None:
    print(message, file=sys.stderr)


def _interrupt(signum: int, frame: object) -> None:
    # Beam's in-process runner turns an exception inside a DoFn into a RuntimeError, so it is noted as well.
    _interrupted.append(signum)
    raise KeyboardInterrupt


def _only_translates(parsed: Any) -> bool:
    """Return whether the runner only translates the graph; raises UsageError before anything is written or removed."""
    from beam_jobs.options import choose_runner

    return choose_runner(parsed.beam, num_workers=parsed.num_workers, known=_flags()).only_translates


def _flags() -> list[str]:
    return [flag for action in build_parser()._actions for flag in action.option_strings]


def _plan(parsed: Any, options: Options) -> list[Conversion]:
    ports: dict[str, Source] = {}

    def describe(name: str, repository: str) -> Mapping[str, Any]:
        ports[name] = find_repository(parsed.source, repository)
        return ports[name].entry

    selection = load_registry(config=parsed.config).resolve(parsed.datasets, describe)
    if not parsed.source and any(selected.spec.name not in ports for selected in selection):
        raise UsageError("--source: give the folder with the datasets below it")
    check_rates(selection, options.offset)
    lists = read_episode_lists(parsed.episodes, [selected.spec.name for selected in selection])
    options = replace(options, episode_lists=lists)
    if options.layout == "frames":
        check_cameras(selection, options)
    conversions = []
    for selected in selection:
        spec = selected.spec
        source = ports.get(spec.name) or find_dataset(parsed.source, spec.tfds_name, spec.version)
        output = join(parsed.output, spec.name, spec.version)
        conversions.append(plan_conversion(selected, source, options, output=output))
        for warning in conversions[-1].warnings:
            _tell(f"warning: {spec.name}: {warning}")
    return conversions


def _find_work(conversions: Sequence[Conversion], parsed: Any) -> list[Survey]:
    if not parsed.overwrite:
        return find_work(conversions, parsed.redo, config=parsed.config)
    given = [f"--{name} {value}" for name in ("splits", "episodes") if (value := getattr(parsed, name)) is not None]
    return [overwriting_work(conversion, given[0] if given else None) for conversion in conversions]


def _convert(works: Sequence[Survey], parsed: Any, *, begin: bool) -> dict[str, int] | None:
    """Convert this task's share of the shards that are not finished; returns Beam's counts, None if it has none."""
    unfinished = {(job.dataset, job.stem): job for work in works for job in work.todo}
    everything = [(work, (job.dataset, job.stem)) for work in works for job in work.conversion.jobs]
    share = everything[parsed.task_index :: parsed.task_count]
    jobs = [(unfinished[key], work) for work, key in share if key in unfinished]

    @contextlib.contextmanager
    def started() -> Iterator[None]:
        # Only now, as a runner that cannot start must not cost an earlier conversion.
        if begin:
            _begin(works, jobs, overwrite=parsed.overwrite)
        shown = [(job, work.conversion.plan.output) for job, work in jobs]
        word = works[0].conversion.plan.layout
        with Progress(shown, records=word) if jobs else contextlib.nullcontext():
            yield

    return _run_jobs([job for job, _ in jobs], works, parsed, progress=started())


def _begin(works: Sequence[Survey], jobs: Sequence[tuple[ShardJob, Survey]], *, overwrite: bool) -> None:
    """Remove what ``--overwrite`` replaces, and begin the journals."""
    for work in works:
        if overwrite:
            work.conversion.journal.remove_output()
        if not work.complete:
            work.conversion.journal.begin(work.conversion.journal_parameters)
            work.conversion.journal.remove_stale()
    for job, work in jobs:
        if job.stem in work.again or job.stem in work.finished:
            work.conversion.journal.forget(job.stem)


def _merge(works: Sequence[Survey], parsed: Any) -> dict[str, int] | None:
    """Merge the splits whose shards are finished; returns Beam's counts, None if the runner has none."""
    jobs: list[SplitJob] = []
    for work in works:
        found = survey(work.conversion, again=work.again)
        jobs += found.merges if not found.todo else ()
    if not jobs:
        return {}
    _tell(f"merging the index of {len(jobs):,} split{'s' if len(jobs) > 1 else ''}")
    return _run_jobs(jobs, works, parsed, progress=contextlib.nullcontext())


def _run_jobs(
    jobs: Sequence[ShardJob] | Sequence[SplitJob],
    works: Sequence[Survey],
    parsed: Any,
    *,
    progress: contextlib.AbstractContextManager[object],
) -> dict[str, int] | None:
    _check_address_space()
    from beam_jobs.launch import run_pipeline

    try:
        return run_pipeline(
            jobs,
            {work.name: work.conversion.plan for work in works},
            parsed.beam,
            num_workers=parsed.num_workers,
            known=_flags(),
            progress=progress,
        )
    except Exception as error:
        if _interrupted:
            raise KeyboardInterrupt from None
        raise _explain(error) from error
    finally:
        for work in works:
            work.conversion.journal.remove_stale()


def _check_address_space() -> None:
    """Raise UsageError if this process may not have the addresses that a conversion takes (``ulimit -v``)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and soft < ADDRESS_SPACE:
        raise UsageError(
            f"the address space is limited to {soft / 1e9:.1f} GB (ulimit -v), each process of a conversion takes "
            f"{ADDRESS_SPACE / 1e9:.1f} GB of it, most of which is never used; raise the limit, or limit memory with "
            "a control group instead"
        )


def _explain(error: Exception) -> ConvertError:
    """Return the error with our own message: runners wrap the errors of workers in text."""
    if isinstance(error, ConvertError):
        kind = UsageError if isinstance(error, UsageError) else ShardError
        return kind(_BEAM_SUFFIX.sub("", str(error)))
    text = str(error)
    if match := _OUR_ERROR.search(text):
        return ShardError(_BEAM_SUFFIX.sub("", match[1].split("\\n")[0]).strip())
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return ConvertError(f"the Beam runner failed: {type(error).__name__}: {lines[-1] if lines else ''}")


def _finish(works: Sequence[Survey], parsed: Any, *, counters: dict[str, int] | None) -> int:
    """Merge the splits, write the manifests of complete datasets, print the result, and return the exit code."""
    missing = []
    if parsed.finalize:
        missing = [describe_missing(work) for work in works if work.todo]
        works = [work for work in works if not work.todo]
    barren = {work.name: message for work in works if (message := barren_split(work.conversion))}
    fruitful = [work for work in works if work.name not in barren]
    merged = _merge(fruitful, parsed)
    if counters is not None and merged is not None:
        counters = {name: counters.get(name, 0) + merged.get(name, 0) for name in sorted({*counters, *merged})}
    else:
        counters = None
    manifests = [(work, _write_manifest(work)) for work in fruitful]
    waiting = [work.name for work, manifest in manifests if manifest is None]
    complete = [(work, manifest) for work, manifest in manifests if manifest is not None]
    rows = [
        summarise(manifest, output=work.conversion.plan.output, converted=len(work.todo)) for work, manifest in complete
    ]
    if parsed.json:
        result = {"complete": rows, "waiting": waiting, "counters": counters}
        print_result(json.dumps(result | ({"missing": missing} if parsed.finalize else {}), indent=1))
    else:
        lines = [format_result(rows)] if rows else []
        if rows and (done := sum(work.complete for work in works)):
            lines.append(f"{done} of {len(works)} were complete already")
        if lines or missing:
            print_result("\n".join([*lines, *map(format_missing, missing)]))
    for message in barren.values():
        _tell(f"error: {message}")
    if barren:
        return EXIT_FAILED
    if missing:
        listed = ", ".join(f"{one['dataset']} ({len(one['missing']):,} of {one['shards']:,} shards)" for one in missing)
        _tell(f"error: not complete, shards are missing: {listed}; run those tasks again, then this")
        return EXIT_FAILED
    if waiting:
        _tell(f"not complete, left to other tasks: {', '.join(waiting)}")
        if parsed.task_count == 1:
            _tell("error: another process is converting these; run the same command again when it is done")
            return EXIT_FAILED
    damaged = {work.name: count for work, manifest in complete if (count := count_damage(manifest.left_out))}
    if damaged:
        listed = ", ".join(f"{name} ({count:,})" for name, count in damaged.items())
        _tell(
            f"error: complete, but damaged input was left out: {listed}; see quarantine.jsonl in "
            f"{parsed.output}/<dataset>/<version>. Copy the damaged files again and run the same command: it converts "
            "their shards again"
        )
        return EXIT_DAMAGED
    return 0


def _write_manifest(work: Survey) -> Manifest | None:
    """Write the manifest of a dataset if it is complete."""
    work.conversion.journal.remove_stale()
    try:
        return finalise(work.conversion, again=work.again)
    except (ConvertError, RemoteError):
        work.conversion.journal.remove_stale()
        raise
