"""The sidecars of one shard: each as the format says, and all of them telling the same story."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from convert.verify_frames import first_line
from stream.format import FIRST_FIELDS, PLACE_FIELDS, expected_fields, open_sidecar
from stream.manifest import ShardEntry

ROWS = {"arrayrecord": "records", "records": "records", "steps": "steps", "episodes": "episodes"}
"""Which count of the manifest says how many rows a file has."""

_SILENT = ("empty", "too_short", "unreadable", "malformed")
_NO_STEPS = ("empty", "unreadable", "malformed")

Report = Callable[[str], None]


def open_table(path: Path, kind: str, entry: ShardEntry, *, report: Report) -> pa.Table | None:
    """Memory-map a sidecar and check everything about it that can be said without the others.

    Returns:
        The table if it can be trusted: no offset in it leads outside, the columns of the format come first with their
        types and without nulls, and it has the rows of the manifest. None, and reports, otherwise.
    """
    try:
        table = open_sidecar(path)
        table.validate(full=True)
    except Exception as error:
        report(f"is not a sound Arrow file: {first_line(error).removeprefix(f'{path}: ')}")
        return None
    sound = True
    for position, field in enumerate(expected_fields(kind, table.schema)):
        found = table.schema.field(position) if position < len(table.schema) else None
        if found is None or (found.name, found.type, found.nullable) != (field.name, field.type, field.nullable):
            report(f"column {position} is {_shown(found)}, expected {_shown(field)}")
            sound = False
        elif table.column(position).null_count:
            report(f"column {field.name} has {table.column(position).null_count:,} nulls, expected none")
            sound = False
    expected = getattr(entry, ROWS[kind])
    if table.num_rows != expected:
        report(f"has {table.num_rows:,} rows, the manifest says {expected:,}")
        sound = False
    if any(column.num_chunks > 1 for column in table.columns):
        report(f"has {table.column(0).num_chunks} record batches, expected one")
        sound = False
    return table if sound else None


def integers(table: pa.Table, kind: str) -> dict[str, np.ndarray]:
    """Return the integer columns of the format, int64 [rows]."""
    return {
        field.name: np.asarray(table.column(field.name)).astype(np.int64)
        for field in FIRST_FIELDS[kind]
        if pa.types.is_integer(field.type)
    }


def places(table: pa.Table) -> list[np.ndarray] | None:
    """Return the columns PLACE_FIELDS of a records sidecar, [records] each; None if it was written before there were
    these."""
    if PLACE_FIELDS[0].name not in table.column_names:
        return None
    return [np.asarray(table.column(field.name)) for field in PLACE_FIELDS]


def check_episodes(table: pa.Table, entry: ShardEntry, *, offset: int | None, report: Report) -> bool:
    """Check that the episodes follow each other without gaps and add up to the manifest's counts.

    Args:
        table: of ``open_table``.
        entry: the shard.
        offset: of a pair, in steps; None if that is not known.
        report: called with each problem.

    Returns:
        Whether steps and records can be compared with it.
    """
    columns = integers(table, "episodes")
    status = np.asarray(table.column("status").to_pylist(), dtype=object)
    rows = np.arange(table.num_rows)
    sound = True
    for length, first, total in (("num_steps", "first_steps_row", "steps"), ("num_records", "first_record", "records")):
        counts = columns[length]
        expected = np.cumsum(counts) - counts
        sound &= _compare(length, counts, np.maximum(counts, 0), report)
        sound &= _compare(first, columns[first], expected, report)
        if counts.sum() != getattr(entry, total):
            report(f"{length} adds up to {counts.sum():,}, the manifest says {getattr(entry, total):,} {total}")
            sound = False

    paired = int((columns["num_records"] > 0).sum())
    if paired != entry.paired_episodes:
        report(f"{paired:,} episodes have records, the manifest says {entry.paired_episodes:,}")

    for row in rows[np.isin(status, ("ok", *_SILENT), invert=True)][:1]:
        report(f"row {row}: status is {status[row]!r}, expected one of {', '.join(('ok', *_SILENT))}")
    found = Counter(status.tolist())
    for reason in _SILENT:
        if found[reason] != entry.left_out.get(reason, 0):
            expected = entry.left_out.get(reason, 0)
            report(f"has {found[reason]:,} episodes of status {reason}, the manifest left out {expected:,}")
    bare = np.isin(status, _NO_STEPS)
    _compare("num_steps", columns["num_steps"], np.where(bare, 0, columns["num_steps"]), report)
    silent = np.isin(status, _SILENT)
    _compare("num_records", columns["num_records"], np.where(silent, 0, columns["num_records"]), report)
    if offset is not None:
        possible = np.where(silent, 0, np.maximum(columns["num_steps"] - offset, 0))
        _compare("num_records", columns["num_records"], np.minimum(columns["num_records"], possible), report)
        missing, known = possible.sum() - columns["num_records"].sum(), entry.left_out.get("pair_of_corrupt_frame", 0)
        if missing != known:
            report(f"{missing:,} of {possible.sum():,} pairs are not there, the manifest left out {known:,}")

    position = columns["source_position"]
    for row in rows[1:][np.diff(position) <= 0][:1]:
        report(f"row {row}: source_position is {position[row]:,} after {position[row - 1]:,}, expected more")
    _compare_texts("source_file", table, [entry.source_file] * len(rows), report)
    _compare_texts("episode_id", table, [f"{entry.source_file}__{number}" for number in position], report)
    return sound


def check_steps(table: pa.Table, episodes: pa.Table, *, report: Report) -> None:
    """Check that the steps are those of the episodes, in order; ``episodes`` passed ``check_episodes``."""
    columns = integers(table, "steps")
    lengths = integers(episodes, "episodes")["num_steps"]
    first = np.cumsum(lengths) - lengths
    _compare("episode", columns["episode"], np.repeat(np.arange(len(lengths)), lengths), report)
    _compare("step", columns["step"], np.arange(lengths.sum()) - np.repeat(first, lengths), report)


def check_rows(
    table: pa.Table, episodes: pa.Table, *, offset: int | None, num_frames: int | None, report: Report
) -> None:
    """Check that each row of ``records`` is a pair of its episode, in order, and points at the step it is of.

    Args:
        table: the records sidecar.
        episodes: passed ``check_episodes``.
        offset: of every pair, in steps; None if that is not known.
        num_frames: of every record; None if that is not known.
        report: called with each problem.
    """
    columns = integers(table, "records")
    heads = integers(episodes, "episodes")
    owner = np.repeat(np.arange(episodes.num_rows), heads["num_records"])
    if not _compare("episode", columns["episode"], owner, report):
        return
    step, distance = columns["step"], columns["offset"]
    _compare("steps_row", columns["steps_row"], heads["first_steps_row"][owner] + step, report)
    if offset is None:
        _compare("offset", distance, np.maximum(distance, 1), report)
    else:
        _compare("offset", distance, np.full_like(distance, offset), report)
    if num_frames is None:
        _compare("num_frames", columns["num_frames"], np.maximum(columns["num_frames"], 1), report)
    else:
        _compare("num_frames", columns["num_frames"], np.full_like(step, num_frames), report)
    length = heads["num_steps"][owner]
    for row in np.flatnonzero((step < 0) | (step + distance >= length))[:1]:
        report(
            f"row {row}: step {step[row]:,} with offset {distance[row]:,} is outside its episode "
            f"{owner[row]:,} of {length[row]:,} steps"
        )
    for row in np.flatnonzero((np.diff(owner) == 0) & (np.diff(step) <= 0))[:1] + 1:
        report(f"row {row}: step is {step[row]:,} after {step[row - 1]:,} of the same episode, expected more")


def _compare(column: str, found: np.ndarray, expected: np.ndarray, report: Report) -> bool:
    wrong = np.flatnonzero(found != expected)
    if len(wrong):
        row = wrong[0]
        more = f" ({len(wrong):,} rows are wrong)" if len(wrong) > 1 else ""
        report(f"row {row}: {column} is {found[row]:,}, expected {expected[row]:,}{more}")
    return not len(wrong)


def _compare_texts(column: str, table: pa.Table, expected: Sequence[str], report: Report) -> None:
    for row, (found, text) in enumerate(zip(table.column(column).to_pylist(), expected, strict=True)):
        if found != text:
            report(f"row {row}: {column} is {found!r:.200}, expected {text!r:.200}")
            return


def _shown(field: pa.Field | None) -> str:
    if field is None:
        return "not there"
    return f"{field.name} ({field.type}{'' if field.nullable else ', not null'})"
