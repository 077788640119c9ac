"""The tables of an index against each other and against the manifest's counts of each shard.

All rows of a split are compared with numpy, a piece of a table at a time, so memory does not grow with the split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stream.format.manifest import ShardEntry, SplitEntry
from stream.format.names import TableKind
from stream.format.schema import EPISODE_FIELDS
from stream.format.table import Table

_NO_STEPS = ("empty", "unreadable", "malformed")
_SILENT = (*_NO_STEPS, "too_short", "missing_feature")
_STATUSES = ("ok", *_SILENT)
_PIECE = 1 << 20

Report = Callable[[str], None]


class Comparison:
    """Compares columns of one table piece by piece.

    Of each kind of problem, ``close`` reports the first row and the count of rows.
    """

    def __init__(self, kind: TableKind, split: SplitEntry, report: Report) -> None:
        self._report = report
        self._names = [shard.name for shard in split.shards]
        self._ends = np.cumsum([getattr(shard, kind) for shard in split.shards], dtype=np.int64)
        self._found: dict[str, tuple[str, int]] = {}

    def compare(self, column: str, first: int, found: np.ndarray, expected: np.ndarray) -> None:
        """Compare a piece of a column that begins at row ``first``."""
        wrong = np.flatnonzero(found != expected)
        for row in wrong[:1]:
            self.note(column, first + row, f"{column} is {found[row]:,}, expected {expected[row]:,}", len(wrong))

    def note(self, key: str, row: int, text: str, count: int) -> None:
        """Note a problem of ``count`` rows, of which ``row`` is the first."""
        before = self._found.get(key) or (f"{self.place(int(row))}: {text}", 0)
        self._found[key] = (before[0], before[1] + count)

    def place(self, row: int) -> str:
        """Return a row for messages, with its shard and its row there."""
        shard = int(np.searchsorted(self._ends, row, side="right"))
        if shard == len(self._names):
            return f"row {row:,}"
        within = row - (int(self._ends[shard - 1]) if shard else 0)
        return f"row {row:,} (row {within:,} of {self._names[shard]})"

    def close(self) -> bool:
        """Report what was found; returns whether that was nothing."""
        for text, count in self._found.values():
            self._report(text + (f" ({count:,} rows are wrong)" if count > 1 else ""))
        return not self._found


def check_episodes(table: Table, split: SplitEntry, *, offset: int | None, report: Report) -> bool:
    """Check that the episodes follow each other without gaps and add up to the manifest's counts of each shard.

    Args:
        table: Episodes of the split.
        split: Manifest's entry.
        offset: Offset of all pairs in steps, None if unknown.
        report: Called with each problem.

    Returns:
        Whether steps and records can be compared with the table.
    """
    columns = {field.name: table.array(field.name) for field in EPISODE_FIELDS if pa.types.is_integer(field.type)}
    steps, records = (columns[name].astype(np.int64) for name in ("num_steps", "num_records"))
    owner = np.repeat(np.arange(len(split.shards)), [shard.episodes for shard in split.shards])
    comparison = Comparison("episodes", split, report)
    comparison.compare("episode", 0, columns["episode"], np.arange(table.rows))
    comparison.compare("shard", 0, columns["shard"], owner)
    for length, first, counts in (("num_steps", "first_steps_row", steps), ("num_records", "first_record", records)):
        comparison.compare(length, 0, counts, np.maximum(counts, 0))
        comparison.compare(first, 0, columns[first], np.cumsum(counts) - counts)
    sound = comparison.close()
    for length, total, counts in (("num_steps", "steps", steps), ("num_records", "records", records)):
        sound &= _compare_totals(length, counts, total, split, report)

    comparison = Comparison("episodes", split, report)
    status = _texts(table, "status")
    unknown = np.flatnonzero(np.isin(status, _STATUSES, invert=True))
    for row in unknown[:1]:
        comparison.note("status", row, f"status is {status[row]!r}, expected {' or '.join(_STATUSES)}", len(unknown))
    silent = np.isin(status, _SILENT)
    comparison.compare("num_steps", 0, steps, np.where(np.isin(status, _NO_STEPS), 0, steps))
    possible = np.where(silent, 0, records if offset is None else np.maximum(steps - offset, 0))
    comparison.compare("num_records", 0, records, np.minimum(records, possible))
    _check_sources(table, split, owner, comparison)
    comparison.close()
    _check_counts(split, status, owner, records, possible if offset is not None else None, report)
    return sound


def check_steps(table: Table, episodes: Table, split: SplitEntry, *, report: Report) -> None:
    """Check that the steps are those of the episodes, in order; ``episodes`` passed ``check_episodes``."""
    comparison = Comparison("steps", split, report)
    first_row = episodes.array("first_steps_row")
    for piece, owner in _pieces(episodes.array("num_steps")):
        comparison.compare("episode", piece.start, table.array("episode")[piece], owner)
        expected = np.arange(piece.start, piece.stop) - first_row[owner]
        comparison.compare("step", piece.start, table.array("step")[piece], expected)
    comparison.close()


def check_records(table: Table, episodes: Table, split: SplitEntry, *, offset: int | None, report: Report) -> None:
    """Check that each row of ``records`` is a pair of its episode, in order, and points at its step and its bytes.

    Args:
        table: Records of the split.
        episodes: Episodes of the split, which passed ``check_episodes``.
        split: Manifest's entry.
        offset: Offset of all pairs in steps, None if unknown.
        report: Called with each problem.
    """
    comparison = Comparison("records", split, report)
    for piece, owner in _pieces(episodes.array("num_records")):
        _check_pairs(table, episodes, split, piece, owner, offset, comparison)
        _check_places(table, split, piece, comparison)
    comparison.close()


def _check_pairs(
    table: Table,
    episodes: Table,
    split: SplitEntry,
    piece: slice,
    owner: np.ndarray,
    offset: int | None,
    comparison: Comparison,
) -> None:
    """Check a piece of ``records``: its pairs are of the episodes ``owner``."""
    first = piece.start
    step, distance = (table.array(name)[piece].astype(np.int64) for name in ("step", "offset"))
    expected = {
        "shard": episodes.array("shard")[owner],
        "episode": owner,
        "camera": np.zeros_like(owner),
        "offset": np.maximum(distance, 1) if offset is None else np.full_like(distance, offset),
        "steps_row": episodes.array("first_steps_row")[owner] + step,
    }
    for name, values in expected.items():
        comparison.compare(name, first, table.array(name)[piece], values)
    length = episodes.array("num_steps")[owner]
    outside = np.flatnonzero((step < 0) | (step + distance >= length))
    for row in outside[:1]:
        text = f"step {step[row]:,} with offset {distance[row]:,} is outside its episode of {length[row]:,} steps"
        comparison.note("outside", first + row, text, len(outside))
    # With the row before the piece, so that a border hides nothing.
    since = slice(max(first - 1, 0), piece.stop)
    step, episode = table.array("step")[since], table.array("episode")[since]
    again = np.flatnonzero((np.diff(episode) == 0) & (np.diff(step) <= 0)) + 1
    for row in again[:1]:
        text = f"step is {step[row]:,} after {step[row - 1]:,} of the same episode, expected more"
        comparison.note("order", since.start + row, text, len(again))


def _check_places(table: Table, split: SplitEntry, piece: slice, comparison: Comparison) -> None:
    """Check that a piece of ``records`` points into the ArrayRecord files."""
    ends = np.cumsum([shard.records for shard in split.shards], dtype=np.int64)
    sizes = np.array([shard.file.bytes for shard in split.shards], np.int64)
    size = sizes[np.searchsorted(ends, np.arange(piece.start, piece.stop), side="right")]
    position, num_bytes = (table.array(name)[piece].astype(np.int64) for name in ("position", "num_bytes"))
    lost = np.flatnonzero((position < 0) | (num_bytes <= 0) | (position > size - num_bytes))
    for row in lost[:1]:
        text = f"{num_bytes[row]:,} bytes at {position[row]:,} are not in the shard's file of {size[row]:,} bytes"
        comparison.note("place", piece.start + row, text, len(lost))


def _pieces(lengths: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield slices of the rows of a table and the episode of each row; episodes have ``lengths`` rows each."""
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, _PIECE):
        stop = min(start + _PIECE, total)
        low, high = np.searchsorted(ends, (start, stop - 1), side="right")
        bounds = np.concatenate([[start], np.minimum(ends[low : high + 1], stop)])
        yield slice(start, stop), np.repeat(np.arange(low, high + 1), np.diff(bounds))


