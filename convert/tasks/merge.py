"""Merging of the index of one split from the parts of its shards.

The index is a function of the parts and the registry's vectors, so every process that merges it gets the same index. It
is written beside the old one, checked and hashed, and only then put into place; the status of the split is written
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
from convert.journal.status import IndexStatus, QuarantineEntry, ShardStatus, parse_quarantine
from convert.plan import DatasetPlan
from convert.storage.durable import describe_durably, writing
from stream.base.errors import StreamError
from stream.format.manifest import SplitEntry
from stream.format.names import TABLE_KINDS, table_file
from stream.format.table import open_table


def merge_split(job: SplitJob, plan: DatasetPlan) -> IndexStatus | None:
    """Merge the index of one split, unless it is merged or another process is merging it.

    The part of a shard that was not converted again is cut out of the index that the manifest describes.

    Returns:
        The status, also of a split that was merged before; None if another process is merging it, or has finished the
        whole dataset since.

    Raises:
        ShardError: A part cannot be read, or the output cannot be written.
        stream.storage.remote.RemoteError: A bucket cannot be read or written.
    """
    journal = plan.journal
    try:
        if not journal.exists():
            return None
        with journal.lock(job.split + INDEX) as mine:
            return _merge_split(job, plan, journal) if mine else None
    except (StreamError, OSError) as error:
        # Without locks another process may finish the whole dataset, and remove the journal, meanwhile.
        if not journal.exists():
            return None
        if isinstance(error, OSError):
            raise ShardError(f"{error.filename or plan.output}: {error.strerror}") from error
        raise


def _merge_split(job: SplitJob, plan: DatasetPlan, journal: Journal) -> IndexStatus:
    before = journal.manifest() or journal.withdrawn()
    old = before.splits.get(job.split) if before else None
    statuses = journal.statuses(job.stems)
    if old is not None:
        statuses |= _extract(job, old, journal, known=statuses)
    if missing := [stem for stem in job.stems if stem not in statuses]:
        raise ShardError(f"{plan.output}: shard {missing[0]} is not finished any more; run the same command again")
    ordered = [statuses[stem] for stem in job.stems]
    inputs = index_inputs(ordered, plan)
    status = journal.index_status(job.split)
    if status is not None and status.inputs == inputs:
        return status
    with journal.stage(job.split + INDEX) as folder:
        with writing(journal.scratch):
            parts = journal.parts(ordered, folder)
            index = merge_index(folder, parts, plan.vectors)
        for kind in TABLE_KINDS:
            rows = sum(getattr(status.entry, kind) for status in ordered)
            open_table(folder / table_file(kind), kind, entry=index[kind], rows=rows)
        statistics, instruction = split_statistics(folder, plan.vectors), only_instruction(folder)
        if old is not None and old.index != index:
            if [status.entry for status in ordered] == list(old.shards):
                tables = ", ".join(kind for kind in TABLE_KINDS if old.index[kind] != index[kind])
                raise ShardError(
                    f"{plan.output}: the index of {job.split} was merged again from the shards of the manifest, and "
                    f"{tables} differ from it, so nothing was replaced; take the versions that wrote the dataset "
                    '("versions" in dataset.json), or convert it again with --overwrite'
                )
            journal.withdraw(job.split + INDEX)
        journal.place_index(job.split, folder)
    status = IndexStatus(split=job.split, inputs=inputs, index=index, statistics=statistics, instruction=instruction)
    journal.finish_index(status)
    return status


def _extract(
    job: SplitJob, old: SplitEntry, journal: Journal, *, known: Mapping[str, ShardStatus]
) -> dict[str, ShardStatus]:
    """Put the parts of shards that were not converted again into the journal, cut out of the old index."""
    wanted = {*job.stems} - {*known}
    complete = journal.complete_files(entry for entry in old.shards if entry.name in wanted)
    if not complete or not journal.has_index(old.index, job.split):
        return {}
    listed = parse_quarantine(journal.quarantine())
    found = {}
    with journal.stage(job.split + INDEX) as stage:
        folder = journal.tables(job.split, old.index, stage)
        for shard in list_shards(folder, old):
            if (name := shard.entry.name) in complete:
                found[name] = _extract_shard(shard, journal, listed.get(name, ()))
    return found


def _extract_shard(shard: Shard, journal: Journal, listed: Sequence[QuarantineEntry]) -> ShardStatus:
    entry = shard.entry
    with journal.lock(entry.name, wait=True), journal.stage(entry.name) as folder:
        parts = {kind: folder / kind for kind in TABLE_KINDS}
        with writing(journal.scratch):
            extract_part(shard, parts)
        lengths = open_table(parts["episodes"], "episodes", rows=entry.episodes).array("num_steps")
        status = ShardStatus(
            entry=entry,
            parts={kind: describe_durably(path) for kind, path in parts.items()},
            longest=int(lengths.max(initial=0)),
            bytes_in=0,
            quarantine=tuple(listed),
        )
        journal.place(entry.name, folder)
        journal.finish(status)
    return status


def index_inputs(statuses: Sequence[ShardStatus], plan: DatasetPlan) -> str:
    """Return a digest of everything that the index of a split is made of."""
    digest = hashlib.sha256()
    for status in statuses:
        digest.update("".join([status.entry.name, *(status.parts[kind].sha256 for kind in TABLE_KINDS)]).encode())
    digest.update(repr(list(plan.vectors.items())).encode())
    return digest.hexdigest()
