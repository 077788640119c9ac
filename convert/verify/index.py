"""The index of a split: its three tables as the format and the manifest say, and all of them telling the same story."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convert.report import fault, first_line
from convert.verify.files import is_unchanged
from convert.verify.report import Finding, Findings
from convert.verify.rows import check_episodes, check_records, check_steps
from convert.verify.split_shard import changed_columns, open_index_table
from convert.verify.vectors import check_derived, check_statistics
from stream.format.manifest import SplitEntry, Statistics
from stream.format.names import MANIFEST_NAME, TABLE_KINDS, TableKind, table_file
from stream.format.schema import FIRST_FIELDS
from stream.format.table import Table


@dataclass(frozen=True, kw_only=True)
class IndexTask:
    """The index of one split to check.

    Attributes:
        folder: Folder of the dataset, ``ROOT/<dataset>/<version>``.
        split: Name of the split.
        entry: Manifest's entry of the split.
        offset: Offset of all pairs in steps, None if the manifest does not say.
        spec: Registry entry in the manifest.
        statistics: Statistics of the split in the manifest.
        deep: Compute derived columns and statistics again.
    """

    folder: str
    split: str
    entry: SplitEntry
    offset: int | None
    spec: Mapping[str, Any]
    statistics: Mapping[str, Statistics]
    deep: bool


@dataclass(frozen=True, kw_only=True)
class IndexResult:
    """Findings about the index of a split.

    Attributes:
        findings: Everything that is wrong.
        records_sound: Whether ``records`` says where the records of the shards are.
    """

    findings: tuple[Finding, ...]
    records_sound: bool


def check_index(task: IndexTask) -> IndexResult:
    """Check the index of one split; never raises, whatever the files hold."""
    findings = Findings()
    tables: dict[TableKind, Table] = {}
    for kind in TABLE_KINDS:
        try:
            table = _open(task, kind, findings)
        except Exception as error:
            _reporter(task, kind, findings)(f"could not be checked: {type(error).__name__}: {first_line(error)}")
        else:
            if table is not None:
                tables[kind] = table
    try:
        _compare(task, tables, findings)
    except Exception as error:
        text = f"tables could not be compared: {type(error).__name__}: {first_line(error)}"
        findings.add(f"{task.split}/{table_file('episodes')}", text)
    records = f"{task.split}/{table_file('records')}"
    found = findings.close()
    return IndexResult(
        findings=found, records_sound="records" in tables and all(finding.file != records for finding in found)
    )


def _reporter(task: IndexTask, kind: TableKind, findings: Findings) -> Callable[[str], None]:
    return lambda text: findings.add(f"{task.split}/{table_file(kind)}", text)


def _open(task: IndexTask, kind: TableKind, findings: Findings) -> Table | None:
    """Open a table and check everything about it that can be said without the others.

    Returns:
        The table if its bytes are those of the manifest, no offset in it leads outside, and the columns of the format
        come first with their types and without nulls. Otherwise None, and findings say why.
    """
    report, entry = _reporter(task, kind, findings), task.entry.index[kind]
    folder = Path(task.folder, task.split)
    path = folder / table_file(kind)
    if not is_unchanged(path, entry, name=f"{task.split}/{path.name}", findings=findings):
        return None
    sound = True
    try:
        table = open_index_table(folder, kind, entry, getattr(task.entry, kind))
        arrow = table.arrow()
        arrow.validate(full=True)
    except Exception as error:
        report(fault(error, path))
        return None
    for text in changed_columns(table, entry):
        report(text)
    for field in FIRST_FIELDS[kind]:
        if nulls := arrow.column(field.name).null_count:
            report(f"column {field.name} has {nulls:,} nulls, expected none")
            sound = False
    return table if sound else None


def _compare(task: IndexTask, tables: Mapping[TableKind, Table], findings: Findings) -> None:
    if "episodes" in tables:
        episodes = tables["episodes"]
        report = _reporter(task, "episodes", findings)
        if check_episodes(episodes, task.entry, offset=task.offset, report=report):
            if "steps" in tables:
                check_steps(tables["steps"], episodes, task.entry, report=_reporter(task, "steps", findings))
            if "records" in tables:
                report = _reporter(task, "records", findings)
                check_records(tables["records"], episodes, task.entry, offset=task.offset, report=report)
    if "steps" in tables:
        folder = Path(task.folder, task.split)

        def blame_manifest(text: str) -> None:
            findings.add(MANIFEST_NAME, text)

        sound = check_derived(
            tables["steps"],
            task.entry,
            spec=task.spec,
            deep=task.deep,
            report=_reporter(task, "steps", findings),
            blame_manifest=blame_manifest,
        )
        if task.deep and sound:
            check_statistics(folder, task.spec, task.statistics, report=blame_manifest)