def _sums(values: np.ndarray, shards: Sequence[ShardEntry]) -> np.ndarray:
    """Add up a number of each episode by shard, int64 [shards]."""
    ends = np.cumsum([shard.episodes for shard in shards], dtype=np.int64)
    return np.diff(np.concatenate([[0], np.cumsum(values, dtype=np.int64)])[np.concatenate([[0], ends])])


def _compare_totals(length: str, counts: np.ndarray, total: str, split: SplitEntry, report: Report) -> bool:
    found = _sums(counts, split.shards)
    expected = np.array([getattr(shard, total) for shard in split.shards], np.int64)
    wrong = np.flatnonzero(found != expected)
    for shard in wrong[:1]:
        report(
            f"{length} adds up to {found[shard]:,} in {split.shards[shard].name}, the manifest says "
            f"{expected[shard]:,} {total}" + (f" ({len(wrong):,} shards are wrong)" if len(wrong) > 1 else "")
        )
    return not len(wrong)


def _check_sources(table: Table, split: SplitEntry, owner: np.ndarray, comparison: Comparison) -> None:
    """Check that episodes name their source file and their position in it, which rises."""
    position = table.array("source_position")
    wrong = np.flatnonzero((np.diff(owner) == 0) & (np.diff(position) <= 0)) + 1
    for row in wrong[:1]:
        text = f"source_position is {position[row]:,} after {position[row - 1]:,}, expected more"
        comparison.note("source_position", row, text, len(wrong))
    kind = pa.large_string()
    files = pa.array([shard.source_file for shard in split.shards], kind).take(pa.array(owner))
    ids = pc.binary_join_element_wise(files, pa.array(position).cast(kind), pa.scalar("__", kind))
    for column, expected in (("source_file", files), ("episode_id", ids)):
        found = table.arrow().column(column).chunk(0).cast(kind)
        wrong = np.flatnonzero(pc.not_equal(found, expected).to_numpy(zero_copy_only=False))
        for row in wrong[:1]:
            text = f"{column} is {found[row].as_py()!r:.200}, expected {expected[row].as_py()!r:.200}"
            comparison.note(column, row, text, len(wrong))


