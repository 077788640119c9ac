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


def join_pieces(pieces: Sequence[ShardStatus], journal: Journal, folder: Path) -> ShardStatus:
    """Write the files of a shard to ``folder``, named by their kind, from those of its pieces in order.

    Returns:
        The status of the shard, as if it had been converted at once.

    Raises:
        ShardError: A file of a piece is not what its status says, or the disk refuses.
    """
    parts = journal.parts(pieces, folder)
    with writing(journal.scratch):
        writer = RecordWriter(folder / RECORDS, output=journal.scratch)
    found = []
    try:
        with writer:
            for status, part in zip(pieces, parts, strict=True):
                table = open_table(part["records"], "records", rows=status.entry.records)
                records = RecordFile(str(journal.records(status, folder)))
                # The rows of a chunk of video share its record.
                places = (table.array(name) for name in ("position", "num_bytes", "xxh3_64"))
                _, rows, numbers = np.unique(table.array("position"), return_index=True, return_inverse=True)
                written = [
                    writer.write(bytes(records.read(*place)))
                    for place in zip(*(column[rows].tolist() for column in places), strict=True)
                ]
                found.append(np.array(written, np.int64)[numbers])
    except FormatError as error:
        raise ShardError(f"{error} (piece {status.piece})") from error
    with writing(journal.scratch):
        join_parts(folder, parts, writer.places()["position"][np.concatenate(found)])
        files = {kind: describe_durably(folder / kind) for kind in TABLE_KINDS}
        records_file = describe_durably(folder / RECORDS)
    entries = [status.entry for status in pieces]
    cameras = dict.fromkeys(name for entry in entries for name in entry.camera_sizes)
    entry = entries[0].model_copy(
        update={
            "source_digest": join_digests([status.digests for status in pieces]),
            **{name: sum(getattr(entry, name) for entry in entries) for name in _SUMS},
            "left_out": total_counts(entry.left_out for entry in entries),
            "sizes": total_counts(entry.sizes for entry in entries),
            "camera_sizes": {name: total_counts(entry.camera_sizes[name] for entry in entries) for name in cameras},
            "file": records_file,
        }
    )
    return ShardStatus(
        entry=entry,
        parts=files,
        longest=max(status.longest for status in pieces),
        bytes_in=sum(status.bytes_in for status in pieces),
        quarantine=tuple(left_out for status in pieces for left_out in status.quarantine),
    )
