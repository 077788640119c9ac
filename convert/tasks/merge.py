"""Merging of the index of one split from the parts of its shards.

The index is a function of the parts and the registry's vectors, so every process that merges it gets the same index. It
is written next to the old one, checked and hashed, and only then put into place; the status of the split is written
last. Until then every shard of the split has its part in the journal, so a killed merge starts again there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from convert.errors import ShardError
from convert.index.shards import Shard, list_shards
from convert.index.statistics import only_instruction, split_statistics
from convert.index.tables import extract_part, merge_index
from convert.jobs import SplitJob
from convert.journal.journal import INDEX, Journal
from convert.journal.status import IndexStatus, QuarantineEntry, ShardStatus
from convert.plan import DatasetPlan
from convert.storage.durable import describe_durably, writing
from stream.base.errors import StreamError
from stream.format.manifest import SplitEntry
from stream.format.names import TABLE_KINDS, table_file
from stream.format.table import open_table


def merge_split(split_job: SplitJob, plan: DatasetPlan) -> IndexStatus | None:
    """Merge the index of one split, unless it is merged or another process is merging it.

    The part of a shard that was not converted again is cut out of the index that the manifest describes.

    Returns the status, also of a split that was merged before; None if another process is merging it, or has finished
    the dataset since. Raises ShardError or RemoteError if a part cannot be read, or the output cannot be written.
    """
    journal = plan.journal
    try:
        if not journal.exists():
            return None
        with journal.lock(split_job.split + INDEX) as is_locked:
            return _merge_split(split_job, plan, journal) if is_locked else None
    except (StreamError, OSError) as error:
        # Without locks another process may finish the dataset, and remove what this one reads, meanwhile.
        if not journal.exists() or _is_finished(split_job, journal):
            return None
        if isinstance(error, OSError):
            raise ShardError(f"{error.filename or plan.output}: {error.strerror}") from error
        raise


def _is_finished(split_job: SplitJob, journal: Journal) -> bool:
    """Return whether the manifest has a split, and the journal nothing of its shards any more."""
    manifest = journal.manifest()
    return manifest is not None and split_job.split in manifest.splits and not journal.statuses(split_job.stems)


def _merge_split(split_job: SplitJob, plan: DatasetPlan, journal: Journal) -> IndexStatus:
    before = journal.manifest() or journal.withdrawn()
    old_split = before.splits.get(split_job.split) if before else None
    statuses = journal.statuses(split_job.stems)
    if old_split is not None:
        statuses |= _extract(split_job, old_split, journal, finished=statuses)
    if missing_stems := [stem for stem in split_job.stems if stem not in statuses]:
        stem = missing_stems[0]
        raise ShardError(f"{plan.output}: shard {stem} is not finished any more; run the same command again")
    ordered_statuses = [statuses[stem] for stem in split_job.stems]
    inputs_digest = index_inputs(ordered_statuses, plan)
    if status := _merged(split_job, journal, inputs_digest):
        return status
    with journal.stage(split_job.split + INDEX) as stage_folder:
        with writing(journal.scratch):
            shard_parts = journal.parts(ordered_statuses, stage_folder)
            index_tables = merge_index(stage_folder, shard_parts, plan.vectors)
        for kind in TABLE_KINDS:
            num_rows = sum(getattr(status.entry, kind) for status in ordered_statuses)
            open_table(stage_folder / table_file(kind), kind, entry=index_tables[kind], rows=num_rows)
        statistics, instruction = split_statistics(stage_folder, plan.vectors), only_instruction(stage_folder)
        if status := _merged(split_job, journal, inputs_digest):
            # Without locks another process may have merged it meanwhile, and rely on its status.
            return status
        if old_split is not None and old_split.index != index_tables:
            if [status.entry for status in ordered_statuses] == list(old_split.shards):
                changed = ", ".join(kind for kind in TABLE_KINDS if old_split.index[kind] != index_tables[kind])
                raise ShardError(
                    f"{plan.output}: the index of {split_job.split} was merged again from the shards of the manifest, "
                    f"and {changed} differ from it, so nothing was replaced; take the versions that wrote the dataset "
                    '("versions" in dataset.json), or convert it again with --overwrite'
                )
            journal.withdraw(split_job.split + INDEX)
        journal.place_index(split_job.split, stage_folder)
    contents = {"index": index_tables, "statistics": statistics, "instruction": instruction}
    status = IndexStatus(split=split_job.split, inputs=inputs_digest, **contents)
    journal.finish_index(status)
    return status


def _merged(split_job: SplitJob, journal: Journal, inputs_digest: str) -> IndexStatus | None:
    """Return the status of a split that is merged from the same inputs, None for another."""
    status = journal.index_status(split_job.split)
    return status if status is not None and status.inputs == inputs_digest else None


def _extract(
    split_job: SplitJob, old_split: SplitEntry, journal: Journal, *, finished: Mapping[str, ShardStatus]
) -> dict[str, ShardStatus]:
    """Put the parts of shards that were not converted again into the journal, cut out of the old index."""
    missing_stems = {*split_job.stems} - {*finished}
    complete_stems = journal.complete_files(entry for entry in old_split.shards if entry.name in missing_stems)
    if not complete_stems or not journal.has_index(old_split.index, split_job.split):
        return {}
    quarantine_by_shard = journal.quarantine()
    extracted = {}
    with journal.stage(split_job.split + INDEX) as stage_folder:
        tables_folder = journal.tables(split_job.split, old_split.index, stage_folder)
        for shard in list_shards(tables_folder, old_split):
            if (shard_name := shard.entry.name) in complete_stems:
                extracted[shard_name] = _extract_shard(shard, journal, quarantine_by_shard.get(shard_name, ()))
    return extracted


def _extract_shard(shard: Shard, journal: Journal, quarantine: Sequence[QuarantineEntry]) -> ShardStatus:
    entry = shard.entry
    with journal.lock(entry.name, wait=True), journal.stage(entry.name) as stage_folder:
        part_paths = {kind: stage_folder / kind for kind in TABLE_KINDS}
        with writing(journal.scratch):
            extract_part(shard, part_paths)
        episode_lengths = open_table(part_paths["episodes"], "episodes", rows=entry.episodes).array("num_steps")
        status = ShardStatus(
            entry=entry,
            parts={kind: describe_durably(path) for kind, path in part_paths.items()},
            longest=int(episode_lengths.max(initial=0)),
            bytes_in=0,
            quarantine=tuple(quarantine),
        )
        journal.place(entry.name, stage_folder)
        journal.finish(status)
    return status


def index_inputs(statuses: Sequence[ShardStatus], plan: DatasetPlan) -> str:
    """Return a digest of everything that the index of a split is made of."""
    digest = hashlib.sha256()
    for status in statuses:
        digest.update("".join([status.entry.name, *(status.parts[kind].sha256 for kind in TABLE_KINDS)]).encode())
    digest.update(repr(list(plan.vectors.items())).encode())
    return digest.hexdigest()
