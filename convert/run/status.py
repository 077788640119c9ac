"""Survey of a dataset: its journal, its manifest and its files show which shards and splits are finished.

A complete dataset may have lost a file, or its source may have been repaired. Then only the shards and splits concerned
are done again; the rest stays as the manifest describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from convert.errors import ConflictError, UsageError
from convert.jobs import ShardJob, SplitJob
from convert.journal.journal import Journal, check_parameters
from convert.journal.status import IndexStatus, ShardStatus
from convert.plan import Conversion, no_pair
from convert.tasks.merge import index_inputs
from convert.tasks.shard import count_damage
from stream.base.errors import FormatError, closest
from stream.format.manifest import Manifest, SplitEntry


@dataclass(frozen=True, kw_only=True)
class ConversionStatus:
    """Finished and unfinished parts of a dataset.

    Attributes:
        again: Stems of the shards to convert again, although the manifest has them.
        before: Manifest that the output has, or had before files that it describes were changed.
        withdrawn: True if the manifest was taken out of the output.
        todo: Shards to convert.
        merges: Splits to merge, all shards of which are finished.
        merged: Splits whose shards and index are finished in the journal. The others stay as the manifest has them.
        finished: Statuses in the journal, by stem.
        removes: Splits that --overwrite removes in the end.
        discards: True if the output has another unfinished --overwrite, which is removed first.
    """

    conversion: Conversion
    again: Set[str] = frozenset()
    before: Manifest | None = None
    withdrawn: bool = False
    todo: list[ShardJob] = field(default_factory=list)
    merges: list[SplitJob] = field(default_factory=list)
    merged: dict[str, IndexStatus] = field(default_factory=dict)
    finished: Mapping[str, ShardStatus] = field(default_factory=dict)
    removes: Sequence[str] = ()
    discards: bool = False

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.conversion.name

    def shards(self, split: str) -> list[ShardStatus]:
        """Return the statuses of the finished shards of a split, in the order of the source."""
        jobs = self.conversion.split_jobs(split)
        return [self.finished[job.stem] for job in jobs if job.stem in self.finished]

    @property
    def complete(self) -> bool:
        """True if the manifest in the output describes the dataset as it is."""
        return not (self.todo or self.merges or self.merged or self.withdrawn or self.before is None)


def survey(conversion: Conversion, *, again: Set[str] = frozenset(), redo: Set[str] = frozenset()) -> ConversionStatus:
    """Find the finished and unfinished parts of a conversion.

    Args:
        conversion: Conversion of the dataset.
        again: Stems of shards to convert again, although the manifest has them.
        redo: Stems of shards to convert again, although the journal has them finished.

    Raises:
        ConflictError: The output was converted with other parameters, from another source, or to another version of
            the format.
    """
    journal = conversion.journal
    existing = existing_manifest(conversion)
    before = existing or _withdrawn_manifest(conversion, journal)
    withdrawn = existing is None and before is not None
    statuses = journal.statuses(job.stem for job in conversion.jobs if job.stem not in redo)
    found = ConversionStatus(conversion=conversion, again=again, before=before, withdrawn=withdrawn, finished=statuses)
    for split in conversion.splits:
        jobs = conversion.split_jobs(split)
        old = before.splits.get(split) if before else None
        missing = _missing(jobs, old, statuses, journal, again=again)
        if missing:
            found.todo.extend(missing)
            continue
        shards = found.shards(split)
        if old is None or _differs(shards, old, journal, split=split, withdrawn=withdrawn):
            index = journal.index_status(split) if len(shards) == len(jobs) else None
            if index is not None and index.inputs == index_inputs(shards, conversion.plan):
                found.merged[split] = index
            else:
                numbers = tuple(job.shard.index for job in jobs)
                count = jobs[0].shard.count
                found.merges.append(SplitJob(dataset=conversion.name, split=split, shards=numbers, count=count))
    return found


def existing_manifest(conversion: Conversion) -> Manifest | None:
    """Return the manifest in the output, None if there is none.

    Raises:
        ConflictError: The output was converted with other parameters or from another source, or to another version of
            the format.
    """
    output = conversion.plan.output
    manifest = _readable(conversion.journal.manifest)
    if manifest is None:
        return None
    check_parameters(manifest.parameters, conversion.parameters, location=output)
    if manifest.source.fingerprint != conversion.source.fingerprint:
        files = " or ".join(conversion.source.metadata)
        raise ConflictError(
            f"{output} was converted from {manifest.source.path}, whose {files} are not those of "
            f"{conversion.source.path}; use another --output or --overwrite"
        )
    return manifest


def barren_split(conversion: Conversion) -> str | None:
    """Return an error about the first finished split that gives no pair, None if there is none.

    A split with damage is passed over: damage is reported on its own.
    """
    offset = conversion.plan.offset
    for split in conversion.splits:
        jobs = conversion.split_jobs(split)
        statuses = conversion.journal.statuses(job.stem for job in jobs).values()
        useful = any(status.entry.records or count_damage(status.entry.left_out) for status in statuses)
        if len(statuses) == len(jobs) and not useful:
            if any(status.entry.left_out.get("not_chosen") for status in statuses):
                return (
                    f"{conversion.name}: split {split}: the list of --episodes leaves nothing; change it, or "
                    "leave the split out with --splits"
                )
            longest = max(status.longest for status in statuses)
            if conversion.plan.layout == "frames":
                return (
                    f"{conversion.name}: split {split} gives no frame: its episodes are empty; leave it out (--splits)"
                )
            return no_pair(conversion.name, split, offset, longest, remedy=" with --overwrite")
    return None


def find_redo(conversions: Sequence[Conversion], stems: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the shards that ``--redo`` names, by dataset.

    Raises:
        UsageError: There is no such shard, or several datasets have one of that name.
    """
    found: dict[str, set[str]] = {conversion.name: set() for conversion in conversions}
    for stem in stems:
        having = [one.name for one in conversions if any(job.stem == stem for job in one.jobs)]
        if not having:
            known = [job.stem for one in conversions for job in one.jobs]
            raise UsageError(f"--redo {stem}: no such shard; {closest(stem, known, noun='shards')}")
        if len(having) > 1:
            raise UsageError(f"--redo {stem}: {', '.join(having)} have such a shard; name one with --datasets")
        found[having[0]].add(stem)
    return {name: frozenset(shards) for name, shards in found.items()}


