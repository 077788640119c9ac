"""Status of a conversion: its journal, its manifest and its files show which shards and splits are finished.

A complete dataset may have lost a file, or its source may have been repaired. Then only these shards and
splits are done again; all else stays as the manifest describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from convert.errors import ConflictError, UsageError
from convert.jobs import ShardJob, SplitJob
from convert.journal.journal import Journal, check_parameters
from convert.journal.status import IndexStatus, ShardStatus
from convert.plan import Conversion, no_pair
from convert.shard.counts import count_damage
from convert.tasks.merge import index_inputs
from stream.base.errors import FormatError, closest
from stream.format.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class ConversionStatus:
    """Finished and unfinished parts of a dataset.

    Attributes:
        redone_stems: Stems of the shards to convert again, although the manifest has them.
        old_manifest: Manifest that the output has, or had before files that it describes were changed.
        is_withdrawn: True if the manifest was taken out of the output.
        pending_jobs: Shards to convert.
        pending_merges: Splits to merge, all shards of which are finished.
        merged_indexes: Splits whose shards and index are finished in the journal. The others stay as the manifest has
            them.
        finished: Statuses in the journal, by stem.
        removed_splits: Splits that --overwrite removes in the end.
        discards_output: True if the output has another unfinished --overwrite, which is removed first.
    """

    conversion: Conversion
    redone_stems: Set[str] = frozenset()
    old_manifest: Manifest | None = None
    is_withdrawn: bool = False
    pending_jobs: list[ShardJob] = field(default_factory=list)
    pending_merges: list[SplitJob] = field(default_factory=list)
    merged_indexes: dict[str, IndexStatus] = field(default_factory=dict)
    finished: Mapping[str, ShardStatus] = field(default_factory=dict)
    removed_splits: Sequence[str] = ()
    discards_output: bool = False

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.conversion.name

    def shards(self, split: str) -> list[ShardStatus]:
        """Return the statuses of the finished shards of a split, in the order of the source."""
        split_jobs = self.conversion.split_jobs(split)
        return [self.finished[job.stem] for job in split_jobs if job.stem in self.finished]

    @property
    def complete(self) -> bool:
        """True if the manifest in the output describes the dataset as it is."""
        is_changing = self.pending_jobs or self.pending_merges or self.merged_indexes or self.is_withdrawn
        return self.old_manifest is not None and not is_changing


def read_status(
    conversion: Conversion, *, redone_stems: Set[str] = frozenset(), redo: Set[str] = frozenset()
) -> ConversionStatus:
    """Find the finished and unfinished parts of a conversion.

    Shards of ``redone_stems`` are converted again although the manifest has them, those of ``redo`` although the
    journal has them finished. Raises ConflictError if the output holds another conversion.
    """
    journal, existing = conversion.journal, existing_manifest(conversion)
    before = existing or _withdrawn_manifest(conversion, journal)
    withdrawn = existing is None and before is not None
    statuses = journal.statuses(job.stem for job in conversion.jobs if job.stem not in redo)
    status = ConversionStatus(
        conversion=conversion, redone_stems=redone_stems, old_manifest=before, is_withdrawn=withdrawn, finished=statuses
    )
    bytes_read = {stem: shard_status.entry.source_bytes for stem, shard_status in statuses.items()}
    for split in conversion.splits:
        split_jobs = conversion.split_jobs(split)
        old_split = before.splits.get(split) if before else None
        entries = {entry.name: entry for entry in old_split.shards} if old_split else {}
        has_index = old_split is not None and journal.has_index(old_split.index, split)
        finished_stems = journal.complete_files(entries.values()) - redone_stems if has_index else set()
        finished_stems |= {job.stem for job in split_jobs if bytes_read.get(job.stem) == job.shard.bytes}
        if missing_jobs := [job for job in split_jobs if job.stem not in finished_stems]:
            status.pending_jobs.extend(
                replace(job, entry=entries.get(job.stem), may_differ=job.stem in redone_stems) for job in missing_jobs
            )
            continue
        shard_statuses = status.shards(split)
        # The manifest is withdrawn before a file with another content is put into place.
        if not has_index or any(withdrawn or shard.entry != entries[shard.entry.name] for shard in shard_statuses):
            index_status = journal.index_status(split) if len(shard_statuses) == len(split_jobs) else None
            if index_status is not None and index_status.inputs == index_inputs(shard_statuses, conversion.plan):
                status.merged_indexes[split] = index_status
            else:
                numbers, count = tuple(job.shard.index for job in split_jobs), split_jobs[0].shard.count
                merge = SplitJob(dataset=conversion.name, split=split, shards=numbers, count=count)
                status.pending_merges.append(merge)
    return status


def existing_manifest(conversion: Conversion) -> Manifest | None:
    """Return the manifest in the output, None if there is none; raises ConflictError if it is of another conversion."""
    output = conversion.plan.output
    manifest = _readable(conversion.journal.manifest)
    if manifest is None:
        return None
    check_parameters(manifest.parameters, conversion.parameters, location=output)
    if manifest.source.fingerprint != conversion.source.fingerprint:
        metadata_files = " or ".join(conversion.source.metadata)
        raise ConflictError(
            f"{output} was converted from {manifest.source.path}, whose {metadata_files} are not those of "
            f"{conversion.source.path}; use another --output or --overwrite"
        )
    return manifest


def empty_split(conversion: Conversion) -> str | None:
    """Return an error about the first finished split that gives no pair, None if there is none.

    A split with damage is passed over: damage is reported on its own.
    """
    for split in conversion.splits:
        split_jobs = conversion.split_jobs(split)
        statuses = conversion.journal.statuses(job.stem for job in split_jobs).values()
        is_useful = any(status.entry.records or count_damage(status.entry.left_out) for status in statuses)
        if len(statuses) == len(split_jobs) and not is_useful:
            subject = f"{conversion.name}: split {split}"
            if any(status.entry.left_out.get("not_chosen") for status in statuses):
                advice = "change it, or leave the split out with --episodes"
                return f"{subject}: the list of --episodes leaves nothing; {advice}"
            if conversion.plan.layout == "frames":
                return f"{subject} gives no frame: its episodes are empty; leave it out (--episodes)"
            longest = max(status.longest for status in statuses)
            return no_pair(conversion.name, split, conversion.plan.offset, longest, remedy=" with --overwrite")
    return None


def find_redo(conversions: Sequence[Conversion], stems: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the shards that ``--redo`` names, by dataset; raises UsageError unless one dataset has each."""
    stems_by_dataset = {conversion.name: {job.stem for job in conversion.jobs} for conversion in conversions}
    for stem in stems:
        dataset_names = [name for name, known_stems in stems_by_dataset.items() if stem in known_stems]
        if not dataset_names:
            available_stems = sorted(set().union(*stems_by_dataset.values()))
            raise UsageError(f"--redo {stem}: no such shard; {closest(stem, available_stems, noun='shards')}")
        if len(dataset_names) > 1:
            raise UsageError(f"--redo {stem}: {', '.join(dataset_names)} have such a shard; name one with --datasets")
    return {name: frozenset(known_stems.intersection(stems)) for name, known_stems in stems_by_dataset.items()}


