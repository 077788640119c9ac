"""``python -m convert.run``: convert datasets.

Plans everything first, so that what is wrong shows before anything is written; then one Beam pipeline converts the
shards that are not finished, and a second one merges the index of each split whose shards are; then the manifests of
complete datasets are written. ``--finalize`` leaves the first out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from convert.command import run_command
from convert.errors import (
    EXIT_DAMAGED,
    EXIT_FAILED,
    EXIT_USAGE,
    ConflictError,
    ConvertError,
    ShardError,
    UsageError,
)
from convert.journal.parameters import check_parameters
from convert.journal.remote import AnyJournal, open_journal
from convert.plan import Conversion, Options, ShardJob, SplitJob, check_rates, plan_conversion
from convert.registry.dataset import changed_fields
from convert.registry.registry import load_registry
from convert.run.arguments import build_parser, check_arguments
from convert.run.finish import finalise
from convert.run.limits import check_address_space
from convert.run.missing import Missing, describe_missing
from convert.run.progress import Progress
from convert.run.report import Work, print_plan, print_result, summarise
from convert.run.survey import Survey, barren_split, find_redo, repaired_sources, survey
from convert.source.source import find_source
from convert.tasks.shard import count_damage
from stream.format.manifest import Manifest
from stream.storage.remote import RemoteError, RemoteFolder, is_remote, join

_OUR_ERROR = re.compile(r"convert\.(?:errors|config_file)\.(\w+): (.+)")
_BEAM_SUFFIX = re.compile(r" ?\[while running .*$", re.DOTALL)
_LISTED = 5
_interrupted: list[int] = []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parsed, beam_arguments = build_parser().parse_known_args(arguments)
    # Runners log every failure of a worker with its traceback; ours is the one message.
    level = logging.INFO if parsed.verbose else logging.CRITICAL + 1
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    return run_command(
        lambda: _run(parsed, beam_arguments),
        place=parsed.output,
        interrupted="interrupted; run the same command again to go on",
    )


def _run(parsed: Any, beam_arguments: list[str]) -> int:
    try:
        options = check_arguments(parsed)
        only_translates = bool(beam_arguments) and _check_beam_arguments(parsed, beam_arguments)
        for place in (*parsed.source, parsed.output):
            if is_remote(place):
                RemoteFolder(place).check()
        works = _look(_plan(parsed, options), parsed)
        if parsed.dry_run:
            print_plan(works, as_json=parsed.json)
            return 0
        if parsed.overwrite and not only_translates:
            for work in works:
                work.journal.remove_output()
        if parsed.finalize:
            ready = [work for work in works if not work.found.todo]
            return _finish(ready, parsed, beam_arguments, counters={}, missing=_missing(works))
        counters = _convert(works, parsed, beam_arguments, begin=not only_translates)
        if only_translates:
            print("Dataflow's translation took the graph; --dry_run: nothing was sent or converted")
            return 0
        return _finish(works, parsed, beam_arguments, counters=counters)
    except RemoteError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE if error.refused else EXIT_FAILED
    except (ImportError, MemoryError, SystemError) as error:
        # Python itself ends with a SystemError where memory runs out in the midst of an import.
        why = "a library cannot be loaded by" if isinstance(error, ImportError) else "there is not enough memory for"
        told = " ".join(str(error).split())
        print(
            f"error: {why} this process{f' ({told})' if told else ''}; see its limits with ulimit -a", file=sys.stderr
        )
        return EXIT_FAILED


def _interrupt(signum: int, frame: object) -> None:
    # Beam's in-process runner turns an exception inside a DoFn into a RuntimeError, so it is noted as well.
    _interrupted.append(signum)
    raise KeyboardInterrupt


def _check_beam_arguments(parsed: Any, beam_arguments: Sequence[str]) -> bool:
    """Find a typo before anything is written or removed; without such arguments Beam need not be loaded yet.

    Returns whether the runner only translates the graph.
    """
    from beam_jobs.options import choose_runner

    return choose_runner(beam_arguments, num_workers=parsed.num_workers, known=_flags()).only_translates


def _flags() -> list[str]:
    return [flag for action in build_parser()._actions for flag in action.option_strings]


def _plan(parsed: Any, options: Options) -> list[Conversion]:
    registry = load_registry(config=parsed.config)
    conversions = []
    selection = registry.resolve(parsed.datasets)
    check_rates(selection, options.offset)
    for selected in selection:
        spec = selected.spec
        source = find_source(parsed.source, spec.tfds_name, spec.version)
        output = join(parsed.output, spec.name, spec.version)
        conversions.append(plan_conversion(selected, source, options, output=output))
        for warning in conversions[-1].warnings:
            print(f"warning: {spec.name}: {warning}", file=sys.stderr)
    return conversions


def _look(conversions: Sequence[Conversion], parsed: Any) -> list[Work]:
    """See what is finished already."""
    if parsed.overwrite:
        return [_look_to_overwrite(conversion, parsed) for conversion in conversions]
    redo = find_redo(conversions, parsed.redo)
    return [_look_at(conversion, redo[conversion.spec.name]) for conversion in conversions]


def _look_to_overwrite(conversion: Conversion, parsed: Any) -> Work:
    existing = open_journal(conversion.plan.output).splits()
    others = [split for split in existing if split not in conversion.splits]
    if others and (parsed.splits is not None or parsed.episodes is not None):
        asked = f"--splits {parsed.splits}" if parsed.splits is not None else f"--episodes {parsed.episodes}"
        raise ConflictError(
            f"{conversion.plan.output} has {', '.join(others)} too, which --overwrite {asked} would remove and not "
            "convert again; leave that option out, or remove the folder yourself"
        )
    nothing = Survey(before=None, withdrawn=False, todo=conversion.jobs, merges=(), merged={}, finished={})
    return Work(conversion=conversion, found=nothing, removes=tuple(existing))


def _look_at(conversion: Conversion, redo: frozenset[str]) -> Work:
    plan = conversion.plan
    journal = open_journal(plan.output, plan.staging)
    found = survey(conversion, again=redo, redo=redo)
    if (started := journal.parameters()) is not None:
        check_parameters(started, _journalled(conversion), where=str(journal.output))
    before = found.before
    if before is None:
        return Work(conversion=conversion, found=found, again=redo)
    repaired = repaired_sources(conversion, before)
    again = redo | set(repaired)
    if repaired:
        found = survey(conversion, again=again, redo=redo)
    if changed := changed_fields(before.spec, conversion.spec):
        _tell_changed_entry(conversion, changed, refuse=not found.complete)
    _tell_again(plan.dataset, found, journal, reasons=dict.fromkeys(redo, "--redo") | repaired)
    return Work(conversion=conversion, found=found, again=again)


def _tell_changed_entry(conversion: Conversion, changed: Sequence[str], *, refuse: bool) -> None:
    """Say that the registry has another entry than the one that the dataset was converted with."""
    name, output = conversion.spec.name, conversion.plan.output
    root = output.rsplit("/", 2)[0]
    told = (
        f"{output} was converted with another registry entry of {name} ({', '.join(changed)} changed); "
        f"`python -m convert.reindex {root} --datasets {name}` brings the new one to data that are converted"
    )
    if refuse:
        raise ConflictError(f"{told}. Run it before anything is added, or use the entry as it was")
    print(f"warning: {told}", file=sys.stderr)


def _tell_again(dataset: str, found: Survey, journal: AnyJournal, *, reasons: Mapping[str, str]) -> None:
    """Say which shards of a complete dataset are converted again, and why."""
    jobs = [job for job in found.todo if job.entry is not None]
    splits = found.before.splits if found.before else {}
    lost = {split for split, entry in splits.items() if not journal.has_index(entry.index, split)}
    for job in jobs[:_LISTED]:
        what = f"the index of {job.shard.split}" if job.shard.split in lost else "its ArrayRecord file"
        why = reasons.get(job.stem, f"{what} is missing or incomplete")
        print(f"{dataset}: {job.stem} is converted again: {why}", file=sys.stderr)
    if len(jobs) > _LISTED:
        print(f"{dataset}: and {len(jobs) - _LISTED:,} more", file=sys.stderr)


def _journalled(conversion: Conversion) -> dict[str, Any]:
    """What has to be the same for an interrupted conversion to go on: the parameters, and the source's metadata."""
    return {**conversion.parameters, "source": conversion.source.fingerprint}


