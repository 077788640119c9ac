"""The ArrayRecord file of a shard against the manifest, and its records against their rows in the index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from array_record.python import array_record_module

from convert.report import first_line
from convert.verify.files import is_unchanged
from convert.verify.frames import check_frames
from convert.verify.report import Finding, Findings
from convert.verify.split_shard import SplitShard
from stream.format.names import MANIFEST_NAME

_COLUMNS = ("episode", "step", "position", "num_bytes", "xxh3_64")


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """One shard to check.

    Attributes:
        shard: Shard and its rows in the index.
        frame_offsets: Distances from t of a record's frames, None if the manifest does not say.
        deep: Read every record and decode every frame.
        index_sound: Whether the split's ``records`` says where the records are.
    """

    shard: SplitShard
    frame_offsets: tuple[int, ...] | None
    deep: bool
    index_sound: bool = False

    @property
    def name(self) -> str:
        """Name of the ArrayRecord file below the version folder."""
        return f"{self.shard.split}/{self.shard.path.name}"


def check_shard(task: ShardTask) -> tuple[Finding, ...]:
    """Return what is wrong with one shard; never raises, whatever its file holds."""
    findings = Findings()
    try:
        intact = is_unchanged(task.shard.path, task.shard.entry.file, name=task.name, findings=findings)
        sizes = _check_records(task, intact, findings)
        # With frames missing or broken, their number says nothing new.
        if sizes is not None and not findings:
            _check_sizes(task, sizes, findings)
    except Exception as error:
        findings.add(task.name, f"could not be checked: {type(error).__name__}: {first_line(error)}")
    return findings.close()


def _check_records(task: ShardTask, intact: bool, findings: Findings) -> Mapping[str, int] | None:
    """Count the records, and with ``deep`` look into them: also of a damaged file, to say which are damaged.

    Returns:
        Number of decoded frames by size, one a step; None if that could not be told.
    """
    path = task.shard.path
    if not intact and not (task.deep and path.is_file()):
        return None
    count, expected = _count_records(str(path)), task.shard.entry.records
    if count != expected:
        what = "does not open as ArrayRecord" if count < 0 else f"holds {count:,} records"
        findings.add(task.name, f"{what}, expected {expected:,} records")
        return None
    if not task.deep:
        return None
    rows = _read_rows(task.shard) if task.index_sound else None
    sizes = check_frames(
        path,
        rows,
        offsets=task.frame_offsets,
        sizes=task.shard.entry.sizes.keys(),
        report=lambda text: findings.add(task.name, text),
    )
    return sizes if rows is not None and task.frame_offsets is not None else None


def _check_sizes(task: ShardTask, sizes: Mapping[str, int], findings: Findings) -> None:
    entry = task.shard.entry
    # A frame of which every pair has another frame that is corrupt was converted and is not stored.
    exact = not entry.left_out.get("pair_of_corrupt_frame")
    for size in sorted({*entry.sizes, *sizes}):
        found, expected = sizes.get(size, 0), entry.sizes.get(size, 0)
        if found > expected or (exact and found != expected):
            findings.add(MANIFEST_NAME, f"counts {expected:,} frames of {size} in {entry.name}, found {found:,}")


def _count_records(path: str) -> int:
    """Return the number of records that array_record's own reader finds, -1 if the file does not open."""
    reader = array_record_module.ArrayRecordReader(path)
    if not reader.ok():
        # To close it would raise.
        return -1
    try:
        return int(reader.num_records())
    finally:
        reader.close()


def _read_rows(shard: SplitShard) -> dict[str, np.ndarray]:
    table = shard.open_table("records")
    return {name: table.array(name)[shard.rows("records")] for name in _COLUMNS}