def _check_counts(
    split: SplitEntry,
    status: np.ndarray,
    owner: np.ndarray,
    records: np.ndarray,
    possible: np.ndarray | None,
    report: Report,
) -> None:
    """Compare the episodes of each shard with the manifest's counts by reason.

    Args:
        split: Manifest's entry.
        status: Status of each episode.
        owner: Number of the shard of each episode.
        records: Records of each episode.
        possible: Pairs that fit in each episode, None if unknown.
        report: Called with each problem.
    """
    paired = _sums(records > 0, split.shards).tolist()
    found: dict[int, Counter[str]] = {}
    for row in np.flatnonzero(status != "ok").tolist():
        found.setdefault(int(owner[row]), Counter())[str(status[row])] += 1
    missing = _sums(possible - records, split.shards).tolist() if possible is not None else None
    for number, shard in enumerate(split.shards):
        counts = found.get(number, Counter())
        if paired[number] != shard.paired_episodes:
            report(
                f"{paired[number]:,} episodes of {shard.name} have records, the manifest says {shard.paired_episodes:,}"
            )
        for reason in _SILENT:
            said = shard.left_out.get(reason, 0)
            if counts[reason] != said:
                report(
                    f"has {counts[reason]:,} episodes of {shard.name} of status {reason}, the manifest left out "
                    f"{said:,}"
                )
        said = shard.left_out.get("pair_of_corrupt_frame", 0)
        if missing is not None and missing[number] != said:
            report(f"{missing[number]:,} pairs of {shard.name} are not there, the manifest left out {said:,}")


def _texts(table: Table, name: str) -> np.ndarray:
    """Return a dictionary-encoded column as texts, object [rows]; rows share the texts of the dictionary."""
    count = table.columns[name].texts.count if table.columns[name].texts else 0  # type: ignore[union-attr]
    known = np.array([table.text(name, number) for number in range(count)], dtype=object)
    numbers = table.array(name)
    return known[numbers] if count else np.zeros(0, object)