def _missing(works: Sequence[Work]) -> list[Missing]:
    missing = []
    for work in works:
        if stems := tuple(job.stem for job in work.found.todo):
            failures = work.journal.failures(stems)
            missing.append(Missing(dataset=work.name, shards=stems, of=len(work.conversion.jobs), failures=failures))
    return missing


def _convert(
    works: Sequence[Work], parsed: Any, beam_arguments: Sequence[str], *, begin: bool
) -> dict[str, int] | None:
    """Convert this task's share of the shards that are not finished; returns what Beam counted, if the runner can."""
    share = {
        (job.dataset, job.stem)
        for index, job in enumerate(job for work in works for job in work.conversion.jobs)
        if index % parsed.task_count == parsed.task_index
    }
    jobs = [(job, work) for work in works for job in work.found.todo if (job.dataset, job.stem) in share]
    for work in works:
        if begin and not work.found.complete:
            journal = work.journal
            journal.begin(_journalled(work.conversion))
            journal.remove_stale()
    for job, work in jobs if begin else ():
        if job.stem in work.again or job.stem in work.found.finished:
            work.journal.forget(job.stem)
    progress = Progress([(job, work.output) for job, work in jobs])
    return _run_jobs([job for job, _ in jobs], works, parsed, beam_arguments, progress=progress)


