"""Joining of the pieces of a shard: ranges of its episodes that were converted apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from convert.errors import ShardError
from convert.index.tables import join_parts
from convert.journal.journal import RECORDS, Journal
from convert.journal.status import ShardStatus
from convert.shard.counts import total_counts
from convert.shard.record_file import RecordWriter
from convert.source.protocol import join_digests
from convert.storage.durable import describe_durably, writing
from stream.base.errors import FormatError
from stream.format.names import TABLE_KINDS
from stream.format.record_file import RecordFile
from stream.format.table import open_table

_SUMS = ("episodes", "steps", "records", "paired_episodes", "passed")


def join_pieces(pieces: Sequence[ShardStatus], journal: Journal, stage_folder: Path) -> ShardStatus:
    """Write the files of a shard to ``stage_folder``, named by their kind, from those of its pieces in order.

    Returns:
        The status of the shard, as if it had been converted at once.

    Raises:
        ShardError: A file of a piece is not what its status says, or the disk refuses.
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
                location_columns = (
                    records_table.array(column_name) for column_name in ("position", "num_bytes", "xxh3_64")
                )
                _, first_rows, record_of_row = np.unique(
                    records_table.array("position"), return_index=True, return_inverse=True
                )
                new_numbers = [
                    writer.write(bytes(record_file.read(*location)))
                    for location in zip(*(column[first_rows].tolist() for column in location_columns), strict=True)
                ]
                record_numbers.append(np.array(new_numbers, np.int64)[record_of_row])
    except FormatError as error:
        raise ShardError(f"{error} (piece {status.piece})") from error
    with writing(journal.scratch):
        join_parts(stage_folder, parts_by_piece, writer.locations()["position"][np.concatenate(record_numbers)])
        part_files = {kind: describe_durably(stage_folder / kind) for kind in TABLE_KINDS}
        records_file = describe_durably(stage_folder / RECORDS)
    entries = [status.entry for status in pieces]
    cameras = dict.fromkeys(name for piece_entry in entries for name in piece_entry.camera_sizes)
    entry = entries[0].model_copy(
        update={
            "source_digest": join_digests([status.digests for status in pieces]),
            **{field_name: sum(getattr(piece_entry, field_name) for piece_entry in entries) for field_name in _SUMS},
            "left_out": total_counts(piece_entry.left_out for piece_entry in entries),
            "sizes": total_counts(piece_entry.sizes for piece_entry in entries),
            "camera_sizes": {
                name: total_counts(piece_entry.camera_sizes[name] for piece_entry in entries) for name in cameras
            },
            "file": records_file,
        }
    )
    return ShardStatus(
        entry=entry,
        parts=part_files,
        longest=max(status.longest for status in pieces),
        bytes_in=sum(status.bytes_in for status in pieces),
        quarantine=tuple(quarantine_entry for status in pieces for quarantine_entry in status.quarantine),
    )
