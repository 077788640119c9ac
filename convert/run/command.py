"""``python -m convert.run``: convert datasets.

Everything is planned first, so that errors show before anything is written. Then one Beam pipeline converts the shards
that are not finished, and a second one merges the index of each split whose shards are finished. At the end the
manifests of complete datasets are written. ``--finalize`` leaves the first pipeline out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from convert.command import print_result
from convert.errors import EXIT_DAMAGED, EXIT_FAILED, ConvertError, ShardError, UsageError
from convert.jobs import ShardJob, SplitJob
from convert.journal.journal import Journal
from convert.plan import Conversion, ConvertConfig, check_cameras, check_rates, plan_conversion
from convert.registry.dataset import DatasetSpec
from convert.registry.registry import Selected, load_registry
from convert.run.arguments import build_parser, check_arguments, read_episode_lists
from convert.run.finish import finalise
from convert.run.inherited import fill_in
from convert.run.progress import ShardProgress
from convert.run.report import (
    describe_content,
    describe_fruitless,
    describe_missing,
    describe_plans,
    format_missing,
    format_plan,
    format_result,
    summarise,
)
from convert.run.status import ConversionStatus, barren_split, survey
from convert.run.work import find_work, overwriting_work
from convert.shard.counts import BROKEN_FILE
from convert.source.kinds import find_source
from convert.source.protocol import Source
from convert.storage.object_store import StoreFolder
from convert.tasks.shard import count_damage
from stream.base.arguments import run_command
from stream.base.errors import StreamError
from stream.format.manifest import Manifest
from stream.storage.remote import is_remote, join
from stream.storage.remote_folder import RemoteFolder

if TYPE_CHECKING:
    from beam_jobs.options import RunnerChoice

OVERWRITE = ".overwrite"
"""Folder of the output in which ``--overwrite`` converts; readers of a root pass over hidden folders."""
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
        path=parsed.output,
        interrupted="interrupted; run the same command again to go on",
    )


def _run(parsed: Any) -> int:
    try:
        fill_in(parsed)
        options = check_arguments(parsed)
        # Workers may run in other folders.
        parsed.source, parsed.output = list(map(_absolute, parsed.source)), _absolute(parsed.output)
        choice = _choose_runner(parsed)
        for place in (*parsed.source, parsed.output):
            if is_remote(place):
                # Work that has begun waits longer for a store.
                RemoteFolder(StoreFolder(place).url).check()
        if parsed.remove:
            return _remove(parsed)
        conversions = _plan(parsed, options)
        _check_reach(choice, conversions)
        only_translates = choice is not None and choice.only_translates
        works = _find_work(conversions, parsed)
        if parsed.dry_run:
            rows = describe_plans(works)
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


def _absolute(place: str) -> str:
    return place if is_remote(place) or not place else os.path.abspath(place)


def _choose_runner(parsed: Any) -> RunnerChoice | None:
    """Return the runner that options ask for; raises UsageError before anything is written or removed."""
    if not parsed.beam:
        return None
    from beam_jobs.options import choose_runner

    return choose_runner(parsed.beam, num_workers=parsed.num_workers, known=_flags())


def _check_reach(choice: RunnerChoice | None, conversions: Sequence[Conversion]) -> None:
    """Raise UsageError if the workers of a service cannot reach a source or an output."""
    places = [place for each in conversions for place in (each.source.path, each.target) if not is_remote(place)]
    if choice is not None and choice.is_service and places:
        raise UsageError(
            f"the workers of {choice.kind} cannot reach {places[0]}{' and others' if places[1:] else ''}; copy the "
            "source to a bucket, and give gs:// or s3:// for --source and --output"
        )


def _remove(parsed: Any) -> int:
    """Remove what was converted of the datasets."""
    for selected in _select(parsed)[0]:
        output = join(parsed.output, selected.spec.name, selected.spec.version)
        splits = ", ".join(Journal(output).splits())
        if not parsed.dry_run:
            Journal(output).remove_output()
        print(f"{selected.spec.name}: {splits or 'nothing'} {'to remove' if parsed.dry_run else 'removed'} in {output}")
    return 0


def _flags() -> list[str]:
    return [flag for action in build_parser()._actions for flag in action.option_strings]


def _select(parsed: Any) -> tuple[list[Selected], dict[str, Source]]:
    """Return the datasets, and the sources of those that describe themselves, by name."""
    found: dict[str, Source] = {}

    def describe(name: str, source: str, layout: Mapping[str, Any]) -> Mapping[str, Any]:
        found[name] = find_source(source, parsed.source, layout)
        return found[name].entry

    return load_registry(config=parsed.config).resolve(parsed.datasets, describe), found


def _plan(parsed: Any, options: ConvertConfig) -> list[Conversion]:
    selection, described = _select(parsed)
    if not parsed.source and any(selected.spec.name not in described for selected in selection):
        raise UsageError("--source: give the folder with the datasets below it")
    check_rates(selection, options.offset)
    lists = read_episode_lists(parsed.episodes, [selected.spec.name for selected in selection])
    options = replace(options, episode_lists=lists)
    if options.layout == "frames":
        check_cameras(selection, options)
    conversions = []
    for selected in selection:
        spec = selected.spec
        source = described.get(spec.name) or _find_registered(parsed.source, spec)
        target = join(parsed.output, spec.name, spec.version)
        output = join(parsed.output, OVERWRITE, spec.name, spec.version) if parsed.overwrite else target
        conversions.append(plan_conversion(selected, source, options, output=output, target=target))
        _check_apart(conversions[-1])
        for warning in conversions[-1].warnings:
            _tell(f"warning: {spec.name}: {warning}")
    return conversions


def _check_apart(conversion: Conversion) -> None:
    """Raise UsageError if files of the source lie where the conversion is written: ``--overwrite`` removes them."""
    target = _real(conversion.target)
    for folder in {os.path.dirname(job.shard.path) for job in conversion.jobs}:
        if f"{_real(folder)}/".startswith(f"{target}/"):
            raise UsageError(
                f"{conversion.name}: its source is {folder}, and would be written over; give another --output"
            )


def _real(place: str) -> str:
    return place if is_remote(place) else os.path.realpath(place)


def _find_registered(roots: Sequence[str], spec: DatasetSpec) -> Source:
    # TFDS takes seconds to import.
    from convert.source.rlds.dataset import find_dataset

    return find_dataset(roots, spec.tfds_name, spec.version)


def _find_work(conversions: Sequence[Conversion], parsed: Any) -> list[ConversionStatus]:
    if not parsed.overwrite:
        return find_work(conversions, parsed.redo, config=parsed.config)
    given = [f"--{name} {value}" for name in ("splits", "episodes") if (value := getattr(parsed, name)) is not None]
    return [overwriting_work(each, given[0] if given else None, config=parsed.config) for each in conversions]


def _convert(works: Sequence[ConversionStatus], parsed: Any, *, begin: bool) -> dict[str, int] | None:
    """Convert this task's share of the shards that are not finished; returns Beam's counts, None if it has none."""
    unfinished = {(job.dataset, job.name): job for work in works for shard in work.todo for job in shard.pieces()}
    everything = [
        (work, (job.dataset, job.name)) for work in works for shard in work.conversion.jobs for job in shard.pieces()
    ]
    share = everything[parsed.task_index :: parsed.task_count]
    jobs = [(unfinished[key], work) for work, key in share if key in unfinished]

    @contextlib.contextmanager
    def started() -> Iterator[None]:
        # Only now, as a runner that cannot start must leave the output as it is.
        if begin:
            _begin(works, jobs)
        shown = [(job, work.conversion.plan.output) for job, work in jobs]
        word = works[0].conversion.plan.layout
        with ShardProgress(shown, records=word) if jobs else contextlib.nullcontext():
            yield

    return _run_jobs([job for job, _ in jobs], works, parsed, progress=started())


def _begin(works: Sequence[ConversionStatus], jobs: Sequence[tuple[ShardJob, ConversionStatus]]) -> None:
    """Begin the journals, and forget what is converted again."""
    for work in works:
        if work.discards:
            work.conversion.journal.remove_output()
        if not work.complete:
            work.conversion.journal.begin(work.conversion.journal_parameters)
            work.conversion.journal.remove_stale()
        stems = {job.stem for job, of in jobs if of is work}
        if again := stems & {*work.again, *work.finished}:
            work.conversion.journal.forget(again)


def _merge(works: Sequence[ConversionStatus], parsed: Any) -> dict[str, int] | None:
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
    works: Sequence[ConversionStatus],
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


def _finish(works: Sequence[ConversionStatus], parsed: Any, *, counters: dict[str, int] | None) -> int:
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
    complete = [(work, manifest) for work, manifest in manifests if manifest is not None and manifest.records]
    fruitless = [(work, manifest) for work, manifest in manifests if manifest is not None and not manifest.records]
    rows = [summarise(manifest, output=work.conversion.target, converted=len(work.todo)) for work, manifest in complete]
    if parsed.json:
        result = {"complete": rows, "waiting": waiting, "counters": counters}
        print_result(json.dumps(result | ({"missing": missing} if parsed.finalize else {}), indent=1))
    else:
        lines = [format_result(rows)] if rows else []
        if rows and (done := sum(work.complete for work in works)):
            lines.append(f"{done} of {len(works)} were complete already")
        if lines or missing:
            print_result("\n".join([*lines, *map(format_missing, missing)]))
    for _, manifest in complete:
        for warning in describe_content(manifest):
            _tell(f"warning: {warning}")
    for message in (*barren.values(), *(describe_fruitless(work, manifest) for work, manifest in fruitless)):
        _tell(f"error: {message}")
    if barren or fruitless:
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
        broken = any(reason in manifest.left_out for _, manifest in complete for reason in BROKEN_FILE)
        advice = "Copy the damaged files again" if broken else "Mend the source"
        _tell(
            f"error: complete, but damaged input was left out: {listed}; see quarantine.jsonl in "
            f"{parsed.output}/<dataset>/<version>. {advice} and run the same command: it converts their "
            "shards again"
        )
        return EXIT_DAMAGED
    return 0


def _write_manifest(work: ConversionStatus) -> Manifest | None:
    """Write the manifest of a dataset if it is complete, and replace what ``--overwrite`` named."""
    conversion = work.conversion
    conversion.journal.remove_stale()
    try:
        manifest = finalise(conversion, again=work.again)
        if manifest is not None and conversion.target != conversion.plan.output:
            Journal(conversion.target).adopt(conversion.journal, manifest)
        return manifest
    except StreamError:
        work.conversion.journal.remove_stale()
        raise
