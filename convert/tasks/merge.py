"""The parts of a split's shards become its index.

The index is a function of the parts and the registry's vectors, so it is the same whoever merges it and how often. It
is written beside the old one, checked and hashed, and only then put into place; the status of the split is written
last. Before that every shard of the split has its part in the journal, so a merge that is killed starts again there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from convert.errors import ConvertError, ShardError, UsageError
from convert.index.statistics import split_statistics
from convert.index.tables import extract_part, merge_index
from convert.journal.journal import INDEX
from convert.journal.remote import AnyJournal, open_journal
from convert.journal.status import IndexStatus, QuarantineEntry, ShardStatus, parse_quarantine
from convert.plan import DatasetPlan, SplitJob
from convert.storage.durable import describe_durably, writing
from stream.format.manifest import ShardEntry, SplitEntry
from stream.format.names import TABLE_KINDS, table_file
from stream.format.table import open_table
from stream.storage.errors import FormatError
from stream.storage.remote import RemoteError


def merge_split(job: SplitJob, plan: DatasetPlan) -> IndexStatus | None:
    """Merge the index of one split, unless it is merged or another process is merging it.

    A shard of a complete dataset that was not converted again gets its part out of the index that the manifest
    describes.

    Returns:
        The status, also of a split that was merged before; None if another process is merging it, or has finished the
        whole dataset since.

    Raises:
        ShardError: A part cannot be read, or the output cannot be written.
    """
    journal = open_journal(plan.output, plan.staging)
    try:
        return _merge_split(job, plan, journal)
    except RemoteError as error:
        raise (UsageError if error.refused else ShardError)(str(error)) from error
    except (ConvertError, FormatError, OSError) as error:
        # Without locks another process may finish the whole dataset, and remove the journal, meanwhile.
        if not journal.exists():
            return None
        if isinstance(error, ConvertError):
            raise
        told = f"{error.filename or plan.output}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise ShardError(told) from error


def _merge_split(job: SplitJob, plan: DatasetPlan, journal: AnyJournal) -> IndexStatus | None:
    if not journal.exists():
        return None
    with journal.lock(job.split + INDEX) as mine:
        if not mine:
            return None
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
        if status is None or status.inputs != inputs:
            status = _merge(job, plan, journal, ordered, inputs=inputs, old=old)
            journal.finish_index(status)
        return status


def _merge(
    job: SplitJob,
    plan: DatasetPlan,
    journal: AnyJournal,
    statuses: Sequence[ShardStatus],
    *,
    inputs: str,
    old: SplitEntry | None,
) -> IndexStatus:
    with journal.merging(job.split) as folder:
        with writing(journal.workplace), journal.parts(statuses) as parts:
            index = merge_index(folder, parts, action=plan.action, state=plan.state)
        for kind in TABLE_KINDS:
            rows = sum(getattr(status.entry, kind) for status in statuses)
            open_table(folder / table_file(kind), kind, entry=index[kind], rows=rows)
        statistics = split_statistics(folder, action=plan.action, state=plan.state)
        if old is not None and old.index != index:
            journal.withdraw()
        journal.place_index(job.split, folder)
    return IndexStatus(split=job.split, inputs=inputs, index=index, statistics=statistics)


def _extract(
    job: SplitJob, old: SplitEntry, journal: AnyJournal, *, known: Mapping[str, ShardStatus]
) -> dict[str, ShardStatus]:
    """Put the parts of shards that were not converted again into the journal, cut out of the old index."""
    wanted = [(number, entry) for number, entry in enumerate(old.shards) if entry.name not in known]
    if not wanted or not journal.has_index(old.index, job.split):
        return {}
    listed = parse_quarantine(journal.quarantine())
    found = {}
    with journal.index(job.split, old.index) as folder:
        for number, entry in wanted:
            if entry.name in job.stems and journal.has_file(entry):
                found[entry.name] = _extract_shard(number, entry, journal, folder, listed.get(entry.name, ()))
    return found


def _extract_shard(
    number: int, entry: ShardEntry, journal: AnyJournal, folder: Path, listed: Sequence[QuarantineEntry]
) -> ShardStatus:
    with journal.staged(entry.name) as files:
        parts = {kind: files[kind] for kind in TABLE_KINDS}
        with writing(journal.workplace):
            extract_part(folder, number, parts)
        lengths = open_table(parts["episodes"], "episodes", rows=entry.episodes).array("num_steps")
        status = ShardStatus(
            entry=entry,
            parts={kind: describe_durably(path) for kind, path in parts.items()},
            longest=int(lengths.max(initial=0)),
            bytes_in=0,
            quarantine=tuple(listed),
        )
        journal.place(entry.name, {kind: files[kind] for kind in TABLE_KINDS})
    journal.finish(status)
    return status


def index_inputs(statuses: Sequence[ShardStatus], plan: DatasetPlan) -> str:
    """Return a digest of all that the index of a split is made of."""
    digest = hashlib.sha256()
    for status in statuses:
        digest.update("".join([status.entry.name, *(status.parts[kind].sha256 for kind in TABLE_KINDS)]).encode())
    vectors = [[part.model_dump(mode="json") for part in parts] for parts in (plan.action, plan.state)]
    digest.update(json.dumps(vectors).encode())
    return digest.hexdigest()