def _merge(works: Sequence[Work], parsed: Any, beam_arguments: Sequence[str]) -> dict[str, int] | None:
    """Merge the splits all shards of which are finished; returns what Beam counted, if the runner can."""
    jobs: list[SplitJob] = []
    for work in works:
        found = survey(work.conversion, again=work.again)
        jobs += found.merges if not found.todo else ()
    if not jobs:
        return {}
    print(f"merging the index of {len(jobs):,} split{'s' if len(jobs) > 1 else ''}", file=sys.stderr)
    return _run_jobs(jobs, works, parsed, beam_arguments, progress=contextlib.nullcontext())


def _run_jobs(
    jobs: Sequence[ShardJob] | Sequence[SplitJob],
    works: Sequence[Work],
    parsed: Any,
    beam_arguments: Sequence[str],
    *,
    progress: contextlib.AbstractContextManager[object],
) -> dict[str, int] | None:
    check_address_space()
    from beam_jobs.launch import run_pipeline

    try:
        return run_pipeline(
            jobs,
            {work.name: work.conversion.plan for work in works},
            beam_arguments,
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
            work.journal.remove_stale()


def _explain(error: Exception) -> ConvertError:
    """Find our own message in what a runner made of it: runners wrap the errors of workers in text."""
    if isinstance(error, RemoteError):
        return (UsageError if error.refused else ConvertError)(str(error))
    if isinstance(error, ConvertError):
        kind = UsageError if isinstance(error, UsageError) else ShardError
        return kind(_BEAM_SUFFIX.sub("", str(error)))
    text = str(error)
    if match := _OUR_ERROR.search(text):
        return ShardError(_BEAM_SUFFIX.sub("", match[2].split("\\n")[0]).strip())
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return ConvertError(f"the Beam runner failed: {type(error).__name__}: {lines[-1] if lines else ''}")


def _finish(
    works: Sequence[Work],
    parsed: Any,
    beam_arguments: Sequence[str],
    *,
    counters: dict[str, int] | None,
    missing: Sequence[Missing] = (),
) -> int:
    """Merge the splits and write the manifests of what is complete, and print the result."""
    barren = {work.name: told for work in works if (told := barren_split(work.conversion))}
    fruitful = [work for work in works if work.name not in barren]
    merged = _merge(fruitful, parsed, beam_arguments)
    if counters is not None:
        names = sorted({*counters, *(merged or ())})
        counters = None if merged is None else {name: counters.get(name, 0) + merged.get(name, 0) for name in names}
    manifests: list[Manifest] = []
    waiting: list[str] = []
    for work in fruitful:
        work.journal.remove_stale()
        try:
            manifest = finalise(work.conversion, again=work.again)
        except (ConvertError, RemoteError):
            work.journal.remove_stale()
            raise
        if manifest is None:
            waiting.append(work.name)
        else:
            manifests.append(manifest)
    if parsed.json:
        result = {"complete": [summarise(m, works) for m in manifests], "waiting": waiting, "counters": counters}
        if parsed.finalize:
            result["missing"] = [one.as_json() for one in missing]
        print(json.dumps(result, indent=1))
    else:
        print_result(manifests, works)
        for one in missing:
            print(describe_missing(one))
    for told in barren.values():
        print(f"error: {told}", file=sys.stderr)
    if barren:
        return EXIT_FAILED
    if missing:
        listed = ", ".join(f"{one.dataset} ({len(one.shards):,} of {one.of:,} shards)" for one in missing)
        print(f"error: not complete, shards are missing: {listed}; run those tasks again, then this", file=sys.stderr)
        return EXIT_FAILED
    if waiting:
        print(f"not complete, left to other tasks: {', '.join(waiting)}", file=sys.stderr)
        if parsed.task_count == 1:
            print(
                "error: another process is converting these; run the same command again when it is done",
                file=sys.stderr,
            )
            return EXIT_FAILED
    damaged = {m.dataset: n for m in manifests if (n := count_damage(m.left_out))}
    if damaged:
        listed = ", ".join(f"{name} ({count:,})" for name, count in damaged.items())
        print(
            f"error: complete, but damaged input was left out: {listed}; see quarantine.jsonl in "
            f"{parsed.output}/<dataset>/<version>. Copy the damaged files again and run the same command: it converts "
            "their shards again",
            file=sys.stderr,
        )
        return EXIT_DAMAGED
    return 0


__all__ = ["EXIT_USAGE", "UsageError", "main"]

if __name__ == "__main__":
    sys.exit(main())
