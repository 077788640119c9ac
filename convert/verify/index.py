"""The index of a split: its three tables against the format, the manifest, and each other."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from convert.report import fault, first_line
from convert.verify.files import is_unchanged
from convert.verify.report import Finding, Findings
from convert.verify.rows import Report, check_rows
from convert.verify.split_shard import changed_columns, list_shards, open_index_table
from convert.verify.vectors import check_derived, compute_statistics, differing_statistics
from stream.format.manifest import SplitEntry, Statistics
from stream.format.names import MANIFEST_NAME, TABLE_KINDS, TableKind, table_file
from stream.format.schema import FIRST_FIELDS
from stream.format.table import Table
from stream.storage.errors import FormatError


def check_index(
    folder: Path,
    split: str,
    entry: SplitEntry,
    *,
    offset: int | None,
    spec: Mapping[str, Any],
    statistics: Mapping[Any, Statistics],
    deep: bool,
) -> list[Finding]:
    """Check the index of one split; never raises, whatever the files hold.

    Args:
        folder: Folder of the dataset, ``ROOT/<dataset>/<version>``.
        split: Name of the split.
        entry: Manifest entry of the split.
        offset: Offset of all pairs in steps, None if the manifest does not say.
        spec: Registry entry in the manifest.
        statistics: Statistics of the split in the manifest.
        deep: Compute derived columns and statistics again.
    """
    findings = Findings()
    reports: dict[TableKind, Report] = {
        kind: partial(findings.add, f"{split}/{table_file(kind)}") for kind in TABLE_KINDS
    }
    shards = list_shards(folder, split, entry)
    tables: dict[TableKind, Table] = {}
    for kind in TABLE_KINDS:
        path = folder / split / table_file(kind)
        if is_unchanged(path, entry.index[kind], name=f"{split}/{path.name}", findings=findings):
            try:
                tables[kind] = _open(path, kind, entry, reports[kind])
            except Exception as error:
                reports[kind](fault(error, path))
    try:
        check_rows(tables, shards, offset=offset, reports=reports)
        try:
            sound = "steps" in tables and check_derived(
                tables["steps"], shards, spec, deep=deep, report=reports["steps"]
            )
            if sound and deep:
                computed = compute_statistics(folder / split, spec)
                for vector, _, text in differing_statistics(statistics, computed):
                    findings.add(MANIFEST_NAME, f"statistics of {split} {vector}: {text}")
        except FormatError as error:
            findings.add(MANIFEST_NAME, str(error))
    except Exception as error:
        reports["episodes"](f"tables could not be compared: {type(error).__name__}: {first_line(error)}")
    return findings.close()


def _open(path: Path, kind: TableKind, entry: SplitEntry, report: Report) -> Table:
    """Open a table whose columns of the format have their types and no nulls, and report columns that changed."""
    table = open_index_table(path.parent, kind, entry.index[kind], getattr(entry, kind))
    arrow = table.arrow()
    # Follows every offset in the table.
    arrow.validate(full=True)
    for text in changed_columns(table, entry.index[kind]):
        report(text)
    for field in FIRST_FIELDS[kind]:
        if nulls := arrow.column(field.name).null_count:
            raise FormatError(f"column {field.name} has {nulls:,} nulls, expected none")
    return table
