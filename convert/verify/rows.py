"""Rows of the index tables, checked against each other and against the counts of each shard in the manifest.

The rows of one shard are checked at a time, so memory does not grow with the split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from convert.verify.split_shard import SplitShard
from stream.format.names import TableKind
from stream.format.schema import FIRST_FIELDS
from stream.format.table import Table

_NO_STEPS = ("empty", "unreadable", "malformed", "missing_frames")
_NO_RECORDS = (*_NO_STEPS, "too_short", "missing_feature")
_STATUSES = ("ok", *_NO_RECORDS)

Report = Callable[[str], None]
Columns = Mapping[str, np.ndarray]


class RowChecks:
    """Checks of one table. ``close`` reports the first thing wrong of each check, and a count of the others.

    Args:
        kind: Table.
        report: Called with each problem.
    """

    def __init__(self, kind: TableKind, report: Report) -> None:
        self.report = report
        self._kind = kind
        self._found: dict[tuple[str, str], str] = {}
        self._counts: Counter[tuple[str, str]] = Counter()

    def check(self, name: str, shard: SplitShard, wrong: np.ndarray, text: Callable[[int], str]) -> bool:
        """Check rows of a shard.

        Args:
            name: Name of the check.
            shard: Shard of the rows.
            wrong: Whether each row is wrong, bool [rows].
            text: Function that describes a wrong row, counted from the first of ``wrong``.

        Returns:
            Whether no row is wrong.
        """
        rows = np.flatnonzero(wrong)
        if len(rows):
            row = int(rows[0])
            place = f"row {shard.first[self._kind] + row:,} (row {row:,} of {shard.entry.name})"
            self._note((name, "rows"), f"{place}: {text(row)}", len(rows))
        return not len(rows)

    def compare(self, column: str, shard: SplitShard, found: np.ndarray, expected: np.ndarray) -> bool:
        """Check that a column of a shard has the expected values; return whether it has."""
        return self.check(
            column,
            shard,
            found != expected,
            lambda row: f"{column} is {_show(found[row])}, expected {_show(expected[row])}",
        )

    def check_order(self, column: str, shard: SplitShard, values: np.ndarray, groups: np.ndarray) -> None:
        """Check that values rise within each group of rows."""
        wrong = np.zeros(len(values), bool)
        wrong[1:] = (np.diff(groups) == 0) & (np.diff(values) <= 0)
        self.check(
            f"order of {column}",
            shard,
            wrong,
            lambda row: f"{column} is {values[row]:,} after {values[row - 1]:,}, expected more",
        )

    def check_count(self, what: str, shard: SplitShard, found: int | np.integer, said: int) -> bool:
        """Check a count of a shard against the manifest; return whether they are equal."""
        if found != said:
            text = f"has {found:,} {what} in {shard.entry.name}, the manifest says {said:,}"
            self._note((what, "shards"), text, 1)
        return bool(found == said)

    def close(self) -> bool:
        """Report what was found; return whether there is nothing."""
        for check, text in self._found.items():
            count = self._counts[check]
            self.report(text + (f" ({count:,} {check[1]} are wrong)" if count > 1 else ""))
        return not self._found

    def _note(self, check: tuple[str, str], text: str, count: int) -> None:
        self._found.setdefault(check, text)
        self._counts[check] += count


def check_rows(
    tables: Mapping[TableKind, Table],
    shards: Sequence[SplitShard],
    *,
    offset: int | None,
    reports: Mapping[TableKind, Report],
) -> None:
    """Check that the tables of a split agree with each other and with the counts in the manifest.

    Args:
        tables: Tables of the index that can be read; without ``episodes``, nothing can be compared.
        shards: Shards of the split.
        offset: Offset of all pairs in steps, None if unknown.
        reports: Function to call with each problem of a table.
    """
    if "episodes" not in tables:
        return
    checks = {kind: RowChecks(kind, reports[kind]) for kind in tables}
    texts = tables["episodes"].arrow().select(["status", "source_file", "episode_id"])
    for shard in shards:
        columns = {kind: _numbers(table, shard, kind) for kind, table in tables.items()}
        rows = shard.rows("episodes")
        own_texts = {
            name: np.array(texts[name][rows.start : rows.stop].to_pylist(), object) for name in texts.column_names
        }
        episodes = columns["episodes"]
        sound = _check_episodes(episodes, own_texts, shard, offset, checks["episodes"])
        # Steps and records cannot be assigned to episodes of wrong lengths.
        if sound and "steps" in tables:
            _check_steps(columns["steps"], episodes, shard, checks["steps"])
        if sound and "records" in tables:
            _check_records(columns["records"], episodes, shard, offset, checks["records"])
    for each in checks.values():
        each.close()


def _check_episodes(own: Columns, texts: Columns, shard: SplitShard, offset: int | None, checks: RowChecks) -> bool:
    """Check the episodes of a shard; return whether their steps and records are contiguous and of the right count."""
    entry, rows = shard.entry, shard.rows("episodes")
    steps, records, status = own["num_steps"], own["num_records"], texts["status"]
    expected = {
        "episode": np.arange(rows.start, rows.stop),
        "shard": np.full_like(steps, shard.number),
        "num_steps": np.maximum(steps, 0),
        "first_steps_row": shard.first["steps"] + np.cumsum(steps) - steps,
        "num_records": np.maximum(records, 0),
        "first_record": shard.first["records"] + np.cumsum(records) - records,
    }
    equal = [checks.compare(name, shard, own[name], values) for name, values in expected.items()]

    known = np.where(np.isin(status, _STATUSES), status, " or ".join(_STATUSES))
    checks.compare("status", shard, status, known)
    checks.compare("num_steps", shard, steps, np.where(np.isin(status, _NO_STEPS), 0, steps))
    each = max(1, len(entry.camera_sizes))
    complete = records if offset is None else np.maximum(steps - offset, 0) * each
    possible = np.where(np.isin(status, _NO_RECORDS), 0, complete)
    checks.compare("num_records", shard, records, np.minimum(records, possible))
    position = own["source_position"]
    checks.check_order("source_position", shard, position, np.zeros_like(position))
    ids = [f"{entry.source_file}__{number}" for number in position.tolist()]
    checks.compare("source_file", shard, texts["source_file"], np.full(len(position), entry.source_file, object))
    checks.compare("episode_id", shard, texts["episode_id"], np.array(ids, object))

    equal.append(checks.check_count("steps", shard, steps.sum(), entry.steps))
    equal.append(checks.check_count("records", shard, records.sum(), entry.records))
    checks.check_count("episodes with records", shard, np.count_nonzero(records > 0), entry.paired_episodes)
    for reason in _NO_RECORDS:
        found = np.count_nonzero(status == reason)
        checks.check_count(f"episodes of status {reason}", shard, found, entry.left_out.get(reason, 0))
    if offset is not None:
        left_out = entry.left_out.get("pair_of_corrupt_frame", 0)
        checks.check_count("pairs without a record", shard, (possible - records).sum(), left_out)
    return all(equal)


def _check_steps(own: Columns, episodes: Columns, shard: SplitShard, checks: RowChecks) -> None:
    """Check that the steps of a shard are the steps of its episodes, in order."""
    rows = shard.rows("steps")
    first = np.repeat(episodes["first_steps_row"], episodes["num_steps"])
    checks.compare("episode", shard, own["episode"], np.repeat(episodes["episode"], episodes["num_steps"]))
    checks.compare("step", shard, own["step"], np.arange(rows.start, rows.stop) - first)


def _check_records(own: Columns, episodes: Columns, shard: SplitShard, offset: int | None, checks: RowChecks) -> None:
    """Check that each record is a pair of its episode, in order, and has a location in the ArrayRecord file."""
    episode, length, first_step = (
        np.repeat(episodes[name], episodes["num_records"]) for name in ("episode", "num_steps", "first_steps_row")
    )
    step, distance = own["step"], own["offset"]
    camera = np.zeros_like(episode)
    if shard.entry.camera_sizes:
        rows = shard.rows("records")
        camera, ordered = np.divmod(np.arange(rows.start, rows.stop) - _first_records(episodes), np.maximum(length, 1))
        checks.compare("step", shard, step, ordered)
    expected = {
        "shard": np.full_like(episode, shard.number),
        "episode": episode,
        "camera": camera,
        "offset": np.maximum(distance, 1 - bool(shard.entry.camera_sizes))
        if offset is None
        else np.full_like(distance, offset),
        "steps_row": first_step + step,
    }
    for name, values in expected.items():
        checks.compare(name, shard, own[name], values)
    checks.check(
        "outside",
        shard,
        (step < 0) | (step + distance >= length),
        lambda row: f"step {step[row]:,} with offset {distance[row]:,} is outside its episode of {length[row]:,} steps",
    )
    if not shard.entry.camera_sizes:
        checks.check_order("step", shard, step, own["episode"])
    position, num_bytes, size = own["position"], own["num_bytes"], shard.entry.file.bytes
    checks.check(
        "location",
        shard,
        (position < 0) | (num_bytes <= 0) | (position > size - num_bytes),
        lambda row: f"{num_bytes[row]:,} bytes at {position[row]:,} are not in the shard's file of {size:,} bytes",
    )


def _first_records(episodes: Columns) -> np.ndarray:
    """Return the first record of the episode of each record."""
    return np.repeat(episodes["first_record"], episodes["num_records"])


def _numbers(table: Table, shard: SplitShard, kind: TableKind) -> dict[str, np.ndarray]:
    """Return the rows of a shard in each whole-number column of the format, int64 [rows]."""
    return {
        field.name: table.array(field.name)[shard.rows(kind)].astype(np.int64)
        for field in FIRST_FIELDS[kind]
        if pa.types.is_integer(field.type)
    }


def _show(value: Any) -> str:
    return f"{value!r:.200}" if isinstance(value, str) else f"{value:,}"
