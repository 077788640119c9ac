"""The ArrayRecord file of a shard against the manifest, and its records against their rows in the index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from array_record.python import array_record_module

from convert.report import first_line
from convert.split_shard import SplitShard
from convert.verify_files import is_unchanged
from convert.verify_frames import check_frames
from convert.verify_report import Finding, Findings

_COLUMNS = ("episode", "step", "position", "num_bytes", "xxh3_64")


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """One shard to check.

    Attributes:
        shard: Shard and its rows in the index.
        frame_offsets: Distances from t of a record's frames, None if the manifest does not say.
        sizes: "HxW" of frames, None if the manifest does not say.
        deep: Read every record and decode every frame.
        index_sound: Whether the split's ``records`` says where the records are.
    """

    shard: SplitShard
    frame_offsets: tuple[int, ...] | None
    sizes: frozenset[str] | None
    deep: bool
    index_sound: bool = False

    @property
    def name(self) -> str:
        """The ArrayRecord file below the version folder."""
        return f"{self.shard.split}/{self.shard.path.name}"


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """Findings about a shard.

    Attributes:
        findings: Everything that is wrong.
        sizes: Number of decoded frames by size, one a step, if that could be told.
    """

    findings: tuple[Finding, ...]
    sizes: dict[str, int] = field(default_factory=dict)


def check_shard(task: ShardTask) -> ShardResult:
    """Check one shard; never raises, whatever its file holds."""
    findings = Findings()
    sizes: Mapping[str, int] = {}
    try:
        intact = is_unchanged(task.shard.path, task.shard.entry.file, name=task.name, findings=findings)
        sizes = _check_records(task, intact, findings)
    except Exception as error:
        findings.add(task.name, f"could not be checked: {type(error).__name__}: {first_line(error)}")
    return ShardResult(findings=findings.close(), sizes=dict(sizes))


def _check_records(task: ShardTask, intact: bool, findings: Findings) -> Mapping[str, int]:
    """Count the records, and with ``deep`` look into them: also of a damaged file, to say which are damaged."""
    path = task.shard.path
    if not intact and not (task.deep and path.is_file()):
        return {}
    count, expected = _count_records(str(path)), task.shard.entry.records
    if count != expected:
        what = "does not open as ArrayRecord" if count < 0 else f"holds {count:,} records"
        findings.add(task.name, f"{what}, expected {expected:,} records")
        return {}
    if not task.deep:
        return {}
    return check_frames(
        path,
        _read_rows(task.shard) if task.index_sound else None,
        offsets=task.frame_offsets,
        sizes=task.sizes,
        report=lambda text: findings.add(task.name, text),
    )


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
