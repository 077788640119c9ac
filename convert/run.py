"""``python -m convert.run``: convert datasets.

Plans everything first, so that what is wrong shows before anything is written; then one Beam pipeline converts the
shards that are not finished; then the manifests of complete datasets are written. ``--finalize`` does the last only.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convert.arguments import build_parser, check_arguments
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
from convert.estimate import estimate
from convert.finalise import existing_manifest, finalise
from convert.journal import check_parameters
from convert.limits import check_address_space
from convert.missing import Missing, describe_missing
from convert.plan import Conversion, Options, ShardJob, plan_conversion
from convert.progress import Progress
from convert.registry import load_registry
from convert.remote_journal import AnyJournal, open_journal
from convert.report import format_table, human_bytes
from convert.shard import DAMAGE
from convert.source import find_source
from stream.manifest import Manifest
from stream.remote import RemoteError, RemoteFolder, is_remote, join

_OUR_ERROR = re.compile(r"convert\.(?:errors|config_file)\.(\w+): (.+)")
_BEAM_SUFFIX = re.compile(r" ?\[while running .*$", re.DOTALL)
_interrupted: list[int] = []


@dataclass(frozen=True, kw_only=True)
class _Work:
    """A dataset, the shards of it that are not finished, and the manifest if it is complete."""

    conversion: Conversion
    todo: tuple[ShardJob, ...]
    manifest: Manifest | None

    @property
    def output(self) -> str:
        return self.conversion.plan.output

    @property
    def journal(self) -> AnyJournal:
        return open_journal(self.output, self.conversion.plan.staging)


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
        works = [_look(conversion, parsed.overwrite) for conversion in _plan(parsed, options)]
        if parsed.dry_run:
            _print_plan(works, as_json=parsed.json)
            return 0
        if parsed.overwrite and not only_translates:
            for work in works:
                work.journal.remove_output()
        if parsed.finalize:
            return _finish([work for work in works if not work.todo], parsed, missing=_missing(works))
        counters = _convert(works, parsed, beam_arguments, begin=not only_translates)
        if only_translates:
            print("Dataflow's translation took the graph; --dry_run: nothing was sent or converted")
            return 0
        return _finish(works, parsed, counters=counters)
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
    for selected in registry.resolve(parsed.datasets):
        spec = selected.spec
        source = find_source(parsed.source, spec.tfds_name, spec.version)
        output = join(parsed.output, spec.name, spec.version)
        conversions.append(plan_conversion(selected, source, options, output=output))
        if spec.warning:
            print(f"warning: {spec.name}: {spec.warning}", file=sys.stderr)
    return conversions


def _look(conversion: Conversion, overwrite: bool) -> _Work:
    """See what is finished already."""
    if overwrite:
        return _Work(conversion=conversion, todo=conversion.jobs, manifest=None)
    manifest = existing_manifest(conversion)
    journal = open_journal(conversion.plan.output, conversion.plan.staging)
    if (started := journal.parameters()) is not None:
        check_parameters(started, _journalled(conversion), where=str(journal.output))
    done = {shard.name: shard for split in (manifest.splits.values() if manifest else ()) for shard in split.shards}
    finished = journal.statuses({job.stem: job.shard.split for job in conversion.jobs if job.stem not in done})
    todo = []
    for job in conversion.jobs:
        entry = done.get(job.stem)
        if entry is None and job.stem in finished:
            entry = finished[job.stem].entry
        if entry is None or not journal.has_files(entry, job.shard.split):
            todo.append(job)
        elif entry.source_bytes != job.shard.bytes:
            raise ConflictError(
                f"{job.shard.path} has {job.shard.bytes:,} bytes, but {entry.source_bytes:,} when {journal.output} was "
                "converted; use the same source, another --output or --overwrite"
            )
    complete = manifest is not None and set(conversion.splits) <= set(manifest.splits) and not todo
    return _Work(conversion=conversion, todo=tuple(todo), manifest=manifest if complete else None)


def _journalled(conversion: Conversion) -> dict[str, Any]:
    """What has to be the same for an interrupted conversion to go on: the parameters, and the source's metadata."""
    return {**conversion.parameters, "source": conversion.source.fingerprint}


def _missing(works: Sequence[_Work]) -> list[Missing]:
    found = []
    for work in works:
        if stems := tuple(job.stem for job in work.todo):
            failures = work.journal.failures(stems)
            count = len(work.conversion.jobs)
            found.append(Missing(dataset=work.conversion.spec.name, shards=stems, of=count, failures=failures))
    return found


