"""One shard of a converted dataset: its files against the manifest, and against each other."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from array_record.python import array_record_module

from convert.report import human_bytes
from convert.verify_frames import check_frames, first_line
from convert.verify_report import Finding, Findings
from convert.verify_sidecars import ROWS, check_episodes, check_rows, check_steps, integers, open_table, places
from stream.format import FILE_KINDS, SIDECAR_KINDS, shard_file
from stream.manifest import FileEntry, ShardEntry

_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """One shard to check.

    folder: ``ROOT/<dataset>/<version>``. offset, frame_offsets: of all pairs, in steps; sizes: "HxW" of frames; each
    None if the manifest does not say. deep: decode every frame.
    """

    folder: str
    split: str
    entry: ShardEntry
    offset: int | None
    frame_offsets: tuple[int, ...] | None
    sizes: frozenset[str] | None
    deep: bool


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """What was found. sizes: of decoded frames, one a step, if that could be told."""

    findings: tuple[Finding, ...]
    sizes: dict[str, int] = field(default_factory=dict)


def check_shard(task: ShardTask) -> ShardResult:
    """Check one shard; never raises, whatever is in the files."""
    return _ShardChecker(task).run()


class _ShardChecker:
    def __init__(self, task: ShardTask) -> None:
        self._task = task
        self._findings = Findings()
        self._names = {kind: shard_file(task.entry.name, kind) for kind in FILE_KINDS}

    def run(self) -> ShardResult:
        sizes: dict[str, int] = {}
        kind = "arrayrecord"
        try:
            intact = [kind for kind in FILE_KINDS if self._same_bytes(kind)]
            tables: dict[str, pa.Table] = {}
            for kind in (kind for kind in SIDECAR_KINDS if kind in intact):
                table = open_table(self._path(kind), kind, self._task.entry, report=self._report(kind))
                if table is not None:
                    tables[kind] = table
            kind = "episodes"
            self._compare_tables(tables)
            kind = "arrayrecord"
            sizes = self._check_records(intact, tables.get("records"))
        except Exception as error:
            self._report(kind)(f"could not be checked: {type(error).__name__}: {first_line(error)}")
        return ShardResult(findings=self._findings.close(), sizes=sizes)

    def _path(self, kind: str) -> Path:
        return Path(self._task.folder, self._task.split, self._names[kind])

    def _report(self, kind: str) -> Callable[[str], None]:
        return lambda text: self._findings.add(f"{self._task.split}/{self._names[kind]}", text)

    def _same_bytes(self, kind: str) -> bool:
        """Compare a file with the manifest; what has other bytes is not looked into any further."""
        entry: FileEntry = self._task.entry.files[kind]  # type: ignore[index]
        try:
            found, size = hash_file(self._path(kind))
        except FileNotFoundError:
            self._report(kind)(f"is not there, expected {human_bytes(entry.bytes)}")
            return False
        except OSError as error:
            self._report(kind)(f"cannot be read: {error.strerror or error}")
            return False
        if (size, found) == (entry.bytes, entry.sha256):
            return True
        text = f"has SHA-256 {found}, expected {entry.sha256}"
        if size != entry.bytes:
            text = f"has {size:,} bytes, expected {entry.bytes:,}"
        self._findings.add(f"{self._task.split}/{self._names[kind]}", text, sha256=found)
        return False

    def _compare_tables(self, tables: dict[str, pa.Table]) -> None:
        task = self._task
        if "episodes" not in tables:
            return
        episodes = tables["episodes"]
        if not check_episodes(episodes, task.entry, offset=task.offset, report=self._report("episodes")):
            return
        if "steps" in tables:
            check_steps(tables["steps"], episodes, report=self._report("steps"))
        if "records" in tables:
            check_rows(
                tables["records"],
                episodes,
                offset=task.offset,
                num_frames=len(task.frame_offsets) if task.frame_offsets is not None else None,
                report=self._report("records"),
            )

    def _check_records(self, intact: list[str], records: pa.Table | None) -> dict[str, int]:
        """Count the records, and with ``deep`` look into them: also of a damaged file, to say which are damaged."""
        task, path, report = self._task, self._path("arrayrecord"), self._report("arrayrecord")
        if "arrayrecord" not in intact and not (task.deep and path.is_file()):
            return {}
        reader = array_record_module.ArrayRecordReader(str(path))
        try:
            count = reader.num_records() if reader.ok() else -1
        finally:
            reader.close()
        expected = task.entry.records
        if count != expected:
            what = "does not open as ArrayRecord" if count < 0 else f"holds {count:,} records"
            report(f"{what}, expected {expected:,} {ROWS['arrayrecord']}")
            return {}
        if not task.deep:
            return {}
        rows = integers(records, "records") if records is not None else None
        where = places(records) if records is not None else None
        return check_frames(path, rows, where, offsets=task.frame_offsets, sizes=task.sizes, report=report)


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read; raises OSError if it is not one. Opening a pipe in its place would wait for ever."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(f"it is a {'folder' if stat.S_ISDIR(mode) else 'device or pipe'}, expected a file")
    return path.open("rb")


def hash_file(path: Path) -> tuple[str, int]:
    """Return SHA-256 and size of a file, reading it once; raises OSError."""
    digest = hashlib.sha256()
    block = memoryview(bytearray(_BLOCK))
    size = 0
    with open_regular(path) as file:
        while count := file.readinto(block):  # type: ignore[attr-defined]
            digest.update(block[:count])
            size += count
    return digest.hexdigest(), size
