"""Conversion of one source shard: its files are written once, checked, and recorded in the journal.

The output is a function of only the source file and the plan. Files are written on a stage of the journal, closed,
reopened, checked and hashed, and only then put into place; the status of the shard is written last.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from convert.errors import ConvertError, ShardError
from convert.index.tables import join_parts
from convert.jobs import ShardJob
from convert.journal.journal import RECORDS, Journal
from convert.journal.status import ShardStatus
from convert.plan import DatasetPlan
from convert.shard.counts import count_damage, total_counts
from convert.shard.record_file import RecordWriter
from convert.source.protocol import join_digests
from convert.storage.durable import describe_durably, writing
from convert.tasks.shard_writer import write_shard
from stream.base.errors import FormatError, StreamError
from stream.format.manifest import ShardEntry
from stream.format.names import TABLE_KINDS
from stream.format.record_file import RecordFile
from stream.format.table import open_table

_SUMS = ("episodes", "steps", "records", "paired_episodes", "passed")


def convert_shard(job: ShardJob, plan: DatasetPlan) -> ShardStatus | None:
    """Convert one shard or piece, unless it is finished or another process is converting it.

    The process that finishes the last piece of a shard joins them to what converting the shard at once would give.

    Returns the status of the shard, also of one that was finished before; that of the piece while others are missing;
    None if another process is converting or joining it, or has finished the dataset since.

    Raises ShardError or RemoteError if this machine does not see the journal, the source cannot be read, the output
    cannot be written, or the source is damaged and the plan says ``on_error="fail"``.
    """
    journal = plan.journal
    if status := journal.status(job.stem):
        return status
    if not journal.exists():
        if _in_manifest(journal, job):
            return None
        remedy = "workers and this command need an --output that all of them see, on a shared disk or in a bucket"
        host = socket.gethostname()
        raise ShardError(f"{plan.output}: {host} finds no conversion there, though one was begun; {remedy}")
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
    pieces = [piece for piece_job in job.pieces() if (piece := journal.status(piece_job.name))]
    if len(pieces) < len(job.cut) or any(piece.entry.source_bytes != job.shard.bytes for piece in pieces):
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
                _check_change(job, job.entry, status.entry, journal)
                journal.withdraw(job.stem)
            journal.place(job.name, stage_folder)
        journal.finish(status)
        return status


def _check_change(job: ShardJob, old_entry: ShardEntry, new_entry: ShardEntry, journal: Journal) -> None:
    """Raise ShardError if the source was damaged after the shard was converted, or the shard may not differ at all."""
    damage_before, damage_now = count_damage(old_entry.left_out), count_damage(new_entry.left_out)
    if damage_now > damage_before and journal.complete_files([old_entry]):
        found = f"{damage_now} damaged, {damage_before} when it was converted"
        remedy = "the converted shard stays as it is; copy the source file again"
        raise ShardError(f"{job.shard.path}: {found}, so {remedy}")
    if job.may_differ:
        return
    fields = ShardEntry.model_fields
    changed_fields = ", ".join(name for name in fields if getattr(old_entry, name) != getattr(new_entry, name))
    if old_entry.source_digest != new_entry.source_digest:
        reason = f"{job.shard.path} is not the file that was converted; copy that file again"
    else:
        manifest = journal.manifest() or journal.withdrawn()
        versions = ", ".join(f"{name} {version}" for name, version in (manifest.versions if manifest else {}).items())
        reason = f"the same source gives other bytes here; take the versions that wrote the dataset ({versions})"
    raise ShardError(
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


def join_pieces(pieces: Sequence[ShardStatus], journal: Journal, stage_folder: Path) -> ShardStatus:
    """Write the files of a shard to ``stage_folder``, named by their kind, from those of its pieces in order.

    Returns the status of the shard, as if it had been converted at once; raises ShardError if a file of a piece is not
    what its status says, or the disk refuses.
    """
    parts_by_piece = journal.parts(pieces, stage_folder)
    with writing(journal.scratch):
        writer = RecordWriter(stage_folder / RECORDS, output=journal.scratch)
    record_numbers = []
    try:
        with writer:
            for status, piece_parts in zip(pieces, parts_by_piece, strict=True):
                records_table = open_table(piece_parts["records"], "records", rows=status.entry.records)
                record_file = RecordFile(str(journal.records(status, stage_folder)))
                # The rows of a chunk of video share its record.
                columns = [records_table.array(name) for name in ("position", "num_bytes", "xxh3_64")]
                _, first_rows, record_of_row = np.unique(columns[0], return_index=True, return_inverse=True)
                locations = zip(*(column[first_rows].tolist() for column in columns), strict=True)
                new_numbers = [writer.write(bytes(record_file.read(*location))) for location in locations]
                record_numbers.append(np.array(new_numbers, np.int64)[record_of_row])
    except FormatError as error:
        raise ShardError(f"{error} (piece {status.piece})") from error
    with writing(journal.scratch):
        join_parts(stage_folder, parts_by_piece, writer.locations()["position"][np.concatenate(record_numbers)])
        part_files = {kind: describe_durably(stage_folder / kind) for kind in TABLE_KINDS}
        records_file = describe_durably(stage_folder / RECORDS)
    entries = [status.entry for status in pieces]
    cameras = entries[0].camera_sizes
    update = {
        "source_digest": join_digests([status.digests for status in pieces]),
        "left_out": total_counts(entry.left_out for entry in entries),
        "sizes": total_counts(entry.sizes for entry in entries),
        "camera_sizes": {name: total_counts(entry.camera_sizes[name] for entry in entries) for name in cameras},
        "file": records_file,
        **{name: sum(getattr(entry, name) for entry in entries) for name in _SUMS},
    }
    return ShardStatus(
        entry=entries[0].model_copy(update=update),
        parts=part_files,
        longest=max(status.longest for status in pieces),
        bytes_in=sum(status.bytes_in for status in pieces),
        quarantine=tuple(chain.from_iterable(status.quarantine for status in pieces)),
    )