def _withdrawn_manifest(conversion: Conversion, journal: Journal) -> Manifest | None:
    """Return the manifest that was withdrawn, None if none was.

    Raises:
        ConflictError: Another split that it describes is being changed.
    """
    manifest = _readable(journal.withdrawn)
    if manifest is None:
        return None
    others = {
        entry.name for name, split in manifest.splits.items() if name not in conversion.splits for entry in split.shards
    }
    if changed := others & journal.placed():
        raise ConflictError(
            f"{journal.output}: an earlier command was interrupted while it made {min(changed)} again; run that one "
            f"first, with --splits {','.join(manifest.splits)}"
        )
    return manifest


def _readable(read: Callable[[], Manifest | None]) -> Manifest | None:
    try:
        return read()
    except FormatError as error:
        raise ConflictError(f"{error} (or choose another --output)") from None


def repaired_sources(conversion: Conversion, before: Manifest) -> dict[str, str]:
    """Return the shards whose source file has changed, by stem with the reason.

    A file has changed if its size has, or if it was damaged and its content has.
    """
    entries = {entry.name: entry for split in before.splits.values() for entry in split.shards}
    found = {}
    for job in conversion.jobs:
        if (entry := entries.get(job.stem)) is None:
            continue
        if entry.source_bytes != job.shard.bytes:
            found[job.stem] = f"{job.shard.name} has {job.shard.bytes:,} bytes, it had {entry.source_bytes:,}"
        elif count_damage(entry.left_out) and job.shard.differs(
            conversion.plan.wanted, job.spans, digest=entry.source_digest, left_out=entry.left_out
        ):
            found[job.stem] = f"{job.shard.name} was damaged and has changed since"
    return found


def _missing(
    jobs: Sequence[ShardJob],
    old: SplitEntry | None,
    statuses: Mapping[str, ShardStatus],
    journal: Journal,
    *,
    again: Set[str],
) -> list[ShardJob]:
    """Return the shards of a split that are neither finished in the journal nor described by the manifest."""
    entries = {entry.name: entry for entry in old.shards} if old else {}
    indexed = old is not None and journal.has_index(old.index, jobs[0].shard.split)
    done = journal.complete_files(entries.values()) - again if indexed else set()
    bytes_read = {stem: status.entry.source_bytes for stem, status in statuses.items()}
    done |= {job.stem for job in jobs if bytes_read.get(job.stem) == job.shard.bytes}
    missing = (job for job in jobs if job.stem not in done)
    return [replace(job, entry=entries.get(job.stem), may_differ=job.stem in again) for job in missing]


def _differs(found: Sequence[ShardStatus], old: SplitEntry, journal: Journal, *, split: str, withdrawn: bool) -> bool:
    """Return whether the manifest may no longer describe a split.

    The manifest is withdrawn before a file with another content is put into place.
    """
    if not journal.has_index(old.index, split):
        return True
    entries = {entry.name: entry for entry in old.shards}
    return any(withdrawn or status.entry != entries[status.entry.name] for status in found)