def _convert(
    works: Sequence[_Work], parsed: Any, beam_arguments: Sequence[str], *, begin: bool
) -> dict[str, int] | None:
    """Convert this task's share of the shards that are not finished; returns what Beam counted, if the runner can."""
    check_address_space()
    from beam_jobs.launch import run_pipeline

    share = {
        (job.dataset, job.stem)
        for index, job in enumerate(job for work in works for job in work.conversion.jobs)
        if index % parsed.task_count == parsed.task_index
    }
    jobs = [(job, work) for work in works for job in work.todo if (job.dataset, job.stem) in share]
    for work in works:
        if work.manifest is None and begin:
            journal = work.journal
            journal.begin(_journalled(work.conversion))
            journal.remove_stale()
    plans = {work.conversion.plan.dataset: work.conversion.plan for work in works}
    try:
        return run_pipeline(
            [job for job, _ in jobs],
            plans,
            beam_arguments,
            num_workers=parsed.num_workers,
            known=_flags(),
            progress=Progress([(job, work.output) for job, work in jobs]),
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
    works: Sequence[_Work], parsed: Any, *, counters: dict[str, int] | None = None, missing: Sequence[Missing] = ()
) -> int:
    """Write the manifests of what is complete, and print the result."""
    manifests: list[Manifest] = []
    waiting: list[str] = []
    for work in works:
        try:
            manifest = finalise(work.conversion)
        except (ConvertError, RemoteError):
            work.journal.remove_stale()
            raise
        if manifest is None:
            waiting.append(work.conversion.spec.name)
        else:
            manifests.append(manifest)
    if parsed.json:
        result = {"complete": [_summary(m, works) for m in manifests], "waiting": waiting, "counters": counters}
        if parsed.finalize:
            result["missing"] = [one.as_json() for one in missing]
        print(json.dumps(result, indent=1))
    else:
        _print_result(manifests, works)
        for one in missing:
            print(describe_missing(one))
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
    damaged = {m.dataset: n for m in manifests if (n := sum(m.left_out.get(reason, 0) for reason in DAMAGE))}
    if damaged:
        listed = ", ".join(f"{name} ({count:,})" for name, count in damaged.items())
        print(
            f"error: complete, but damaged input was left out: {listed}; see quarantine.jsonl in "
            f"{parsed.output}/<dataset>/<version>. Copy the damaged files again and run with --overwrite",
            file=sys.stderr,
        )
        return EXIT_DAMAGED
    return 0


def _summary(manifest: Manifest, works: Sequence[_Work]) -> dict[str, Any]:
    work = next(work for work in works if work.conversion.spec.name == manifest.dataset)
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    return {
        "dataset": manifest.dataset,
        "version": manifest.version,
        "output": work.output,
        "splits": {name: split.records for name, split in manifest.splits.items()},
        "episodes": manifest.episodes,
        "steps": manifest.steps,
        "pairs": manifest.records,
        "bytes_in": sum(shard.source_bytes for shard in shards),
        "bytes_out": sum(file.bytes for shard in shards for file in shard.files.values()),
        "shards": len(shards),
        "shards_converted": len(work.todo),
        "left_out": manifest.left_out,
    }


def _print_result(manifests: Sequence[Manifest], works: Sequence[_Work]) -> None:
    rows = []
    for manifest in manifests:
        summary = _summary(manifest, works)
        reasons = ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in manifest.left_out.items())
        rows.append(
            [
                manifest.dataset,
                manifest.version,
                ", ".join(manifest.splits),
                manifest.episodes,
                manifest.records,
                human_bytes(summary["bytes_in"]),
                human_bytes(summary["bytes_out"]),
                reasons or "-",
            ]
        )
    if rows:
        header = ["dataset", "version", "splits", "episodes", "pairs", "in", "out", "left out"]
        if len(rows) > 1:
            summaries = [_summary(manifest, works) for manifest in manifests]
            total = {key: sum(s[key] for s in summaries) for key in ("episodes", "pairs", "bytes_in", "bytes_out")}
            sizes = (human_bytes(total["bytes_in"]), human_bytes(total["bytes_out"]))
            rows.append([f"{len(rows)} datasets", "", "", total["episodes"], total["pairs"], *sizes, ""])
        print(format_table(header, rows))
        done = sum(not work.todo for work in works if work.manifest)
        if done:
            print(f"{done} of {len(works)} were complete already")


def _print_plan(works: Sequence[_Work], *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
    for work in works:
        conversion = work.conversion
        expected = estimate(conversion)
        rows.append(
            {
                "dataset": conversion.spec.name,
                "version": conversion.spec.version,
                "source": conversion.source.path,
                "output": work.output,
                "splits": conversion.splits,
                "episodes": sum(job.episodes for job in conversion.jobs),
                "shards": len(conversion.jobs),
                "shards_done": len(conversion.jobs) - len(work.todo),
                "complete": work.manifest is not None,
                "offset": conversion.plan.offset,
                "bytes_in": sum(job.bytes for job in conversion.jobs),
                "estimated_pairs": expected.pairs,
                "estimated_bytes": expected.bytes,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    header = ["dataset", "version", "splits", "episodes", "offset", "shards done", "in", "pairs (est.)", "out (est.)"]
    table = [
        [
            row["dataset"],
            row["version"],
            ", ".join(row["splits"]),
            row["episodes"],
            row["offset"],
            f"{row['shards_done']:,}/{row['shards']:,}" + (" complete" if row["complete"] else ""),
            human_bytes(row["bytes_in"]),
            row["estimated_pairs"] if row["estimated_pairs"] is not None else "?",
            human_bytes(row["estimated_bytes"]) if row["estimated_bytes"] is not None else "?",
        ]
        for row in rows
    ]
    if len(rows) > 1:
        known = {key: sum(row[key] or 0 for row in rows) for key in ("episodes", "bytes_in", "estimated_pairs")}
        shards = f"{sum(row['shards_done'] for row in rows):,}/{sum(row['shards'] for row in rows):,}"
        out = human_bytes(sum(row["estimated_bytes"] or 0 for row in rows))
        total = [known["episodes"], "", shards, human_bytes(known["bytes_in"]), known["estimated_pairs"], out]
        table.append([f"{len(rows)} datasets", "", "", *total])
    print(format_table(header, table))


__all__ = ["EXIT_USAGE", "UsageError", "main"]

if __name__ == "__main__":
    sys.exit(main())
