"""The ArrayRecord file of a shard, checked against the manifest and against its rows in the index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
from array_record.python import array_record_module

from convert.report import first_line
from convert.verify.files import is_unchanged
from convert.verify.frames import check_frames
from convert.verify.report import Finding, Findings
from convert.verify.split_shard import SplitShard
from stream.format.names import MANIFEST_NAME

_COLUMNS = ("episode", "step", "camera", "position", "num_bytes", "xxh3_64")


def check_shard(
    shard: SplitShard, *, frame_offsets: Sequence[int] | None, deep: bool, index_sound: bool
) -> list[Finding]:
    """Check one shard; never raises, whatever its file holds.

    Args:
        shard: Shard.
        frame_offsets: Distances from t of the frames of a record, None if the manifest does not say.
        deep: Read every record and decode every frame, of a damaged file too, to name the damaged records.
        index_sound: Whether ``records`` has the locations of the records.
    """
    findings = Findings()
    name, entry = f"{shard.split}/{shard.path.name}", shard.entry
    try:
        intact = is_unchanged(shard.path, entry.file, name=name, findings=findings)
        if not intact and not (deep and shard.path.is_file()):
            return findings.close()
        count = _count_records(str(shard.path))
        if count != entry.records:
            found = "does not open as ArrayRecord" if count < 0 else f"holds {count:,} records"
            findings.add(name, f"{found}, expected {entry.records:,} records")
        elif deep:
            rows = _read_rows(shard) if index_sound else None
            sizes = check_frames(
                shard.path,
                rows,
                offsets=frame_offsets,
                sizes=entry.sizes.keys(),
                report=partial(findings.add, name),
            )
            # With missing or broken frames, their count says nothing new.
            if rows is not None and frame_offsets is not None and not findings.close():
                _check_sizes(shard, sizes, findings)
    except Exception as error:
        findings.add(name, f"could not be checked: {type(error).__name__}: {first_line(error)}")
    return findings.close()


def _check_sizes(shard: SplitShard, sizes: Counter[str], findings: Findings) -> None:
    entry = shard.entry
    # The manifest also counts a sound frame that is not stored: one of which every pair has a corrupt frame.
    exact = not entry.left_out.get("pair_of_corrupt_frame")
    for size in sorted({*entry.sizes, *sizes}):
        found, expected = sizes[size], entry.sizes.get(size, 0)
        if found > expected or (exact and found != expected):
            findings.add(MANIFEST_NAME, f"counts {expected:,} frames of {size} in {entry.name}, found {found:,}")


def _count_records(path: str) -> int:
    """Return the number of records that the reader of array_record finds, -1 if the file does not open."""
    reader = array_record_module.ArrayRecordReader(path)
    if not reader.ok():
        # Closing it would raise.
        return -1
    try:
        return int(reader.num_records())
    finally:
        reader.close()


def _read_rows(shard: SplitShard) -> dict[str, np.ndarray]:
    table = shard.open_table("records")
    return {name: table.array(name)[shard.rows("records")] for name in _COLUMNS}