def _withdrawn_manifest(conversion: Conversion, journal: Journal) -> Manifest | None:
    """Return the manifest that was withdrawn, None if none was; raises ConflictError if it has other changed splits."""
    manifest = _readable(journal.withdrawn)
    if manifest is None:
        return None
    other_splits = [entry for split, entry in manifest.splits.items() if split not in conversion.splits]
    other_stems = {shard.name for entry in other_splits for shard in entry.shards}
    if changed_stems := other_stems & journal.placed():
        raise ConflictError(
            f"{journal.output}: an earlier command was interrupted while it made {min(changed_stems)} again; run that "
            f"one first, with --episodes {'+'.join(manifest.splits)}"
        )
    return manifest


def _readable(read_manifest: Callable[[], Manifest | None]) -> Manifest | None:
    try:
        return read_manifest()
    except FormatError as error:
        raise ConflictError(f"{error} (or choose another --output)") from None


def repaired_sources(conversion: Conversion, before: Manifest) -> dict[str, str]:
    """Return the shards whose source file has changed, by stem with the reason.

    A file has changed if its size has, or if it was damaged and its content has.
    """
    entries = {entry.name: entry for split_entry in before.splits.values() for entry in split_entry.shards}
    reason_by_stem = {}
    for job in conversion.jobs:
        if (entry := entries.get(job.stem)) is None:
            continue
        if entry.source_bytes != job.shard.bytes:
            reason_by_stem[job.stem] = f"{job.shard.name} has {job.shard.bytes:,} bytes, it had {entry.source_bytes:,}"
        elif count_damage(entry.left_out) and job.shard.differs(
            conversion.plan.wanted, job.spans, digest=entry.source_digest, left_out=entry.left_out
        ):
            reason_by_stem[job.stem] = f"{job.shard.name} was damaged and has changed since"
    return reason_by_stem
