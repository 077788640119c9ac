"""Conversion of one source shard: its files are written once, checked, and recorded in the journal.

The output is a function of only the source file and the plan. Files are written on a stage of the journal, closed,
reopened, checked and hashed, and only then put into place; the status of the shard is written last.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from convert.errors import ConvertError, ShardError
from convert.jobs import ShardJob
from convert.journal.journal import Journal, piece_stem
from convert.journal.status import ShardStatus
from convert.plan import DatasetPlan
from convert.shard.counts import count_damage
from convert.tasks.pieces import join_pieces
from convert.tasks.shard_writer import write_shard
from stream.base.errors import FormatError, StreamError
from stream.format.manifest import ShardEntry


def convert_shard(job: ShardJob, plan: DatasetPlan) -> ShardStatus | None:
    """Convert one shard or piece, unless it is finished or another process is converting it.

    The process that finishes the last piece of a shard joins them to what converting the shard at once would give.

    Returns:
        The status of the shard, also of one that was finished before; that of the piece while others are missing; None
        if another process is converting or joining it, or has finished the dataset since.

    Raises:
        ShardError: This machine does not see the journal, the source cannot be read, the output cannot be written, or
            the source is damaged and the plan says ``on_error="fail"``.
        stream.storage.remote.RemoteError: A bucket cannot be read or written.
    """
    journal = plan.journal
    if status := journal.status(job.stem):
        return status
    if not journal.exists():
        if _in_manifest(journal, job):
            return None
        raise ShardError(
            f"{plan.output}: {socket.gethostname()} finds no conversion there, though one was begun; workers "
            "and this command need an --output that all of them see, on a shared disk or in a bucket"
        )
    try:
        status = _once(job, journal, partial(write_shard, job, plan, journal.scratch))
        return status if status is None or job.piece is None else _join_last(job, status, journal)
    except ConvertError as error:
        # Without locks another process may finish the dataset, and remove the journal, meanwhile.
        if isinstance(error.__cause__, FileNotFoundError) and not journal.exists() and _in_manifest(journal, job):
            return None
        raise


def _join_last(job: ShardJob, status: ShardStatus, journal: Journal) -> ShardStatus | None:
    """Return the status of a piece, or that of its shard if this piece was the last one."""
    stems = [piece_stem(job.stem, *episode_range) for episode_range in job.cut]
    pieces = [piece for stem in stems if (piece := journal.status(stem))]
    if len(pieces) < len(stems) or any(piece.entry.source_bytes != job.shard.bytes for piece in pieces):
        return status
    try:
        joined_status = _once(replace(job, piece=None), journal, partial(join_pieces, pieces, journal))
    except (StreamError, OSError):
        # Without locks another process may join the pieces, and remove them, meanwhile.
        if (joined_status := journal.status(job.stem)) is None:
            raise
    if joined_status is not None:
        journal.clear_pieces(job.stem)
    return joined_status


def _once(job: ShardJob, journal: Journal, write_files: Callable[[Path], ShardStatus]) -> ShardStatus | None:
    """Put what ``write_files`` writes to a folder into place, unless it is finished or another process is at it."""
    with journal.lock(job.name) as is_locked:
        if not is_locked:
            return None
        if (status := journal.status(job.name)) and status.entry.source_bytes == job.shard.bytes:
            return status
        with journal.stage(job.name) as stage_folder:
            status = write_files(stage_folder)
            if job.entry is not None and job.piece is None and job.entry != status.entry:
                _check_no_worse(job, job.entry, status.entry, journal)
                if not job.may_differ:
                    raise _other_content(job, job.entry, status.entry, journal)
                journal.withdraw(job.stem)
            journal.place(job.name, stage_folder)
        journal.finish(status)
        return status


def _check_no_worse(job: ShardJob, old_entry: ShardEntry, new_entry: ShardEntry, journal: Journal) -> None:
    """Raise ShardError if the source was damaged after the existing shard was converted."""
    damage_before, damage_now = count_damage(old_entry.left_out), count_damage(new_entry.left_out)
    if damage_now > damage_before and journal.complete_files([old_entry]):
        raise ShardError(
            f"{job.shard.path}: {damage_now} damaged, {damage_before} when it was converted, so the converted "
            "shard stays as it is; copy the source file again"
        )


def _other_content(job: ShardJob, old_entry: ShardEntry, new_entry: ShardEntry, journal: Journal) -> ShardError:
    """Return the error about a lost shard that was made again and is not what the manifest says."""
    changed_fields = ", ".join(
        name for name in ShardEntry.model_fields if getattr(old_entry, name) != getattr(new_entry, name)
    )
    if old_entry.source_digest != new_entry.source_digest:
        reason = f"{job.shard.path} is not the file that was converted; copy that file again"
    else:
        manifest = journal.manifest() or journal.withdrawn()
        versions = ", ".join(f"{name} {version}" for name, version in (manifest.versions if manifest else {}).items())
        reason = f"the same source gives other bytes here; take the versions that wrote the dataset ({versions})"
    return ShardError(
        f"{journal.output}: {job.stem} was made again and differs from the manifest in {changed_fields}, so "
        f"nothing was replaced: {reason}; or accept the new shard with --redo {job.stem}"
    )


def _in_manifest(journal: Journal, job: ShardJob) -> bool:
    try:
        manifest = journal.manifest()
    except FormatError:
        return False
    split_entry = manifest.splits.get(job.shard.split) if manifest else None
    return split_entry is not None and any(entry.name == job.stem for entry in split_entry.shards)
